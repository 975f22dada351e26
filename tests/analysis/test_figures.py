"""The pictures of studies: what they draw is what the journal says; two studies compared; how their work grows."""

import cProfile
import csv
import math
import pstats
import random
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import exp
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb

from analysis.figures import comparison_rows, draw_all, trainings
from analysis.page import FAMILY_PICTURES
from analysis.plots import dimensions as effects_file
from analysis.plots.budget import bills, burn_down, memory, prices, timeline
from analysis.plots.dimensions import comparable_measurements, effects, importances, precision
from analysis.plots.search import curves, front, parallel_coordinates, progress, size_curve
from analysis.ranking import ranking, section_title
from analysis.settings import PlotSettings
from analysis.spending import slot_hold_times, spending
from analysis.study import Results, Study, open_studies, open_study
from analysis.style import CHARGE_COLORS, Picture, byte_axis, byte_ticks, lay_out, level_styles, new_figure
from analysis.tables import GIB, MIB, short_memory
from tests.analysis.conftest import FACTS, Printed, Written, one_line, results_of, search, study_of_trials
from tests.training_rows import row
from tune.arithmetic import mean_interval
from tune.errors import UserError
from tune.reports import LARGEST_LOG
from tune.search_space import DIMENSIONS
from tune.store.heartbeat import DRIVER, HEARTBEAT_FOLDER, write_heartbeat


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Of a search of some size."""
    return results_of(search(tmp_path_factory.mktemp("runs") / "searched"))


@pytest.mark.parametrize("draw", FAMILY_PICTURES)
def test_an_unknown_family_is_one_line(found: Results, draw: Callable[..., Picture]) -> None:
    with one_line("'none'"):
        draw(found, "none")


def test_several_texts_are_never_in_one_picture(write: Callable[..., Written]) -> None:
    studies = write("a"), write("b", corpora={"nanogpt": {"sha256": "b" * 64, "vocabulary": 65}})
    for study in studies:
        study.trial("t1")
        study.report("t1", 5.0)
    with pytest.raises(ValueError, match="do not compare"):
        front(results_of(*studies), "nanogpt")


def test_rungs_of_another_length_share_no_curve_and_no_front(write: Callable[..., Written]) -> None:
    """What compares at the furthest has both: the efficiencies are how far its trials lie below the curve."""
    short, long = write("short"), write("long", rung_seconds={"nanogpt": [20.0]})
    for study, name, low in ((short, "s", 2.0), (long, "l", 5.0)):
        for number in range(5):
            study.trial(f"{name}{number}", parameters=10 ** (5 + number))
            study.report(f"{name}{number}", low + (3 - number) ** 2 / 9)
    both = results_of(short, long)
    drawn = size_curve(both, "nanogpt")
    rows = drawn.data[drawn.data["study"] == "long"]
    x, y = np.log(drawn.figure.axes[0].lines[0].get_xydata()).T
    below = np.interp(np.log(rows["parameters"]), x, y) - np.log(rows["perplexity"])
    assert below.to_numpy() == pytest.approx(rows["efficiency"].to_numpy())
    drawn = front(both, "nanogpt")
    assert any(text.get_text().startswith("winner: long/l3 ") for text in drawn.figure.axes[0].texts)
    assert min(drawn.figure.axes[0].lines[0].get_ydata()) == 5.0
    assert "Not all of one level compare" in drawn.text


@pytest.mark.parametrize(
    ("draw", "said"),
    [
        (size_curve, "no level .*; a larger cap has more"),
        (effects, "'nanogpt' tried one value of each dimension only"),
        (precision, "'nanogpt' tried only fp32"),
    ],
)  # fmt: skip
def test_of_one_trial_nothing_is_compared_and_a_curve_is_waited_for_where_the_search_goes_on(
    write: Callable[..., Written], draw: Callable[..., Picture], said: str
) -> None:
    study = write()
    study.trial("t1")
    study.report("t1", 5.0)
    with one_line(said):
        draw(results_of(study), "nanogpt")
    (study.folder / HEARTBEAT_FOLDER).mkdir()
    write_heartbeat(study.folder, DRIVER, 0, 0.0)
    with one_line("wait for them" if draw is size_curve else said):
        draw(results_of(study), "nanogpt")


def test_the_front_shows_each_trial_once_and_where_it_got_to_last(found: Results) -> None:
    data = front(found, "nanogpt").data
    assert data["level"].value_counts().to_dict() == {"rung 0": 15, "rung 1": 5, "decay": 2, "rung 2": 1}


def test_a_front_is_of_the_study_that_completed_a_rung_though_another_text_has_not_yet(
    write: Callable[..., Written],
) -> None:
    young, other = write("young", corpora={"nanogpt": {"sha256": "b" * 64, "vocabulary": 90}}), write("other")
    young.trial("t1", state="running")
    other.trial("t1")
    other.report("t1", 5.0)
    (named,) = front(results_of(young, other), "nanogpt").figure.axes[0].texts
    assert named.get_text().startswith("winner: other/t1 ")


def test_of_trials_with_one_name_in_two_studies_one_is_the_winner(write: Callable[..., Written]) -> None:
    for name, perplexity, parameters in (("one", 5.0, 10**6), ("two", 4.0, 10**7)):
        study = write(name)
        study.trial("t1", parameters=parameters)
        study.report("t1", perplexity, training_seconds=5.0, steps=5)
    folder = study.folder.parent
    both = Results(studies=open_studies([folder / "one", folder / "two"]))
    named = {text.get_text().rsplit(" ", 5)[0] for text in front(both, "nanogpt").figure.axes[0].texts}
    assert named == {"one/t1", "winner: two/t1"}
    leading = {text.get_text() for text in curves(both, "nanogpt").figure.axes[0].texts}
    assert leading == {"one/t1", "two/t1"}, "one leads in each"


@pytest.mark.parametrize("loss", [800.0, -800.0])
@pytest.mark.parametrize("draw", [front, size_curve, curves, effects, parallel_coordinates])
def test_a_loss_is_drawn_though_its_perplexity_is_no_float(
    write: Callable[..., Written], draw: Callable[..., Picture], loss: float
) -> None:
    """Beside one that is."""
    study = write()
    for number in range(6):
        shape = {"d_model": 64 * (number + 1), "heads": 2 ** (number % 2)}
        study.trial(f"t{number}", parameters=10**6 * (number + 1), created=number, **shape)
        own = loss - number if number < 5 else 1.0
        for part in (1, 2):
            told = {"valid_loss": own, "training_seconds": 5.0 * part, "steps": 5 * part}
            study.report(f"t{number}", exp(min(own, LARGEST_LOG)), rung=0 if part == 2 else None, **told)
    assert draw(results_of(study), "nanogpt").svg()


def test_a_reason_for_which_several_pictures_are_missing_is_told_once(
    found: Results, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def lacking() -> Picture:
        raise UserError("there are too few")

    draw_all([lacking, partial(curves, found, "nanogpt"), lacking], tmp_path)
    assert capsys.readouterr().out.count("there are too few") == 1


@pytest.mark.parametrize("running", [False, True])
def test_the_burn_down_begins_with_the_cap_never_rises_and_ends_with_what_is_left(
    searched: Written, running: bool
) -> None:
    if running:
        searched.slot(2, opened=0.0)
        searched.lease("t001", 2, rung=None, price=1.0, opened=0.0, charged=None)
    study = results_of(searched).studies[0]
    data, spent = burn_down(study).data, spending(study)
    assert data["left"].iloc[0] == spent.cap
    assert (data["left"].diff().dropna() <= 1e-9).all()
    assert (data[list(CHARGE_COLORS)].diff().dropna() >= -1e-9).all().all()
    assert data["left"].iloc[-1] == pytest.approx(spent.cap - spent.spent)
    taken = slot_hold_times(study)
    for moment, left in data[["seconds", "left"]].itertuples(index=False):
        of_slots = (moment - taken["opened"]).clip(0, taken["until"] - taken["opened"]) * taken["share"]
        assert left <= spent.cap - of_slots.sum() + 1e-9, "what is held is spent, though its work is not reported yet"
    assert {what: data[what].iloc[-1] for what in CHARGE_COLORS} == pytest.approx(spent.by_kind)


def test_the_bills_add_up_to_the_charges(found: Results) -> None:
    study = found.studies[0]
    total = study.read("SELECT SUM(seconds) AS seconds FROM charges WHERE trial IS NOT NULL")["seconds"].item()
    assert bills(study).data[list(CHARGE_COLORS)].to_numpy().sum() == pytest.approx(total)


def test_prices_are_compared_with_costs(found: Results) -> None:
    assert prices(found.studies[0]).data["ratio"].to_numpy() == pytest.approx(1.1)


def test_only_the_segment_in_which_a_trial_diverged_is_marked(
    write: Callable[..., Written], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many marks are pixels, which keep the page small."""
    monkeypatch.setattr("analysis.plots.budget.MANY", 1)
    study = write()
    study.trial("t1", state="stopped", reason="diverged")
    for rung in range(3):
        study.lease("t1", 0, rung=rung, price=10.0, opened=20.0 * rung, charged=11.0)
    marks = prices(results_of(study).studies[0]).figure.axes[0].collections
    assert {str(each.get_label()): len(each.get_offsets()) for each in marks} == {"lease": 2, "diverged": 1}
    assert [each.get_rasterized() for each in marks] == [True, False]


def test_every_segment_is_drawn_though_each_run_of_a_search_has_slots_of_its_own(write: Callable[..., Written]) -> None:
    """Of what was held at once a place is as good as another's that is over."""
    study = write("study")
    study.trial("t1")
    for slot in range(60):
        begun = 10.0 * (slot // 12)
        study.slot(slot, opened=begun, closed=begun + 9)
        study.lease("t1", slot, rung=0, price=5, opened=begun + 1, charged=5.0)
    study.journal.close()
    drawn = timeline(open_study(study.folder))
    assert len(drawn.data) == 60 and "left out" not in drawn.text
    (plot,) = drawn.figure.axes
    assert len(plot.get_yticks()) == 12 and sum(len(bars.get_paths()) for bars in plot.collections) == 60


def test_a_segment_that_is_not_over_is_drawn_as_far_as_the_burn_down_goes(searched: Written) -> None:
    """Else its slot would seem idle."""
    searched.slot(2, opened=5.0)
    searched.lease("t001", 2, rung=0, price=1.0, opened=5.0, charged=None)
    study = results_of(searched).studies[0]
    drawn = timeline(study)
    (plot,) = drawn.figure.axes
    bars = [bar.get_extents() for each in plot.collections for bar in each.get_paths()]
    assert len(bars) == len(drawn.data)
    (held,) = [bar for bar in bars if bar.y0 < 2 < bar.y1]
    assert (held.x0, held.x1) == pytest.approx((5.0, burn_down(study).data["seconds"].max()))


def test_memory_that_ran_out_is_shown_beside_what_was_measured(
    searched: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("analysis.plots.budget.MANY", 1)
    assert "24 times measured: 1.20 times" in memory(results_of(searched).studies[0]).text
    searched.journal.insert("memory", {"at": 0, "trial": "t001", "micro_batches": 2, "predicted": 2**30})
    drawn = memory(results_of(searched).studies[0])
    assert drawn.text.endswith("1 times it ran out.")
    assert [each.get_rasterized() for each in drawn.figure.axes[0].collections] == [True, False]


def test_ticks_of_bytes_are_what_their_labels_say() -> None:
    chance = random.Random(0)
    for _ in range(1000):
        low = 2 ** chance.uniform(20, 36)
        high = low * 2 ** chance.uniform(0.15, 12)
        ticks = byte_ticks(low, high)
        assert 2 <= len(ticks) <= 7 and low <= min(ticks) and max(ticks) <= high
        for tick in ticks:
            figure, unit = short_memory(tick).split()
            assert float(figure.replace(",", "")) * {"MiB": MIB, "GiB": GIB}[unit] == tick


@pytest.mark.parametrize(("low", "high"), [(109, 439), (22_016, 106_050), (37_864, 124_356), (100, 790), (3, 90_000)])
def test_names_of_ticks_of_bytes_do_not_touch(low: int, high: int) -> None:
    """On a logarithmic axis ticks at equal distances in bytes are nearest at its end."""
    figure, (plot,) = new_figure()
    byte_axis(plot.xaxis, [low * MIB, high * MIB])
    lay_out(figure)
    first, last = plot.get_xlim()
    names = zip(plot.get_xticks(), plot.get_xticklabels(), strict=True)
    shown = [name.get_window_extent() for tick, name in names if first <= tick <= last]
    assert len(shown) > 1
    assert all(left.x1 < right.x0 for left, right in pairwise(shown))


def test_effects_are_read_at_the_highest_rung_with_enough_trials(
    found: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    for enough, level in ((20, "rung 0"), (8, "rung 1"), (3, "rung 2"), (1000, "rung 0")):
        monkeypatch.setattr(effects_file, "ENOUGH", enough)
        assert set(comparable_measurements(found, "nanogpt")["level"]) == {level}
    devices = [f"device {number}" for number in range(len(found.reached))]  # each on its own: none compare
    apart = found.reached["device"].where(found.reached["level"] != "rung 1", devices)
    monkeypatch.setattr(Results, "reached", found.reached.assign(device=apart))
    monkeypatch.setattr(effects_file, "ENOUGH", 8)
    assert set(comparable_measurements(Results(studies=found.studies), "nanogpt")["level"]) == {"rung 0"}


def test_importances_of_few_different_trials_come_without_a_word_of_warning(found: Results) -> None:
    few = comparable_measurements(found, "nanogpt").iloc[[0, 1, 2] * 4]
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert importances(found, few, list(DIMENSIONS))["share"].sum() == pytest.approx(1)


def test_an_interval_of_an_importance_is_that_of_all_trials_though_a_resample_has_fewer(
    found: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = np.random.default_rng(0)
    many = pd.DataFrame({name: chance.choice([64, 128], 320) for name in ("d_model", "heads")})
    many["perplexity"] = 12 + 3 * (many["d_model"] + many["heads"]) / 128 + chance.normal(size=len(many))
    monkeypatch.setattr(effects_file, "DRAWS", 20)
    widths = []
    for most in (len(many), len(many) // 4):
        monkeypatch.setattr(effects_file, "MOST", most)
        shares = importances(found, many, ["d_model", "heads"])
        widths.append((shares["high"] - shares["low"]).sum())
    assert widths[1] < 1.5 * widths[0], "not twice as wide"


def test_a_dimension_beside_the_space_is_judged_and_drawn_too(write: Callable[..., Written]) -> None:
    study = write("varied")
    chance = random.Random(0)
    for number in range(24):
        rate = chance.choice([0.001, 0.002, 0.004])
        study.trial(f"t{number:03d}", learning_rate=rate, d_model=chance.choice([64, 128]), created=number)
        study.report(f"t{number:03d}", 5.0 + 100 * rate + chance.random() / 100)
    found = results_of(study)
    assert importances(found, comparable_measurements(found, "nanogpt"), found.dimensions).index[0] == "learning_rate"
    for draw in (effects, parallel_coordinates):
        assert "learning_rate" in draw(found, "nanogpt").data


def test_what_did_not_vary_has_no_panel_and_a_mean_of_few_no_interval(write: Callable[..., Written]) -> None:
    """Of two trials an interval would press all others."""
    study = write()
    for number in range(10):
        more = {"micro_batches": 2} if number < 5 else {}
        study.trial(f"t{number}", heads=8 if number < 2 else 4, dropout=number % 2 / 10, **more)
        study.report(f"t{number}", 5.0 + number, rung=None, final=1)
    drawn = effects(results_of(study), "nanogpt")
    panels = {plot.get_title(loc="left"): plot for plot in drawn.figure.axes if plot.axison}
    assert set(panels) == {"heads", "dropout", "importance (Optuna)"}
    assert [len(panels[name].containers) for name in ("heads", "dropout")] == [1, 2]
    assert "trials after the decay: each trial, and means, of 5 or more with 95 % intervals" in drawn.text
    assert drawn.text.endswith("Intervals of importances are of 90 %, by resampled trials.")
    assert "A line for each trial after the decay:" in parallel_coordinates(results_of(study), "nanogpt").text


def test_the_interval_of_a_mean_is_the_one_that_tables_have(write: Callable[..., Written]) -> None:
    """Student's: a bootstrap of five values would hold the truth in 79 of 100, where 90 are meant."""
    study, losses = write(), [1.0, 1.1, 1.2, 1.5, 1.9]
    for number, loss in enumerate(losses * 2):
        study.trial(f"t{number}", heads=4 if number < 5 else 8)
        study.report(f"t{number}", exp(loss))
    panel = effects(results_of(study), "nanogpt").figure.axes[0]
    wanted = mean_interval([loss - losses[2] for loss in losses])
    assert wanted is not None
    for container in panel.containers:
        ((below, above),) = container[2][0].get_segments()
        assert np.log1p([below[1] / 100, above[1] / 100]) == pytest.approx(wanted[1:])


def test_rungs_are_told_apart_without_colour() -> None:
    """Lightness falls with each rung, and no two share a marker."""
    styles = level_styles([f"rung {rung}" for rung in range(6)] + ["decay"])
    weights = np.array([0.2126, 0.7152, 0.0722])
    light = [float(weights @ np.array(to_rgb(color))) for color, _ in styles.values()][:-1]
    assert list(styles)[-1] == "decay" and light == sorted(light, reverse=True)
    assert len({marker for _, marker in styles.values()}) == len(styles)


def test_a_learning_curve_has_once_what_was_done_again_after_a_kill(write: Callable[..., Written]) -> None:
    """The first time is lost, though it came further and was faster; the last of several reports at a step counts."""
    study = write()
    study.trial("t1")
    for steps, seconds, perplexity in ((5, 1.0, 9.0), (10, 2.0, 7.0), (15, 3.0, 6.0), (10, 2.5, 8.0), (20, 4.0, 5.0)):
        study.report("t1", perplexity, steps=steps, training_seconds=seconds)
    study.report("t1", 4.0, steps=20, training_seconds=4.0, final=1)
    (line,) = curves(results_of(study), "nanogpt").figure.axes[0].collections[0].get_paths()
    assert line.vertices.tolist() == [[1.0, 9.0], [2.5, 8.0], [4.0, 4.0]]


@pytest.mark.parametrize("ended", ["turned", "final"])
def test_a_learning_curve_ends_where_training_ended_though_the_best_weights_are_kept(
    write: Callable[..., Written], ended: str
) -> None:
    study = write()
    study.trial("t1")
    for seconds, loss, last in ((1.0, 3.0, None), (3.0, 2.0, None), (5.0, 2.5, None), (5.0, 2.0, ended)):
        told = {"steps": int(seconds), "training_seconds": seconds, "valid_loss": loss, "ended": last}
        study.report("t1", math.exp(loss), final=int(last is not None), **told)
    assert curves(results_of(study), "nanogpt").data["valid_loss"].tolist() == [3.0, 2.0, 2.5]


def two(write: Callable[..., Written], **facts: object) -> tuple[Written, Written]:
    """Studies with one trial each; `facts` are the second's."""
    studies = write("a", settings={"budget": "1h", "seed": "0"}), write("b", **({"settings": {"budget": "1h"}} | facts))
    for study, perplexity in zip(studies, (6.0, 4.0), strict=True):
        study.trial("t1", parameters=1000)
        for rung, (at, value) in enumerate(((10.0, 9.0), (20.0, perplexity), (30.0, perplexity + 1))):
            study.charge("steps", 10.0, trial="t1", at=at)
            study.report("t1", value, rung=rung, at=at)
    return studies


def test_only_settings_that_differ_are_shown(write: Callable[..., Written]) -> None:
    shown = {name: values for name, *values in comparison_rows(*results_of(*two(write)).studies)}
    assert shown["--seed"] == ["0", "default"] and "--budget" not in shown
    assert shown["nanogpt: perplexity"] == ["7.000", "5.000"]


def test_perplexities_of_other_tokens_are_marked(write: Callable[..., Written]) -> None:
    studies = two(write)
    for alike in (True, False):
        shown = {name for name, *_ in comparison_rows(*results_of(*studies).studies)}
        assert ("nanogpt: perplexity" in shown) == ("nanogpt: perplexity, not of the same tokens" not in shown) == alike
        studies[1].report("t1", 5.0, rung=None, final=1, whole_perplexity=5.0)


def test_stars_are_said_to_be_of_the_whole_split_where_all_are(write: Callable[..., Written]) -> None:
    """One study may have had no time for it."""
    studies = two(write)
    studies[0].report("t1", 5.0, rung=None, final=1, whole_perplexity=5.0)
    assert "Stars are of the whole" in front(results_of(studies[0]), "nanogpt").text
    studies[1].report("t1", 5.0, rung=None, final=1)
    assert "Stars are of the whole" not in front(results_of(*studies), "nanogpt").text


def test_perplexities_in_another_context_are_marked(write: Callable[..., Written]) -> None:
    studies = two(write)
    for context, alike in ((64, True), (128, False)):
        for study, given in zip(studies, (64, context), strict=True):
            study.journal.write_facts(recipes={"nanogpt": {"context": given}})
        shown = {name: cells for name, *cells in comparison_rows(*results_of(*studies).studies)}
        assert ("nanogpt: perplexity, not in the same context" not in shown) == alike
        assert not any("translation: perplexity, not" in name for name in shown), "its rows are sentences"
        assert shown["nanogpt: judged context"] == ["64", str(context)]


def test_two_studies_tell_their_vocabulary_as_the_ranking_does(write: Callable[..., Written]) -> None:
    facts = {"corpora": {"nanogpt": FACTS["corpora"]["nanogpt"] | {"vocabulary": 4096}}}
    studies = write("a", **facts), write("b", **facts)
    for study in studies:
        study.trial("t1")
        study.report("t1", 5.0)
    found = results_of(*studies)
    shown = {name: cells for name, *cells in comparison_rows(*found.studies)}
    told = section_title(ranking(found), found).split(", ")[2].partition(":")[0]
    assert told.startswith("vocabulary") and all(cell.endswith(told) for cell in shown["nanogpt: text"])


def test_the_best_so_far_is_what_leads_the_ranking_and_ends_with_what_was_spent(write: Callable[..., Written]) -> None:
    table = progress(results_of(*two(write)), "nanogpt").data
    rows = table[table["study"] == "b"]
    assert rows["perplexity"].tolist() == [9, 4, 5, 5]
    assert rows["device_seconds"].tolist() == [10, 20, 30, 30]


def test_the_best_so_far_is_at_each_moment_the_first_of_the_ranking_then(searched: Written) -> None:
    """And so neither what diverged later nor a lower loss at a lower rung."""
    searched.report("t023", 1.0, rung=2, at=5.0)
    searched.report("t010", 1.1, rung=0, at=400.0)
    found = results_of(searched)
    drawn = progress(found, "nanogpt").data
    for at in sorted(found.reached["at"].unique())[::-4]:
        first = ranking(Results(studies=[replace(found.studies[0], until=at)]), by="perplexity").iloc[0]
        told = [row for row in drawn.to_dict("records") if row["at"] <= at][-1]
        assert (told["trial"], told["perplexity"]) == (first["trial"], first["perplexity"]), at


@pytest.mark.parametrize("alike", [True, False])
def test_two_studies_are_printed_and_drawn_where_their_texts_are_one(
    write: Callable[..., Written], alike: bool, tmp_path: Path, printed: Printed
) -> None:
    corpora = FACTS["corpora"] if alike else {"nanogpt": FACTS["corpora"]["nanogpt"] | {"sha256": "b" * 64}}
    studies = two(write, corpora=corpora, settings={"budget": "1h", "first": "d_model=64 " * 30})
    told = printed(PlotSettings, "compare", *(each.folder for each in studies), "--out", tmp_path)
    assert "nanogpt: winner" in told and ("do not compare" in told) != alike and "no room" not in told
    assert (tmp_path / "progress-nanogpt.png").exists() == alike


def test_of_one_list_in_two_studies_each_training_that_both_have_is_compared(tmp_path: Path, printed: Printed) -> None:
    """The second one's are twice and eight times as fast, and cost as much less; each has one that the other
    has not."""
    sizes = {16: 1.0, 32: 1.0, 64: 2.0}, {16: 0.5, 32: 0.125, 128: 1.0}
    for name, seconds in zip("ab", sizes, strict=True):
        rows = [row({"steps": 100}, {"d_model": d, "heads": 4, "seed": 0}, 3.0) for d in seconds]
        for each, taken in zip(rows, seconds.values(), strict=True):
            each["training_seconds"] = taken
            each["curve"] = [[*looked[:2], taken * looked[2] / 4, *looked[3:]] for looked in each["curve"]]
        study_of_trials(tmp_path / name, "ablation", rows)
    _, told = printed(PlotSettings, "compare", tmp_path / "a", tmp_path / "b", "--csv").split("\n\n")
    title, columns, *cells, means = csv.reader(told.splitlines())
    assert title == ["2 trainings that both have"] and [each[0].split()[0] for each in cells] == ["d16", "d32"]
    for what, ratios, mean in (("tokens/s", (2, 8), 4), ("device-s", (1 / 2, 1 / 8), 1 / 4)):
        one, other, ratio = (columns.index(f"{what}, {name}") for name in ("a", "b", "ratio"))
        assert [float(each[ratio]) for each in cells] == pytest.approx(ratios)
        of_all = [float(each[other].replace(",", "")) / float(each[one].replace(",", "")) for each in cells]
        assert of_all == pytest.approx(ratios, rel=1e-3) and float(means[ratio]) == pytest.approx(mean)


@pytest.mark.parametrize(("other", "recipe", "alike"), [
    ({}, {}, True), ({"family": "translation"}, {}, False), ({"tokens": 9}, {}, False), ({}, {"betas": [0.9]}, False),
])  # fmt: skip
def test_trainings_of_another_model_batch_or_recipe_are_not_compared(
    tmp_path: Path, other: dict[str, Any], recipe: dict[str, Any], alike: bool
) -> None:
    config, studies = {"d_model": 16, "heads": 4, "seed": 0}, list[Study]()
    for name, changes, own in (("a", {}, {"why": {}}), ("b", other, {"why": {"context": "given"}} | recipe)):
        family, tokens = changes.get("family", "nanogpt"), changes.get("tokens", 10)
        one = row({"steps": 100}, config | {"family": family}, 3.0, tokens=tokens)
        studies.append(study_of_trials(tmp_path / name, "methods", [one], recipes={"nanogpt": own}))
    assert [table.title for table in trainings(*studies)] == ["1 training that both have"] * alike


def test_two_searches_have_no_such_table(searched: Written, write: Callable[..., Written]) -> None:
    """Though they may have trained one configuration to its end."""
    first, second = open_studies([searched.folder, search(write("x").folder.parent / "again").folder])
    assert list(trainings(first, second)) == []


SIZES = 30, 300, 400
LOOKED_THROUGH = 500
"""Function calls, Python's and C's: fewer than it takes to look through a table once."""


@pytest.fixture(scope="module")
def growing(tmp_path_factory: pytest.TempPathFactory) -> list[Written]:
    """Studies of so many trials, with four reports each; a third of them came to a second rung."""
    studies, chance = [Written(tmp_path_factory.mktemp("runs") / "study") for _ in SIZES], Random(0)
    for study, trials in zip(studies, SIZES, strict=True):
        with study.journal.transaction():
            for number in range(trials):
                trial, rungs = f"t{number:05d}", {1: 0} | ({3: 1} if number % 3 == 0 else {})
                study.trial(trial, parameters=chance.randrange(10**4, 10**7), d_model=chance.choice([16, 64, 256]))
                for report in range(4):
                    at = 1.0 + report
                    study.report(trial, chance.uniform(2, 9), rung=rungs.get(report), at=at, training_seconds=at)
    return studies


@pytest.mark.parametrize("does", [ranking, partial(curves, family="nanogpt")])
def test_nothing_is_looked_through_anew_for_each_trial(growing: list[Written], does: Callable[..., object]) -> None:
    """What the smallest study is for: what is imported or made once."""
    counts = []
    for study in growing:
        with cProfile.Profile() as profile:
            does(results_of(study))
        counts.append(pstats.Stats(profile).total_calls)
    assert counts[2] - counts[1] < LOOKED_THROUGH * (SIZES[2] - SIZES[1])
