"""What is shown of a study of a user's loop: its metric in the place of perplexity, where high is good; no sizes."""

import json
import re
import sys
import warnings
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from analysis.page import draw
from analysis.plots.dimensions import comparable_measurements, effects, importances, place_values
from analysis.plots.search import curves, parallel_coordinates
from analysis.ranking import ranking, show, winner
from analysis.settings import PlotSettings, RankSettings, ReportSettings
from analysis.study import Results, open_study
from analysis.style import Picture
from tests.analysis.conftest import Printed, Written, do, one_line, results_of, study_of_loop
from tests.tune.search.loops import Loops
from tune.own_space import LOOP, choice, floats, integers
from tune.ranking import RESERVED_NAMES
from tune.ranking import ranking as returned

SPACE = {
    "width": integers(1, 40), "rate": floats(1e-3, 1e-1, log=True), "kind": choice("sgd", "adam", r"$\mine$ <b>"),
    "bias": choice(True, False), "momentum": floats(0.5, 0.99, when={"kind": "sgd"}), "steps": choice(1, 2),
    "family": choice("a", "b"), "seed": choice(0, 1),
}  # fmt: skip
"""A dimension of each kind; the last three have names that we use too."""


def searched(folder: Path, **asked: object) -> Loops:
    folder.parent.mkdir(parents=True, exist_ok=True)
    search = Loops(folder, **{"cap": 500.0, "slots": 2, "gap": 0.5, "space": SPACE, **asked}).run()
    return search


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loops]:
    search = searched(tmp_path_factory.mktemp("runs") / "loop", maximize="accuracy")
    yield search
    search.journal.close()


@pytest.fixture(scope="module")
def results(loop: Loops) -> Results:
    return results_of(loop)


@pytest.fixture(scope="module")
def pictures(results: Results) -> dict[str, Picture]:
    """Each drawn once."""
    return {draw.__name__: draw(results, LOOP) for draw in (curves, effects, parallel_coordinates)}


@pytest.fixture(scope="module")
def page(loop: Loops) -> str:
    """Its pictures are drawn into it, and not as files beside it too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Picture, "save", lambda *_: [])
        do(ReportSettings, [str(loop.folder)])
    return (loop.folder / "report" / "report.html").read_text(encoding="utf-8")


def best(loop: Loops) -> tuple[float, str, int]:
    """By the journal alone the best value as it was reported, its trial and steps."""
    found = loop.journal.rows("SELECT * FROM reports WHERE final OR rung IS NOT NULL ORDER BY valid_loss LIMIT 1")[0]
    return loop.metric.to_reported(found["valid_loss"]), found["trial"], found["steps"]


def test_the_page_says_first_what_is_best_and_then_what_was_spent(page: str, loop: Loops) -> None:
    value, trial, steps = best(loop)
    text = "".join(ElementTree.fromstring(page).itertext())
    lead = re.search(rf"[A-Z][^\n]*: {loop.metric.name} ([\d.]+) within ([\d,]+) steps \((\w+)\)\.\n", text)
    assert lead and float(lead[1]) == pytest.approx(value, rel=1e-3)
    assert (int(lead[2].replace(",", "")), lead[3]) == (steps, trial)
    config = json.loads(loop.journal.rows("SELECT config FROM trials WHERE trial = ?", trial)[0][0])
    assert f"width {config['width']}, " in lead[0].lower() and ("no bias" in lead[0].lower()) != config["bias"]
    places = [page.index(each) for each in (lead[3], ">Spent ", "The cap, burning down", "what each dimension did")]
    assert places == sorted(places)


def test_nothing_on_it_is_of_perplexities_or_sizes_and_nothing_is_missing(page: str) -> None:
    text = "".join(ElementTree.fromstring(page).itertext())
    for word in ("perplexity", "parameters", "efficiency", "Not shown", "another cap", "nan", "--families"):
        assert word not in text, word
    assert page.count("<figure>") == page.count('<div class="plot"') > 5


def test_curves_are_of_what_was_reported_then(pictures: dict[str, Picture], loop: Loops) -> None:
    data = pictures["curves"].data
    told = {
        (row["trial"], row["steps"], json.loads(row["numbers"])[loop.metric.name])
        for row in loop.journal.rows("SELECT trial, steps, numbers FROM reports WHERE numbers <> '{}'")
    }
    assert told == set(zip(data["trial"], data["steps"], data[f"reported_{loop.metric.name}"], strict=True))
    furthest = loop.journal.rows(
        "SELECT trial, IIF(MAX(final), 'end', 'rung ' || MAX(rung)) FROM reports "
        "WHERE final OR rung >= 0 GROUP BY trial"
    )
    assert dict(map(tuple, furthest)).items() <= dict(zip(data["trial"], data["level"], strict=True)).items()


def test_high_is_up_and_nothing_that_was_reported_is_cut_off(pictures: dict[str, Picture], loop: Loops) -> None:
    low, high = pictures["effects"].figure.axes[0].get_ylim()
    assert low < high
    data = pictures["curves"].data[f"reported_{loop.metric.name}"]
    low, high = pictures["curves"].figure.axes[0].get_ylim()
    assert low < data.min() and data.max() < high


@pytest.mark.parametrize(("asked", "sign"), [("maximize", 1), ("metric", -1)])
def test_of_outliers_the_good_one_is_seen(tmp_path: Path, asked: str, sign: int) -> None:
    values = [sign * value for value in (*range(40), 1000.0, -1000.0)]
    study = study_of_loop(tmp_path / "runs" / "study", asked, "x", values)
    low, high = effects(results_of(study), LOOP).figure.axes[0].get_ylim()
    assert low < sign * 1000 < high and not low < -sign * 1000 < high


def test_every_kind_of_dimension_is_judged_and_drawn(results: Results, pictures: dict[str, Picture]) -> None:
    level = comparable_measurements(results, LOOP)
    names = ["width", "rate", "kind", "bias", "momentum", "config_steps", "config_family", "seed"]
    assert set(results.dimensions) == set(names)
    assert level["momentum"].isna().tolist() == (level["kind"] != "sgd").tolist()
    for picture in (pictures["effects"], pictures["parallel_coordinates"]):
        assert set(names) <= set(picture.data) and len(picture.data) == len(level)
    shares = importances(results, level, names)
    assert set(shares.index) == set(names) and shares["share"].sum() == pytest.approx(1)


def effects_of(folder: Path, configs: list[dict[str, float]]) -> Figure:
    """In a loop's study of one trial for each of these, one worse than the other."""
    study = Written(folder, families={LOOP: 1.0}, corpora={}, settings={"metric": "loss"})
    for number, config in enumerate(configs):
        values = {"family": LOOP, "config": json.dumps(config), "state": "paused", "created": number}
        study.journal.insert("trials", {"trial": f"t{number}"} | values)
        study.report(f"t{number}", None, numbers=json.dumps({"loss": number}), steps=1, valid_loss=number)
    study.journal.close()
    return effects(Results(studies=[open_study(folder)]), LOOP).figure


def test_a_panel_is_whole_though_its_dimensions_have_long_names(tmp_path: Path) -> None:
    names = "gradient_accumulation_steps", "learning_rate_scheduler_type", "number_of_heads_in_each_layer"
    tried = [{name: 1 + number // 3**place % 3 for place, name in enumerate(names)} for number in range(12)]
    figure = effects_of(tmp_path / "study", tried)
    panels = [plot for plot in figure.axes if plot.axison]
    assert [plot.get_title(loc="left") for plot in panels] == [*names, "importance (Optuna)"]
    assert all(plot.get_tightbbox().x1 <= figure.bbox.x1 for plot in panels)


def test_ticks_of_a_logarithmic_range_lie_apart(tmp_path: Path) -> None:
    decades = (1, 2, 3, 5, 7, 9, 12)
    tried = [{f"rate_{each}": 10 ** (-each * number / 19) for each in decades} for number in range(20)]
    figure = effects_of(tmp_path / "study", tried)
    figure.draw_without_rendering()
    panels = [plot for plot in figure.axes if plot.get_title(loc="left").startswith("rate_")]
    assert len(panels) == len(decades)
    for panel in panels:
        places = [label.get_window_extent() for label in panel.get_xticklabels()]
        assert len(places) > 1 and all(one.x1 < other.x0 for one, other in pairwise(places))


@pytest.mark.parametrize("log", [True, False, None])
def test_parts_of_a_range_follow_one_another_and_hold_all_that_have_a_value(log: bool | None) -> None:
    values = pd.Series(np.random.default_rng(0).uniform(0.01, 10, 50)).mask(np.arange(50) % 5 == 0)
    found = place_values(values, log)
    assert not found.listed and (found.groups == -1).tolist() == values.isna().tolist()
    parts = [values[found.groups == part] for part in sorted(set(found.groups) - {-1})]
    assert len(parts) > 1 and sum(map(len, parts)) == values.notna().sum()
    assert all(low.max() < high.min() for low, high in pairwise(parts))
    assert found.places.dropna().rank().tolist() == values.dropna().rank().tolist()
    assert all(found.places.min() <= place <= found.places.max() for place in found.ticks)


def test_the_axis_of_a_range_of_whole_numbers_has_no_fractions() -> None:
    found = place_values(pd.Series([2, 3, 4] * 5), log=False)
    assert not found.listed and all(label.isdigit() for label in found.ticks.values())


def test_words_and_switches_stand_side_by_side_each_a_group() -> None:
    for values in (["a", True, 2.5, None], ["x" * 80, "y" * 80], [*range(9)], [f"word {n}" for n in range(60)]):
        found = place_values(pd.Series(values, dtype=object))
        known = len([value for value in values if value is not None])
        assert found.listed and len(found.ticks) == len(set(found.groups) - {-1}) == known
        assert (found.groups == -1).tolist() == [value is None for value in values]


def test_the_ranking_is_the_one_that_the_search_returned(loop: Loops, results: Results, printed: Printed) -> None:
    rows = json.loads(printed(RankSettings, loop.folder, "--json"))
    theirs = returned(loop.folder, loop.metric)
    assert [row["trial"] for row in rows] == theirs["trial"].tolist()
    assert set(theirs) <= set(rows[0])
    column = f"best_{loop.metric.name}"
    assert [row[column] for row in rows if row[column] is not None] == pytest.approx(theirs[column].dropna().tolist())
    assert [row["seen"] for row in rows if row["seen"]] == [10 * row["steps"] for row in rows if row["steps"]]
    assert "last seen" in printed(RankSettings, loop.folder), "which need not be the best's"
    table = ranking(results)
    first = winner(results, table)
    assert first is not None and (first[column], first["trial"]) == pytest.approx(best(loop)[:2])
    condition = f"width<={rows[0]['width']} and kind=='{rows[0]['kind']}'"
    narrow = json.loads(printed(RankSettings, loop.folder, "--json", "--where", condition))
    assert narrow == [row for row in rows if row["width"] <= rows[0]["width"] and row["kind"] == rows[0]["kind"]]


@pytest.mark.parametrize("width", range(40, 200, 10))
def test_what_a_loop_reported_makes_room_for_steps_and_price(
    results: Results, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a screen of any width."""
    monkeypatch.setattr("analysis.tables.WIDTH", width)
    table = ranking(results)
    show(results, table, table, by="perplexity", top=1)
    hidden = capsys.readouterr().out.partition("columns for: ")[2].partition(" (")[0].split(", ")
    assert "last seen" in hidden or not {"steps", "device-s"} & {*hidden}


def test_no_column_of_ours_can_be_taken_by_a_dimension_or_a_number(results: Results, six: Written) -> None:
    """Else a loop that calls one so would break its page."""
    own = {*results.dimensions, *results.last_reported, results.measure.column}
    families = results_of(six)
    for each, theirs in ((results, own), (families, {*families.dimensions})):
        assert {*each.trials, *each.reached, *ranking(each)} - theirs <= RESERVED_NAMES


def test_pictures_are_drawn_one_by_one(loop: Loops, tmp_path: Path, printed: Printed) -> None:
    for what, names in (("curves", ["curves-loop"]), ("effects", ["effects-loop", "parallel-loop"])):
        printed(PlotSettings, what, loop.folder, "--out", tmp_path / what)
        assert sorted(path.stem for path in (tmp_path / what).glob("*.png")) == names


def test_two_studies_are_compared(loop: Loops, tmp_path: Path, printed: Printed) -> None:
    searched(tmp_path / "other", seed=1, cap=200.0, maximize="accuracy").journal.close()
    told = printed(PlotSettings, "compare", loop.folder, tmp_path / "other", "--out", tmp_path)
    assert f"loop: best {loop.metric.name}" in told and "perplexity" not in told
    assert (tmp_path / "progress-loop.png").exists()
    drawn = pd.read_csv(tmp_path / "progress-loop.csv")
    for _, rows in drawn.groupby("study"):
        assert (rows["best_accuracy"].diff().dropna() >= 0).all()


@pytest.mark.parametrize(
    ("kind", "words"),
    [(PlotSettings, ["front"]), *((RankSettings, words) for words in (["--front"], ["--by", "efficiency"]))],
)
def test_what_asks_for_sizes_is_refused_in_one_line(loop: Loops, kind: type, words: list[str]) -> None:
    with one_line(f"goes by {loop.metric.name}"):
        do(kind, [*words, str(loop.folder)])


@pytest.mark.parametrize("kind", [RankSettings, PlotSettings])
def test_a_metric_and_perplexities_do_not_compare(loop: Loops, six: Written, kind: type) -> None:
    with one_line("do not compare"):
        do(kind, [*(["curves"] if kind is PlotSettings else []), str(loop.folder), str(six.folder)])


@pytest.mark.parametrize("moves", [1, 9])
def test_a_search_that_runs_has_a_page_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moves: int) -> None:
    if moves > 1:  # each is laid out all the same
        monkeypatch.setattr(Picture, "svg", lambda self: "")
    search = Loops(tmp_path / "study", cap=900.0, slots=2, gap=0.5, space=SPACE, maximize="accuracy", life=64)
    search.run(moves)
    page = draw(None, open_study(search.folder), 7.0).read_text(encoding="utf-8")
    ElementTree.fromstring(page)
    assert "location.reload(), 7000" in page
    assert ("accuracy 0." in page) == bool(search.journal.rows("SELECT 1 FROM reports WHERE final OR rung >= 0"))


def test_any_number_under_any_name_is_drawn(tmp_path: Path) -> None:
    """Of a stranger's study too, whose space may be anything."""
    largest = sys.float_info.max
    name, values = "../<i>$\\frac$\x1b[31m", [*4 * [-3.0], *5 * [1e300], largest, -largest]
    study = study_of_loop(tmp_path / "runs" / "study", "maximize", name, values, space='{"rate": 1}')
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        do(ReportSettings, [str(study.folder)])
    page = (study.folder / "report" / "report.html").read_text(encoding="utf-8")
    ElementTree.fromstring(page)
    assert "Spent 3h3m20s of 16m40s (1100.0 %)" in page
    assert "\x1b" not in page and "<i>" not in page
    assert {path.parent for path in tmp_path.rglob("*.png")} == {study.folder / "report" / "figures"}
