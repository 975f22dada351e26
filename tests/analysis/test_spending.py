import json
from collections.abc import Callable

import pytest

from analysis.settings import SpendSettings
from analysis.spending import ending, spending
from analysis.study import open_study
from tests.analysis.conftest import Printed, Written


@pytest.fixture
def spent(write: Callable[..., Written]) -> Written:
    """Two slots held for 100 and 60 s; 100 s of work, 5 s lost, 3 s of idle written down."""
    study = write()
    study.slot(0, opened=0, closed=100)
    study.slot(1, opened=20, closed=80)
    study.trial("t1")
    study.trial("t2", family="translation")
    for what, seconds, slot, trial in (
        ("start", 10, 0, None),
        ("steps", 70, 0, "t1"),
        ("steps", 20, 1, "t2"),
        ("lost", 5, 1, "t2"),
        ("idle", 3, 1, None),
    ):
        study.charge(what, seconds, slot=slot, trial=trial, at=80)
    return study


def test_each_second_held_is_somewhere(spent: Written) -> None:
    found = spending(open_study(spent.folder))
    assert found.spent == 160
    assert found.by == {"steps": 90, "start": 10, "compile": 0, "evaluation": 0, "checkpoint": 0, "idle": 55, "lost": 5}
    assert found.table.loc["nanogpt", "steps"] == 70 and found.table.loc["translation", "lost"] == 5


def test_money_and_energy_stand_beside_the_seconds_where_they_are_known(spent: Written, printed: Printed) -> None:
    summary = "spent 2m40s of 16m40s (16.0 %), 56.2 % of it in optimizer steps"
    assert spending(open_study(spent.folder)).summary == summary
    spent.journal.note(settings={"price_per_hour": "9.0"}, energy_joules=7200.0)
    assert spending(open_study(spent.folder)).summary == f"{summary}, 0.40 at 9.00 a device-hour, 2 Wh of this machine"
    assert json.loads(printed(SpendSettings, spent.folder, "--json"))["energy_joules"] == 7200


def test_an_open_slot_is_held_until_now(spent: Written) -> None:
    spent.slot(2, opened=70)
    spent.journal.insert("decisions", {"at": 90, "trial": None, "action": "wait", "reason": "a test"})
    assert spending(open_study(spent.folder)).spent == 180


def test_work_that_was_not_reported_yet_is_not_idle(spent: Written) -> None:
    spent.slot(2, opened=0)
    lease = {"trial": "t1", "slot": 2, "purpose": "rung", "rung": 0, "price": 1, "reserved": 1, "opened": 0}
    spent.journal.insert("leases", lease)
    spent.charge("steps", 30, slot=2, trial="t1", at=30)
    spent.journal.insert("decisions", {"at": 90, "trial": None, "action": "wait", "reason": "a test"})
    found = spending(open_study(spent.folder))
    assert (found.spent, found.by["idle"]) == (190, 55)


def test_training_past_the_best_is_told_as_far_as_it_was_looked_at(spent: Written) -> None:
    """t1 turned at 30 s, as its average tells: what its last report tells is of then. t2 is as good as ever."""
    for trial, seconds, loss, averaged, ended in (
        ("t1", 10, 3.0, None, "rung"), ("t1", 30, 2.5, 2.0, None), ("t1", 50, 2.6, 2.1, None),
        ("t1", 70, 2.0, 2.0, "turned"), ("t2", 5, 3.0, None, None), ("t2", 20, 3.001, None, "rung"),
    ):  # fmt: skip
        row = {"trial": trial, "at": 80, "training_seconds": seconds, "valid_loss": loss, "averaged_loss": averaged}
        spent.journal.insert("reports", row | {"ended": ended})
    found = spending(open_study(spent.folder))
    assert sorted(found.past_best) == [0, 40]
    assert found.past_best_text.startswith("trained past their best: 40")


@pytest.mark.parametrize(("asked", "sign"), [("metric", 1), ("maximize", -1)])
def test_of_a_users_loop_its_best_is_of_what_it_reported(write: Callable[..., Written], asked: str, sign: int) -> None:
    """Not of the best so far, which is never passed."""
    study = write(settings={asked: "score"})
    study.trial("t1", family="loop")
    for place, (value, best) in enumerate(((3.0, 3.0), (1.0, 1.0), (2.0, 1.0), (3.0, 1.0), (4.0, 1.0)), 1):
        told = {"training_seconds": 10.0 * place, "numbers": json.dumps({"score": sign * value, "other": 0.0})}
        study.report("t1", None, valid_loss=best, **told)
    assert spending(open_study(study.folder)).past_best == [30]


def test_how_a_study_ended_is_of_its_last_run(write: Callable[..., Written]) -> None:
    """One that ended, went on and was killed has what its end did not know of."""
    went_on: dict[str, Callable[[Written], None]] = {
        "no": lambda study: None,
        "open": lambda study: study.slot(1, opened=100.0),
        "closed": lambda study: study.slot(1, opened=100.0, closed=150.0),
        "early": lambda study: study.journal.note(cap_seconds=2000.0),
    }
    for name, later in went_on.items():
        study = write(name, ended={"reason": "cap", "spent": 100.0, "cap": 1000.0})
        study.slot(0, closed=100.0)
        study.trial("t1")
        later(study)
        assert ("it was killed" in ending(open_study(study.folder))) == (name != "no"), name
