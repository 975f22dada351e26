"""The law of the report: it is the same as its trial made it, at the driver, in the journal, in a study that goes on;
and no number in it is one that JSON or SQLite could not tell.
"""

import json
import math
import random
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from tests.tune.search.world import LIMIT, World, add_trial
from tune.reports import (
    SPLITS,
    TIE,
    TURN_WINDOW,
    Evaluation,
    LossTracker,
    Metric,
    Report,
    from_row,
    journal_row,
    merge,
    to_row,
)
from tune.search.engine import Engine
from tune.search.resume import events
from tune.search.state import AgreedTerms
from tune.store.journal import SCHEMA, Journal

NO_NUMBERS = (math.nan, math.inf, -math.inf)
HINTS = {kind: get_type_hints(kind) for kind in (Evaluation, Report)}
FLOATS = [(kind, name) for kind in HINTS for name, hint in HINTS[kind].items() if get_args(hint) == (float, NoneType)]


def drawn(hint: Any, chance: random.Random) -> Any:
    """Any value of a field, by its type; where it may be None, such as is no number too."""
    if get_origin(hint) is Literal:
        return chance.choice(get_args(hint))
    if get_origin(hint) is Mapping:
        return {phase: chance.random() for phase in ("start", "steps", "lost")[: chance.randrange(4)]}
    if NoneType in get_args(hint):
        (kind, _), odd = get_args(hint), NO_NUMBERS if float in get_args(hint) else ()
        return chance.choice([None, *odd, *(drawn(kind, chance) for _ in range(3))])
    if hint in HINTS:
        return hint(**{name: drawn(each, chance) for name, each in HINTS[hint].items()})
    return {
        bool: lambda: chance.random() < 0.5,
        int: lambda: chance.choice((0, 1, chance.randrange(10**15))),
        float: lambda: chance.choice((0.0, 1.0, 5e-324, 1e300, chance.random(), -chance.random())),
        str: lambda: chance.choice(("checkpoints/t001/step-000123", "ein Häkchen ✓")),
    }[hint]()


REPORTS = [drawn(Report, random.Random(seed)) for seed in range(40)]
LEAST = {Evaluation: {"loss": 1.0}, Report: {"steps": 1, "tokens": 1, "training_seconds": 1.0}}


def test_it_comes_to_the_driver_as_it_was_and_every_number_in_it_is_one() -> None:
    for report in REPORTS:
        row = to_row(report)
        assert all(math.isfinite(value) for value in row.values() if isinstance(value, float))
        assert from_row(json.loads(json.dumps(row, allow_nan=False))) == report


def test_it_comes_out_of_the_journal_as_it_was(tmp_path: Path) -> None:
    """But for its seconds, which are charges there."""
    with Journal(tmp_path, new=True) as journal, journal.transaction():
        for number, report in enumerate(REPORTS):
            add_trial(journal, trial := f"t{number:03d}", parameters=report.parameters)
            journal.insert("reports", {"trial": trial, "at": 0.0} | journal_row(report))
        rows = journal.rows("SELECT * FROM reports JOIN trials USING (trial) ORDER BY trial")
        assert [from_row(dict(row)) for row in rows] == [replace(report, seconds={}) for report in REPORTS]


def test_what_is_no_number_was_not_measured_and_an_evaluation_without_a_loss_is_none() -> None:
    for value in NO_NUMBERS:
        for kind, name in FLOATS:
            assert kind(**LEAST[kind], **{name: value}) == kind(**LEAST[kind])
        for split in SPLITS:
            made = Report(**LEAST[Report], **{split: Evaluation(loss=value, accuracy=0.5)})
            assert getattr(made, split) is None


def test_what_an_earlier_version_wrote_is_a_report_too() -> None:
    for report in REPORTS:
        had = {column for column in journal_row(report) if f" {column} " in SCHEMA.replace("\n", " ")}
        read = from_row({column: value for column, value in to_row(report).items() if column in had})
        kept = [each.name for each in fields(Report) if each.name in had]
        assert {"steps", "train_loss", "checkpoint"} <= {*kept}
        assert [getattr(read, name) for name in kept] == [getattr(report, name) for name in kept]
        assert (read.valid and read.valid.loss) == (report.valid and report.valid.loss)


def test_what_is_no_report_is_refused() -> None:
    for row in ({}, {"steps": 1}, LEAST[Report] | {"ended": "soon"}):
        with pytest.raises((TypeError, ValueError)):
            from_row(row)


def test_reports_merged_in_any_groups_cost_and_tell_the_same() -> None:
    for first, second, third in zip(REPORTS, REPORTS[1:], REPORTS[2:], strict=False):
        left, right = merge(merge(first, second), third), merge(first, merge(second, third))
        assert replace(left, seconds={}) == replace(right, seconds={})
        assert left.seconds == pytest.approx(right.seconds)
        whole = sum(sum(each.seconds.values()) for each in (first, second, third))
        assert sum(left.seconds.values()) == pytest.approx(whole)
        assert left.steps == third.steps and left.valid == (third.valid or second.valid or first.valid)


class Told:
    """Hears every report that ended a lease."""

    def __init__(self) -> None:
        self.reports: list[tuple[str, Report]] = []

    def on_decision(self, *_: object) -> None: ...

    def on_report(self, engine: Engine, trial: str, report: Report) -> None:
        if report.ended:
            self.reports.append((trial, replace(report, seconds={})))


@pytest.mark.parametrize("seed", range(2))
def test_a_study_that_goes_on_hears_the_same_reports(tmp_path: Path, seed: int) -> None:
    """As its listeners heard them, and so as they changed its state."""
    told = Told()
    world = World(tmp_path, cap=400, slots=3, seed=seed, memory_limit=LIMIT, listen=lambda journal: [told])
    world.diverging, world.dying = {1: 1.0}, {"t003": 1}
    world.run()
    again = [
        (event["trial"], from_row(dict(event)))
        for event in events(world.journal)
        if not isinstance(event, AgreedTerms) and event["action"] is None
    ]
    assert {report.ended for _, report in told.reports} >= {"rung", "final", "diverged"} and again == told.reports


@pytest.mark.parametrize(("last", "turned"), [(1.48, True), (1.5, False)])
def test_a_loss_has_turned_only_where_that_of_the_steps_has_fallen_since_its_best(last: float, turned: bool) -> None:
    lowest = LossTracker()
    for loss, training in ((1.1, 1.6), (1.0, 1.501), (1.04, 1.499), (1.05, last)):
        lowest.add(loss, training)
    assert lowest.has_turned is turned


def test_a_loss_is_above_its_lowest_as_of_the_latest_and_only_by_more_than_noise() -> None:
    lowest = LossTracker()
    for loss, above in ((1.0, False), (1.0 + TIE / 2, False), (1.0 + 2 * TIE, True), (1.0, False), (0.9, False)):
        lowest.add(loss)
        assert lowest.is_above_lowest is above


@pytest.mark.parametrize("loss", [None, 1.0, 3.0])
def test_the_weights_that_are_kept_are_the_better_ones_of_those_that_were_measured(loss: float | None) -> None:
    other, measured = Evaluation(loss=2.0), None if loss is None else Evaluation(loss=loss)
    report = Report(steps=1, tokens=1, training_seconds=1.0, valid=measured)
    assert report.better_evaluation == measured
    for both in (replace(report, averaged=other), replace(report, valid=other, averaged=measured)):
        assert both.better_evaluation is not None and both.better_evaluation.loss == min(2.0, loss or 2.0)


def test_what_was_before_dropout_had_begun_is_nothing_that_a_loss_has_risen_from() -> None:
    lowest = LossTracker()
    for loss in (1.1, 1.0, 1.05):
        lowest.add(loss)
        lowest.reset()
    assert lowest.loss == 1.0 and lowest.is_above_lowest
    for loss in (1.4, 1.39, 1.38):
        lowest.add(loss)
        assert not lowest.has_turned and lowest.is_above_lowest


def test_of_a_metric_that_is_to_be_large_zero_has_no_sign() -> None:
    """The search has it as a loss, and SQLite keeps no sign of a zero."""
    accuracy = Metric(name="accuracy", maximize=True)
    assert {accuracy.text(loss) for loss in (0.0, -0.0)} == {"accuracy 0"}


@pytest.mark.parametrize(
    ("turns", "rise", "soon"), [(None, 0, 0), (12, 0.01, 2 * TURN_WINDOW), (12, 0.04, TURN_WINDOW)]
)
def test_a_loss_that_falls_by_less_than_a_look_is_off_has_not_turned_and_one_that_rises_soon_has(
    turns: int | None, rise: float, soon: int
) -> None:
    """In 95 of 100; the sooner, the more it rises."""
    chance, late = random.Random(0), 0
    for _ in range(100):
        lowest, seen = LossTracker(), 0
        while seen < 20 and not lowest.has_turned:
            above = -0.005 * seen if turns is None else rise * abs(seen - turns)
            lowest.add(1 + above + chance.gauss(0, 0.008))
            seen += 1
        late += lowest.has_turned if turns is None else not turns < seen <= turns + soon
    assert late <= 5
