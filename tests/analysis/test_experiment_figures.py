"""The pictures of experiments: what they draw is what the journal's rows say; a roofline's numbers by hand."""

import contextlib
import io
import itertools
import re
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import LineCollection, PathCollection

from analysis.experiments.ablation import (
    NAMES,
    OURS,
    ablation_table,
    learning,
    losses_against_mean,
    main_effects,
    overfitting,
)
from analysis.experiments.costs import batch_size, estimates, loading, stage_bars
from analysis.experiments.kernels import roofline, roofline_table
from analysis.experiments.scaling import communication, speed_up, speed_ups, steps_table
from analysis.experiments.trainings import (
    line_of,
    lives,
    losses_table,
    methods_scatter,
    methods_table,
    precisions,
    shapes,
)
from analysis.figures import PICTURES
from analysis.settings import PlotSettings
from analysis.study import open_kernels
from tests import batch_size_rows, estimates_rows, loader_rows, methods_rows, scaling_rows
from tests.analysis.conftest import Printed, Written, do, one_line, study_of_rows, study_of_trials
from tests.training_rows import diverged, parabola, precise, row, transferred
from tune.arithmetic import mean_interval, ratio
from tune.errors import UserError
from tune.experiments import methods, stages
from tune.store.heartbeat import DRIVER, HEARTBEAT_FOLDER, write_heartbeat

Drawn = Callable[[str], tuple[dict[str, pd.DataFrame], str]]
REPORT = {"steps": 100}
LISTED = "ablation", "overfitting", "precision", "methods", "transfer"
"""Those that are lists, of whose trials the journal tells."""
SHAPES = [(d, 4, layers, p) for d in (16, 32) for layers in (2, 4) for p in (0.1, 0.5)]
LEARNING = {f"{what}-{along}" for what in ("loss", "accuracy", "perplexity") for along in ("epochs", "minutes")}
ABLATED = [
    row(REPORT, {"d_model": d, "heads": h, "layers": n, "dropout": p, "seed": seed}, 5 - d / 32 + 2 * p + seed)
    for d, h, n, p in SHAPES
    for seed in (0, 1)
]
"""Of two seeds; a layer more or less does nothing, and dropout 2 nats for each unit of it."""
SEEDS = [methods_rows.method_row("full precision", seed=seed) for seed in (1, 2)]
LOSSES = {"fp32": [1.70, 1.72], "bf16": [1.705, 1.725]}
CURVES = [
    {"key": "steps", "asked": {"measure": "step seconds"}, "config": {"d_model": 32}, "step_seconds": 0.1},
    *(
        {
            "key": f"{seconds}", "asked": {"measure": "curve", "seconds": seconds}, "config": {"d_model": 32},
            "parameters": 1000, "steps_per_report": 5, "valid_loss": [3.0, None, 2.0][:seconds],
            "decayed_loss": [None, None, 1.5][:seconds],
        }
        for seconds in (1, 3)
    ),
]  # fmt: skip
"""A life, and one that went on."""
DRAWN: dict[str, tuple[list[dict[str, Any]], set[str]]] = {
    "ablation": (ABLATED, {"main-effects", "perplexity-parameters", "minutes-parameters", *LEARNING}),
    "overfitting": (ABLATED[:2], {"overfitting", *LEARNING}),
    "batch_size": (batch_size_rows.all_rows(), {"batch-size"}),
    "curves": (CURVES, {"curves"}),
    "estimates": (estimates_rows.all_rows(), {"estimates"}),
    "loader": (loader_rows.all_rows(), {"loading"}),
    "methods": ([*methods_rows.method_rows(), *SEEDS], {"methods", "shapes"}),
    "precision": (precise(LOSSES, {"fp32": 60.0, "bf16": 30.0}), {"precisions"}),
    "scaling": (scaling_rows.all_rows(), {"speed-up", "communication"}),
    "stages": (methods_rows.stage_rows(), {"stages", "stages-bars"}),
    "transfer": (transferred(), {"transfer-width", "transfer-depth"}),
}
"""The rows of each experiment, and the pictures that there are of them."""
width = PICTURES["transfer"][0]
KNOWN = {"95", "65,000"}
"""What legends may say beside the data: of intervals, and the vocabulary of a report."""


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Drawn:
    """drawn(name): the data of its pictures by their names, and what was told; each is drawn once"""

    @cache
    def made(name: str) -> tuple[dict[str, pd.DataFrame], str]:
        written = study_of_trials if name in LISTED else study_of_rows
        study = written(tmp_path_factory.mktemp("runs") / name, name, DRAWN[name][0])
        with contextlib.redirect_stdout(io.StringIO()) as out:
            do(PlotSettings, ["experiment", str(study.folder)])
        images, data = ({path.stem: path for path in study.folder.glob(f"*.{kind}")} for kind in ("png", "csv"))
        assert images.keys() == data.keys()
        return {stem: pd.read_csv(path) for stem, path in data.items()}, out.getvalue()

    return made


@pytest.mark.parametrize("name", DRAWN)
def test_a_study_is_drawn_as_the_experiment_that_it_is(drawn: Drawn, name: str) -> None:
    data, told = drawn(name)
    lines = told.splitlines()
    assert data.keys() == DRAWN[name][1] and len(lines) == 2 * len(data)
    for files, legend in zip(lines[::2], lines[1::2], strict=True):
        written = {f"{cell:g}" if isinstance(cell, float | int) else cell for cell in data[Path(files).stem].stack()}
        figures = {*re.findall(r"\b\d[\d,.]*\b", legend)}
        assert legend.endswith(".") and figures <= KNOWN | written, legend


def test_of_a_configuration_the_longest_life_is_drawn_and_what_was_measured(drawn: Drawn) -> None:
    table = drawn("curves")[0]["curves"]
    assert table[table["kind"] == "valid"][["seconds", "loss"]].to_numpy().tolist() == [[0.5, 3.0], [1.5, 2.0]]
    assert table[table["kind"] == "decayed"]["loss"].to_list() == [1.5]


def test_the_right_formula_is_on_the_line_and_the_reports_is_not(drawn: Drawn) -> None:
    table = drawn("estimates")[0]["estimates"].set_index(["formula", "by"])
    ratio = table["measured"] / table["estimated"]
    assert ratio.loc["right", "FlopCounterMode"].to_list() == pytest.approx([1.0] * 5)
    assert ratio.loc["right", "published"].between(0.95, 1.05).all(), "its measurements agree with the right formula"
    assert (ratio.loc["report's"] > 2.5).all() and len(table) == 2 * 3 * 5


def test_the_largest_batch_fits_though_it_ran_out_of_memory_when_it_was_timed(tmp_path: Path) -> None:
    batches = [batch_size_rows.batch(rows) for rows in (32, 512, 2048)]
    once = batch_size_rows.largest() | {"timed": {"ended": "out of memory"}}
    drawn = batch_size(study_of_rows(tmp_path / "x", "batch_size", [*batches, once]))
    data, memory = drawn.data.set_index("batch"), drawn.figure.axes[1]
    ended = {32: "fits", 128: "fits", 512: "fits", 950: "fits", 955: "out of memory", 2048: "out of memory"}
    assert data["ended"].to_dict() == ended
    assert data["memory_bytes"].dropna().index.to_list() == [32, 128, 512, 950]
    assert data["epoch_seconds"].dropna().index.to_list() == [32, 512], "what did not fit has no time"
    shown = {line.get_label(): list(line.get_xdata()) for line in memory.lines}
    assert shown["out of memory"] == [955, 2048]
    assert shown["largest that fits: 950"] == [950, 950] and shown["predicted: 960"] == [960, 960]


@pytest.mark.parametrize(("limit", "said"), [(2e9, "memory limit"), (None, "most taken")])
def test_the_line_of_the_memory_limit_is_told_and_is_of_a_colour_of_its_own(tmp_path: Path, limit: Any, said: str):
    rows = [each | {"limit_bytes": limit} for each in batch_size_rows.all_rows()]
    _, memory = batch_size(study_of_rows(tmp_path / "x", "batch_size", rows)).figure.axes
    legend = memory.get_legend()
    assert legend is not None
    colors = {
        text.get_text(): handle.get_color()
        for text, handle in zip(legend.get_texts(), legend.get_lines(), strict=True)
    }  # fmt: skip
    assert said in colors and [*colors.values()].count(colors[said]) == 1


def test_lines_and_marks_of_precisions_are_told(tmp_path: Path) -> None:
    study = study_of_trials(tmp_path / "x", "precision", precise(LOSSES, {"fp32": 60.0, "bf16": 30.0}))
    legend = precisions(study).figure.axes[0].get_legend()
    assert legend is not None
    drawn = {text.get_text(): line for text, line in zip(legend.get_texts(), legend.get_lines(), strict=True)}
    assert drawn["training loss"].get_linestyle() == "-" and drawn["validation loss"].get_marker() == "o"
    assert drawn["validation loss"].get_linestyle() == "None"


def test_a_largest_batch_that_is_predicted_to_be_none_is_drawn_as_none(tmp_path: Path) -> None:
    rows = [batch_size_rows.batch(32), batch_size_rows.largest() | {"foretold": 0}]
    _, memory = batch_size(study_of_rows(tmp_path / "x", "batch_size", rows)).figure.axes
    shown = " ".join(str(line.get_label()) for line in memory.lines)
    assert "largest that fits: 950" in shown and "predicted" not in shown


def test_a_panel_for_each_kind_of_data_and_our_own_batches_beside(tmp_path: Path) -> None:
    picture = loading(study_of_rows(tmp_path / "x", "loader", loader_rows.all_rows()))
    images, text = picture.figure.axes
    assert len(text.get_lines()) == len(images.get_lines()) + 1
    whole = picture.data[(picture.data["kind"] == "whole") & (picture.data["source"] == "0")]
    assert whole["seconds"].to_list() == pytest.approx([loader_rows.USE + loader_rows.LOAD] * 2)


def test_methods_are_drawn_with_all_that_was_measured_and_seeds_are_one_point(drawn: Drawn) -> None:
    points, of_shapes = (drawn("methods")[0][name] for name in ("methods", "shapes"))
    assert len(points) == 2 * 4 * 5 and set(points["steps"]) == {methods_rows.STEPS}, "one batch has more"
    assert set(of_shapes["way"]) == {"fp32"} and len(of_shapes) == 6
    seeds = of_shapes.set_index("shape").loc["d128 h4 l4"]
    wanted = mean_interval([1.800, 1.802, 1.804])
    assert seeds[["valid_loss", "low", "high"]].to_list() == pytest.approx(wanted) and seeds["seeds"] == 3


def test_methods_have_the_shapes_that_were_trained_in_several_ways_and_bars_over_seeds(tmp_path: Path) -> None:
    """A shape that was trained in one way alone has the least loss of all, and is not drawn."""
    alone, rows = methods_rows.method_row("full precision", (184, 4, 2), valid_loss=1.0), methods_rows.method_rows()
    drawn = methods_scatter(study_of_trials(tmp_path / "methods", "methods", [alone, *rows, *SEEDS]))
    assert alone["valid_loss"] < drawn.data["valid_loss"].min() and drawn.data["shape"].nunique() == 4
    bars = next(each for each in drawn.figure.axes[0].collections if isinstance(each, LineCollection))
    reach = sorted(float(np.ptp(bar[:, 1])) for bar in bars.get_segments())
    assert reach == pytest.approx(sorted(drawn.data["high"] - drawn.data["low"])) and reach[-1] > reach[-2] == 0


def test_what_no_lease_paid_to_count_has_an_empty_panel(tmp_path: Path) -> None:
    rows = [row | {"step_bytes": None} for row in methods_rows.method_rows()]
    seconds, memory = methods_scatter(study_of_trials(tmp_path / "methods", "methods", rows)).figure.axes[:2]
    assert seconds.get_xscale() == "log" != memory.get_xscale()


def test_what_a_method_takes_is_the_same_in_its_picture_and_its_table(tmp_path: Path) -> None:
    """One seed was disturbed, and of one no lease paid to count."""
    taken = ((0.05, 4e7), (0.05, 4e7), (0.5, None))
    rows = [methods_rows.method_row("full precision", seed=seed, step_seconds=seconds, step_bytes=held)
            for seed, (seconds, held) in enumerate(taken)]  # fmt: skip
    (drawn,) = methods_table(study_of_trials(tmp_path / "methods", "methods", rows)).to_dict("records")
    (run,) = methods.runs_of(rows)
    assert (drawn["seconds"], drawn["step_bytes"]) == (run.seconds, run.peak) == (100.0, 4e7)


@pytest.mark.parametrize("draw", [methods_scatter, shapes])
def test_one_method_is_no_comparison(tmp_path: Path, draw: Any) -> None:
    with pytest.raises(UserError, match="yet; go on with it"):
        draw(study_of_trials(tmp_path / "methods", "methods", SEEDS))


@pytest.mark.parametrize("name", sorted({*LISTED} - {"transfer"}))
def test_a_seed_that_diverged_is_told_to_be_left_out(drawn: Drawn, tmp_path: Path, name: str) -> None:
    *rows, last = DRAWN[name][0]
    assert "diverged" not in drawn(name)[1]
    lost = study_of_trials(tmp_path / name, name, [*rows, last | {"valid_loss": None}])
    for draw in PICTURES[name]:
        assert draw(lost).text.endswith(" Left out: 1 training that diverged.")


def test_a_training_that_diverged_is_told_where_it_would_have_been_drawn(tmp_path: Path) -> None:
    """Of another way it is none of the shapes; of a shape that was trained in one way, none of the methods."""
    rows = [*methods_rows.method_rows(), *SEEDS]
    other_way = next(row for row in rows if row["config"]["precision"] != SEEDS[0]["config"]["precision"])
    one_way = methods_rows.method_row("full precision", (184, 4, 2), seed=9)
    told = {}
    for name, lost in {"other way": other_way, "one way": one_way}.items():
        every = [*(row for row in rows if row is not lost), lost | {"valid_loss": None}]
        study = study_of_trials(tmp_path / name, "methods", every)
        told[name] = ["diverged" in draw(study).text for draw in (methods_scatter, shapes)]
    assert told == {"other way": [True, False], "one way": [False, True]}


def test_stages_are_drawn_in_seconds_and_in_shares(drawn: Drawn) -> None:
    seconds, shares = (drawn("stages")[0][name] for name in ("stages-bars", "stages"))
    assert seconds.drop(columns="way").sum(axis=1).to_list() == pytest.approx([21.0, 10.5, 5.25])
    assert shares.drop(columns="way").sum(axis=1).to_list() == pytest.approx([1.0] * 4)


def test_a_bar_of_stages_is_what_a_training_took_as_its_table_has_it(tmp_path: Path) -> None:
    rows = methods_rows.disturbed_rows()
    picture, (table,) = stage_bars(study_of_rows(tmp_path / "x", "stages", rows)), stages.tables(rows)
    assert [text.get_text() for text in picture.figure.axes[0].texts] == [" 11.0 s"]
    told = [float(cells[1]) for cells in table.rows[:-1]]
    assert picture.data.iloc[0][1:].to_list() == pytest.approx(told, abs=0.01)


def test_parts_of_a_step_are_the_step_and_speed_ups_lie_in_their_intervals(drawn: Drawn) -> None:
    parts, gained = (drawn("scaling")[0][name] for name in ("communication", "speed-up"))
    together = (parts["unsynced_seconds"] + parts["exposed_seconds"]) / parts["step"]
    assert set(parts["devices"]) == {2, 4} and together.to_list() == pytest.approx([1.0] * (6 + 4))
    assert (gained["low"] <= gained["speed_up"]).all() and (gained["speed_up"] <= gained["high"]).all()


def test_what_was_disturbed_is_hollow_and_nothing_else(tmp_path: Path) -> None:
    rows = scaling_rows.all_rows()
    for each in rows:
        each["disturbed"] = each["devices"] == 4
    picture = speed_up(study_of_rows(tmp_path / "x", "scaling", rows))
    (plot,) = picture.figure.axes
    white = [
        each for each in plot.collections if isinstance(each, PathCollection) and np.all(each.get_facecolor() == 1)
    ]
    marked = [tuple(point) for each in white for point in each.get_offsets()]
    disturbed = picture.data[picture.data["disturbed"]]
    assert disturbed["devices"].unique().tolist() == [4] and len(disturbed) == len(marked)
    assert sorted(marked) == sorted(disturbed[["devices", "speed_up"]].itertuples(index=False, name=None))
    assert "disturbed" in [text.get_text() for text in plot.get_legend().get_texts()]


def test_speed_ups_by_hand(tmp_path: Path) -> None:
    """A point that was measured again counts once, and one that was skipped not at all."""
    rows = [scaling_rows.step(*of) for of in ((1, 32), (1, 32), (1, 64), (2, 64), (1, 128))]
    for each, seconds in zip(rows, (9.0, 1.0, 2.0, 1.25, 1.0), strict=True):
        each["step_seconds"] = [seconds, seconds * 0.9, seconds * 1.1]
        each["rounds"] = {"step": [seconds * share for share in (0.9, 1.0, 1.0, 1.0, 1.1)]}
    rows[-1]["skipped"] = "why"
    study = study_of_rows(tmp_path / "x", "scaling", rows)
    table = steps_table(study)
    assert table[["batch", "step"]].to_numpy().tolist() == [[32, 1.0], [64, 2.0], [64, 1.25]]
    found = speed_ups(study).set_index(["kind", "devices", "batch"])
    assert found.loc["weak", 2, 32]["speed_up"] == pytest.approx(1.6)
    assert found.loc["strong", 2, 64]["speed_up"] == pytest.approx(1.6)
    rounds = (each["rounds"]["step"] for each in (rows[1], rows[3]))
    ends = found.loc["weak", 2, 32][["speed_up", "low", "high"]] / 2
    assert ends.to_list() == pytest.approx(ratio(*rounds)), "as the table has it"
    assert (found.loc[:, 1, :][["low", "high"]] == 1).all(axis=None), "itself, it knows without a doubt"


def test_losses_that_lie_close_are_named_apart(tmp_path: Path) -> None:
    sizes = {"heads": 4, "layers": 4, "dropout": 0.0, "precision": "fp32", "seed": 0}
    losses = {64: 3.30186, 128: 3.30075, 256: 3.2999}
    rows = [row(REPORT, {"d_model": width, **sizes}, loss) for width, loss in losses.items()]
    (plot,) = shapes(study_of_trials(tmp_path / "x", "methods", rows)).figure.axes
    plot.figure.draw_without_rendering()
    low, high = plot.get_xlim()
    shown = [tick.label1 for tick in plot.xaxis.get_major_ticks() if low <= tick.get_loc() <= high]
    places = [text.get_window_extent() for text in shown]
    assert {text.get_text()[:3] for text in shown} <= {"3.2", "3.3"}, "each whole"
    assert len(places) > 1 and all(one.x1 < other.x0 for one, other in itertools.pairwise(places))


def test_only_what_differs_in_one_dimension_alone_is_compared(tmp_path: Path) -> None:
    table = ablation_table(study_of_trials(tmp_path / "x", "ablation", ABLATED))
    ours = table[table["of"] == OURS]
    assert len(table) - len(ours) == 33 and len(ours) == 2 * len(SHAPES)
    layers, dropout = (losses_against_mean(ours, name) for name in ("layers", "dropout"))
    assert layers["against"].abs().max() == pytest.approx(0)
    assert dropout.groupby("dropout")["against"].mean().to_list() == pytest.approx([-0.4, 0.4])
    assert losses_against_mean(ours, "heads").empty


def test_a_life_whose_steps_were_not_timed_is_left_out(tmp_path: Path) -> None:
    """As where the process that was to time them was killed."""
    untimed = CURVES[1] | {"key": "untimed", "config": {"d_model": 64}}
    assert set(lives(study_of_rows(tmp_path / "study", "curves", [*CURVES, untimed])).data["d_model"]) == {32}


def test_words_whose_perplexity_is_no_float_have_the_largest(tmp_path: Path) -> None:
    rows = [row({"steps": 100}, {"d_model": 32, "heads": 4, "layers": 2, "dropout": 0.1, "seed": 1}, 500.0)]
    found = ablation_table(study_of_trials(tmp_path / "x", "ablation", rows))
    assert np.isfinite(found.loc[found["of"] == OURS, "word_perplexity"]).all()


def test_learning_curves_are_means_over_seeds_with_each_report_once(drawn: Drawn) -> None:
    tables = drawn("ablation")[0]
    curves = list(tables["loss-epochs"].groupby(list(NAMES)))
    assert len(curves) == len(SHAPES) and set(tables["loss-epochs"]["seeds"]) == {2}
    for shape, curve in curves:
        assert curve["steps"].to_list() == [25, 50, 75, 100] and curve["epochs"].to_list() == [0.5, 1.0, 1.5, 2.0]
        assert curve["minutes"].to_list() == pytest.approx([part / 60 for part in range(1, 5)])
        ends = [row["valid_loss"] for row in ABLATED if tuple(row["config"][name] for name in NAMES) == shape]
        assert curve["valid_loss"].iloc[-1] == pytest.approx(sum(ends) / 2)
    for what in ("loss", "perplexity"):
        columns = tables[f"{what}-minutes"].filter(regex=what)
        assert columns.shape[1] == 2 and (columns.iloc[:, 0] > columns.iloc[:, 1]).all(), "both splits"


def test_of_several_seeds_overfitting_is_drawn_once_and_their_mean(tmp_path: Path) -> None:
    sizes = {"d_model": 32, "heads": 4, "layers": 2}
    rows = [row(REPORT, {**sizes, "dropout": p, "seed": seed}, 3.0 + seed) for p in (0.0, 0.1) for seed in (0, 1, 5)]
    picture = overfitting(study_of_trials(tmp_path / "x", "overfitting", rows))
    (plot,) = picture.figure.axes
    assert [text.get_text() for text in plot.get_legend().get_texts()] == ["dropout 0", "dropout 0.1"]
    assert set(picture.data["seeds"]) == {3} and [line.get_ydata()[-1] for line in plot.lines[::2]] == [5.0, 5.0]


def test_each_configuration_has_a_line_of_its_own(tmp_path: Path) -> None:
    """Those that differ in their heads alone too; the heads are in the legend, and seeds are one line."""
    shapes = [(64, heads, layers, p) for heads in (4, 8, 32) for layers in (2, 4) for p in (0.1, 0.5)]
    rows = [
        row(REPORT, dict(zip(NAMES, shape, strict=True)) | {"seed": seed}, 5.0) for shape in shapes for seed in (0, 1)
    ]
    drawn = learning(study_of_trials(tmp_path / "x", "ablation", rows), "perplexity", "epochs").figure
    lines = [line for line in drawn.axes[0].get_lines() if line.get_alpha() is None]
    looks = {(line.get_color(), line.get_linestyle(), line.get_marker()) for line in lines}
    assert len(looks) == len(lines) == len(shapes)
    (legend,) = drawn.legends
    assert {"4 heads", "8 heads", "32 heads"} <= {each.get_text() for each in legend.get_texts()}


def test_curves_end_where_the_rows_do(drawn: Drawn) -> None:
    data = drawn("precision")[0]["precisions"]
    ends = data[data["steps"] == 100].set_index("precision")[["valid_loss", "low", "high"]]
    assert {*ends.index} == {*LOSSES}
    for precision, losses in LOSSES.items():
        assert ends.loc[precision].to_list() == pytest.approx(mean_interval(losses))


def test_one_rate_has_an_axis_around_it_and_no_warning(tmp_path: Path) -> None:
    rows = transferred()
    rate = rows[0]["config"]["learning_rate"]
    alone = [each for each in rows if each["config"]["learning_rate"] == rate]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plots = width(study_of_trials(tmp_path / "x", "transfer", alone)).figure.axes
    for plot in plots:
        low, high = plot.get_xlim()
        assert plot.get_xscale() == "log" and low < rate < high < 2 * low


def test_each_panel_has_a_line_for_each_shape_and_a_loss_that_diverged_is_nowhere(tmp_path: Path) -> None:
    study = study_of_trials(tmp_path / "x", "transfer", diverged(transferred(seeds=2), 3))
    lines = [plot.get_lines() for plot in width(study).figure.axes]
    assert [len(each) for each in lines] == [2 * 3 + 1] * 2, "each with its best rate marked, and the base's"
    table = losses_table(study)
    assert len(table) == 7 * 7 and table["loss"].isna().sum() == 7, "seeds are one point"
    assert len(line_of(table, "d_model", 32, True)) == len(line_of(table, "d_model", 32, False)) == 7
    assert table[table["base"]]["loss"].min() == pytest.approx(1.505)
    lacking = parabola({}, seeds=2)[:-1]
    fewer = losses_table(study_of_trials(tmp_path / "y", "transfer", lacking))
    assert fewer["loss"].min() == pytest.approx(1.5), "of the seed that has every rate"


ALONE = [each for each in scaling_rows.all_rows() if each["devices"] == 1]
SKIPPED = [scaling_rows.step(1, 32) | {"skipped": "why"}]
LOSSLESS = [CURVES[0], CURVES[2] | {"valid_loss": [None], "decayed_loss": [None]}]
TOGETHER = [each for each in scaling_rows.all_rows() if each["devices"] > 1]


@pytest.mark.parametrize(
    ("draw", "name", "rows", "said"),
    [
        (estimates, "estimates", [estimates_rows.parameters()], "has no block of estimates yet"),
        (batch_size, "batch_size", [batch_size_rows.batch(8192)], "timed no batch yet"),
        (loading, "loader", [loader_rows.settings()], "has no numbers of workers yet; go on with it"),
        (shapes, "methods", [], "no trial that came to its end yet; go on with it"),
        (speed_up, "scaling", ALONE, "measured one device only; measure more with --devices"),
        (speed_up, "scaling", TOGETHER, "measured no step on one device; go on with it"),
        (communication, "scaling", ALONE, "measured one device only; measure more with --devices"),
        (main_effects, "ablation", [], "no trial that came to its end yet; go on with it"),
        (speed_up, "scaling", [], r"measured nothing of scaling \(it ended before\); go on with it: .* --resume /"),
        (speed_up, "scaling", SKIPPED, r"measured nothing of scaling \(why\); go on with it: .* --resume /"),
        (lives, "curves", LOSSLESS, "has no life with a loss; begin again with"),
        (width, "transfer", parabola({}), "measured one d_model only; go on with it"),
        (width, "transfer", transferred()[7:], "has not measured the base yet; go on with it"),
    ],
)
def test_where_there_is_nothing_to_draw_it_is_said(tmp_path: Path, draw: Any, name: str, rows: Any, said: str) -> None:
    written = study_of_trials if rows and name in LISTED else study_of_rows
    with one_line(said):
        draw(written(tmp_path / name, name, rows))


@pytest.mark.parametrize("rows", [[], SKIPPED])
def test_an_experiment_that_runs_is_waited_for_as_it_cannot_be_resumed(tmp_path: Path, rows: Any) -> None:
    study = study_of_rows(tmp_path / "scaling", "scaling", rows)
    (study.folder / HEARTBEAT_FOLDER).mkdir()
    write_heartbeat(study.folder, DRIVER, 0, 0.0)
    with one_line(r"has measured nothing of scaling yet; wait for its first row$"):
        speed_up(study)


def test_a_search_has_no_picture_of_an_experiment(write: Callable[..., Written]) -> None:
    searched = write()
    searched.trial("t001")
    with pytest.raises(UserError, match=r"is a search, of which there is no such picture: name a study of .*scaling"):
        do(PlotSettings, ["experiment", str(searched.folder)])


PEAKS = {
    "bytes_per_second": {"1": 1e10, "2": 2e10},
    "flops_per_second": {"fp32": {"1": 1e11, "2": 2e11}, "bf16": {"1": 4e11, "2": 8e11}},
}


def timed(study: Written, kernel: str, implementation: str = "njit", **columns: object) -> None:
    row = {
        "at": 0.0, "kernel": kernel, "implementation": implementation, "size": 1000, "shape": "[]", "dtype": "float64",
        "device": "CPU", "threads": 1, "status": "timed", "ratios": "{}", "values_seconds": "[]", "unstable": 0,
        "bytes": 24_000, "flops": 1000, "median_seconds": 24e-7,
    }  # fmt: skip
    study.journal.insert("kernels", row | columns)


@pytest.fixture
def study(write: Callable[..., Written]) -> Written:
    made = write("kernels", kernels=["vector_add"], peaks={"CPU": PEAKS})
    timed(made, "vector_add")
    timed(made, "vector_add", "c", median_seconds=48e-7)
    return made


def rows(study: Written) -> pd.DataFrame:
    return roofline_table(open_kernels(study.folder)).set_index(["kernel", "implementation", "threads"])


def test_rate_and_roof_are_of_flops_and_bytes(study: Written) -> None:
    timed(study, "vector_add", "njit-parallel", threads=2, median_seconds=12e-7)
    found = rows(study)
    assert found["intensity"].tolist() == pytest.approx([1 / 24] * 3)
    assert found["rate"].tolist() == pytest.approx([1000 / 24e-7, 1000 / 48e-7, 1000 / 12e-7])
    assert found["roof"].tolist() == pytest.approx([1e10 / 24, 1e10 / 24, 2e10 / 24])


def test_where_arithmetic_is_dense_products_are_the_roof(study: Written) -> None:
    timed(study, "dense", flops=24_000_000)
    assert rows(study).loc[("dense", "njit", 1), "roof"] == 4e11


def test_what_is_unstable_or_has_no_arithmetic_or_a_larger_size_is_left_out(study: Written) -> None:
    timed(study, "triad", unstable=1)
    timed(study, "copy", flops=0)
    timed(study, "monte_carlo_pi", bytes=0)
    timed(study, "softmax", median_seconds=None)
    timed(study, "vector_add", size=10)
    assert rows(study).index.tolist() == [("vector_add", "njit", 1), ("vector_add", "c", 1)]
    assert rows(study)["size"].tolist() == [1000, 1000]


def test_a_machine_without_peaks_has_no_roof(write: Callable[..., Written]) -> None:
    study = write("kernels", kernels=["vector_add"])
    timed(study, "vector_add")
    assert rows(study)["roof"].isna().all()


def test_a_study_without_rows_is_refused(write: Callable[..., Written]) -> None:
    with pytest.raises(ValueError, match=r"^kernels: no row"):
        roofline(open_kernels(write("kernels", kernels=["copy"]).folder))


def test_where_all_rows_are_unstable_an_idle_machine_is_advised(write: Callable[..., Written]) -> None:
    """A larger budget alone would give the same again."""
    study = write("kernels", kernels=["triad"])
    timed(study, "triad", unstable=1)
    with one_line("idle machine"):
        roofline(open_kernels(study.folder))


def test_the_command_writes_a_picture_and_its_data(study: Written, tmp_path: Path, printed: Printed) -> None:
    timed(study, "softmax", "cuda-shared", device="GPU", threads=None, flops=5000, bytes=8000)
    told = printed(PlotSettings, "roofline", study.folder, "--out", tmp_path / "here")
    assert "roofline.csv" in told and (tmp_path / "here" / "roofline.png").exists()
    drawn = pd.read_csv(tmp_path / "here" / "roofline.csv")
    assert drawn["kernel"].tolist() == ["vector_add", "vector_add", "softmax"]
    assert drawn["threads"].tolist() == [1, 1, 0]
