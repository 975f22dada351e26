"""Recorded curves: files, and what is known of a loss between two reports and after a decay."""

import itertools
import json
import math
from pathlib import Path

import pytest

from tests.tune.curves.made import table
from tune.curves.recorded import PUBLISHED, Curve, CurveSuggestions, load_table
from tune.experiments.curves import SHAPES
from tune.reports import EPOCHS_AS_NEW
from tune.search.forecast import Favour


@pytest.mark.parametrize("path", sorted(PUBLISHED.glob("*.jsonl")), ids=lambda path: path.stem)
def test_a_published_table_is_whole_and_goes_by_its_name(path: Path) -> None:
    """In own mode, of built-in models; the replay can suggest of it as a search does. An average is measured from twice
    the warm-up on."""
    table = load_table(Path(path.stem))
    assert table == load_table(path) and table.is_own_mode and len(table.curves) == len(SHAPES)
    for curve in table.curves:
        assert {curve.family, path.stem.split("-")[0]} == {table.curves[0].family} and curve.tokens_per_step > 0
        assert curve.text_tokens > 0 and curve.warm_up_steps > 0 and min(curve.losses) < curve.losses[0]
        assert 0 < curve.final(curve.max_steps) < curve.losses[0]
        assert len(curve.averaged) == (len(curve.losses) if curve.max_steps >= 2 * curve.warm_up_steps else 0)


ROW = {"config": {"width": 1}, "parameters": 9, "seconds_per_report": 2.0, "steps_per_report": 100}


def test_a_row_of_a_file_is_a_curve_that_ends_where_its_reports_do_or_are_not_finite(tmp_path: Path) -> None:
    rows = [
        ROW | {"valid_loss": [3, 2, 1], "memory_mb": 5},
        ROW | {"valid_loss": [3, None, 1], "memory_mb": None, "dropout_after": 0},
    ]
    (tmp_path / "made.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = load_table(tmp_path / "made.jsonl")
    whole, broken = table.curves
    assert (whole.max_steps, whole.diverges, whole.memory_bytes) == (300, math.inf, 5e6)
    assert (broken.finite_reports, broken.diverges, broken.memory_bytes) == (1, 200, 0)
    assert whole.dropout_after == EPOCHS_AS_NEW and broken.dropout_after == 0
    assert table.exhaustive_seconds == 12 and not table.is_own_mode


def test_a_loss_between_two_reports_lies_between_theirs_and_none_is_passed_before_its_report() -> None:
    curve = Curve(config={}, parameters=1, seconds_per_report=1.0, report_every=10.0, losses=(4.0, 2.0, 3.0, 1.0))
    assert (
        [curve.loss(10 * report) for report in (1, 2, 3, 4)]
        == list(curve.losses)
        == pytest.approx([curve.final(10 * report) for report in (1, 2, 3, 4)])
    )
    between = [curve.loss(steps) for steps in range(10, 21)]
    assert all(high > low for high, low in itertools.pairwise(between))
    assert curve.loss(math.sqrt(10 * 20)) == pytest.approx(3.0)
    assert [curve.lowest(steps) for steps in (9, 19, 20, 39, 40)] == [math.inf, 4.0, 2.0, 2.0, 1.0]


def test_in_own_mode_a_last_segment_has_the_decayed_loss_where_one_was_measured(tmp_path: Path) -> None:
    decayed = [None, 2.5, None, 1.5]
    row = ROW | {"valid_loss": [4.0, 3.5, 3.25, 3.0], "decayed_loss": decayed, "decay_share": 0.4}
    (tmp_path / "own.jsonl").write_text(json.dumps(row) + "\n")
    table = load_table(tmp_path / "own.jsonl")
    (curve,) = table.curves
    assert table.is_own_mode and curve.max_steps == 400
    assert [curve.final(steps) for steps in (200, 400)] == pytest.approx([2.5, 1.5])
    assert curve.final(math.sqrt(200 * 400)) == pytest.approx(math.sqrt(2.5 * 1.5))
    assert [curve.final(steps) for steps in (100, 150)] == [curve.loss(steps) for steps in (100, 150)]
    assert [curve.loss(steps) for steps in (200, 400)] == [3.5, 3.0]


def test_in_own_mode_a_report_without_a_loss_lies_between_its_neighbours_and_none_follows_a_divergence(
    tmp_path: Path,
) -> None:
    losses = [4.0, None, 3.0, 2.5, None, None]
    row = ROW | {"valid_loss": losses, "averaged_loss": losses[:4], "decayed_loss": [None, None, 2.0, None, None, None]}
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(each) + "\n" for each in (row, row | {"decayed_loss": []})))
    (own, other), full = load_table(tmp_path / "own.jsonl").curves, [4.0, 4 - math.log(2) / math.log(3), 3.0, 2.5]
    assert list(own.losses[:4]) == list(own.averaged) == pytest.approx(full)
    assert (own.finite_reports, own.diverges, own.lowest(600)) == (4, 500, 2.5)
    assert other.finite_reports == 1, "of another schedule it is a loss that was not finite"


@pytest.mark.parametrize(("dropout", "after", "seen"), [(0.0, 4.0, True), (0.1, 4.0, False), (0.1, 0.0, True)])
def test_that_a_loss_rises_as_dropout_begins_is_no_turn(dropout: float, after: float, seen: bool) -> None:
    """With the fifth time that the text is seen; it falls again from the sixth on. Dropout from the first step on does
    not begin there."""
    losses = [3.0 - 0.1 * report for report in range(16)] + [1.9] * 7 + [1.5 - 0.05 * report for report in range(17)]
    risen = Curve(
        config={"dropout": dropout}, parameters=0, seconds_per_report=1.0, losses=tuple(losses), tokens_per_step=1.0,
        text_tokens=4.0, dropout_after=after,
    )  # fmt: skip
    assert math.isfinite(risen.turning_steps) is seen


@pytest.mark.parametrize("suggest", ["order", "prior"])
def test_every_curve_is_handed_out_once_and_once_more_when_it_begins_again(suggest: str) -> None:
    prior = (lambda config: Favour(promise=float(config["depth"]) + 1.0)) if suggest == "prior" else None
    curves = table(20).curves  # each larger than the one before
    supply = CurveSuggestions(curves, seed=1, prior=prior)
    for _ in range(2):
        given = []
        while supply.has_more:
            first = supply.first()
            given.append(supply.suggest(f"t{len(given)}")["curve"])
            assert curves[given[-1]] is first
            supply.tell(f"t{len(given) - 1}", 0, 1.0 / len(given))
        assert sorted(given) == list(range(len(curves)))
        supply.begin_again()
