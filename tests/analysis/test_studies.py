"""Studies are read as they lie, and each of their device-seconds is somewhere."""

import json
import math
import os
import shlex
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.figures import pictures_of
from analysis.settings import SpendSettings
from analysis.spending import ending, spending
from analysis.study import (
    is_driver_alive,
    mean_curves,
    newest_study,
    open_kernels,
    open_studies,
    open_study,
    over_seeds,
)
from tests.analysis.conftest import Printed, Written
from tune.arithmetic import mean_interval
from tune.errors import UserError
from tune.store.heartbeat import DRIVER, HEARTBEAT_FOLDER, write_heartbeat
from tune.store.journal import Journal, connect
from tune.store.mirror import MIRRORED


def test_the_newest_is_the_one_of_its_kind_that_was_written_last(write: Callable[..., Written]) -> None:
    old, new, kernels = write("b"), write("a"), write("kernels", kernels=["copy"])
    for study, age in ((old, 0), (new, 60), (kernels, 120)):
        for path in study.folder.iterdir():
            os.utime(path, (age, age))
    runs = old.folder.parent
    assert newest_study(runs) == new.folder and newest_study(runs, kernels=True) == kernels.folder
    with pytest.raises(ValueError, match=r"none of kernels.*kernels/run\.py"):
        open_kernels(old.folder)
    with pytest.raises(ValueError, match=r"is a study of kernels; draw it: .*plot\.py roofline"):
        open_study(kernels.folder)


def test_a_command_that_is_named_can_be_typed_where_the_folder_has_a_space(write: Callable[..., Written]) -> None:
    kernels, searched = write("of kernels", kernels=["copy"]), write("a search")
    searched.trial("t001")
    for study, draw in ((kernels, open_study), (searched, lambda folder: pictures_of(open_study(folder)))):
        with pytest.raises(UserError) as error:
            draw(study.folder)
        assert shlex.split(str(error.value))[-1] == str(study.folder)


def test_what_is_only_read_is_no_newer_for_it(write: Callable[..., Written]) -> None:
    """Though SQLite lays an empty log beside a journal that is opened; one with something in it counts."""
    old, new = write("b"), write("a")
    for study, age in ((old, 0), (new, 60)):
        study.trial("t1")
        study.journal.close()
        os.utime(study.folder / "journal.db", (age, age))
    with closing(connect(old.folder)) as reader:
        reader.execute("SELECT * FROM trials").fetchall()
        assert (old.folder / "journal.db-wal").exists() and newest_study(old.folder.parent) == new.folder
    with Journal(old.folder, new=False) as journal:
        journal.update("trials", "t1", {"state": "stopped"})
        os.utime(old.folder / "journal.db", (0, 0))
        assert newest_study(old.folder.parent) == old.folder


def test_what_only_looks_like_a_control_character_is_read_as_it_is(write: Callable[..., Written]) -> None:
    """A model that was trained on code writes such; what is one is shown without."""
    samples = ["ESC = '\\u001b['", "two \\\\u0000", "\x1b[1m and \\\x9b"]
    study = write("study", samples=samples)
    study.trial("t1", how=samples[0])
    study.journal.close()
    opened = open_study(study.folder)
    assert opened.facts["samples"] == [*samples[:2], "?[1m and \\?"]
    assert json.loads(opened.read("SELECT config FROM trials")["config"].item())["how"] == samples[0]


def test_a_driver_lives_by_its_signs_of_life_which_are_rarer_in_a_copy(write: Callable[..., Written]) -> None:
    folder = write("study").folder
    assert not is_driver_alive(folder)
    (folder / HEARTBEAT_FOLDER).mkdir()
    for ended, lives in ((None, [0, -5, 5]), (MIRRORED, [0, -5, 5, -30, -60])):
        write_heartbeat(folder, DRIVER, 0, 0.0, ended)
        now = time.time()
        for age in (0, -5, 5, -30, -60, -3600, 3600):
            os.utime(folder / HEARTBEAT_FOLDER / DRIVER, (now + age, now + age))
            assert is_driver_alive(folder) == (age in lives), (ended, age)


def test_an_empty_study_and_an_empty_runs_are_refused(write: Callable[..., Written], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no trial yet"):
        open_study(write("empty").folder)
    with pytest.raises(ValueError, match="no study in"):
        newest_study(tmp_path / "nowhere")


def test_two_studies_of_one_name_are_refused(six: Written) -> None:
    with pytest.raises(ValueError, match="once"):
        open_studies([six.folder, six.folder])


def test_a_killed_study_is_read(six: Written, tmp_path: Path) -> None:
    """A copy of the files as they lie, the write-ahead log with them, is what a kill leaves."""
    killed = tmp_path / "killed"
    killed.mkdir()
    for path in six.folder.iterdir():
        (killed / path.name).write_bytes(path.read_bytes())
    assert len(open_study(killed).read("SELECT * FROM trials")) == 6
    with sqlite3.connect(six.folder / "journal.db") as connection:
        assert connection.execute("SELECT COUNT(*) FROM trials").fetchone() == (6,)


def test_over_seeds_are_means_and_the_interval_that_tables_have() -> None:
    """One seed has no width, and of several one that diverged leaves nothing."""
    losses = [[2.0, 2.5, 2.125, 4.0], [3.0, 3.5], [1.75], [1.0, math.nan, 1.25], [math.nan]]
    rows = [{"rate": rate, "loss": loss, "other": -loss} for rate, own in enumerate(losses) for loss in own]
    found = over_seeds(pd.DataFrame(rows).sample(frac=1, random_state=0), ["rate"], ["loss", "other"])
    assert found["rate"].to_list() == [*range(5)] and found["seeds"].to_list() == [*map(len, losses)]
    told = found[["loss", "low", "high"]].to_numpy()
    assert told[:2] == pytest.approx(np.array([mean_interval(own) for own in losses[:2]]))
    assert told[2].tolist() == [1.75] * 3 and np.isnan(told[3:]).all()
    assert found["other"].to_numpy() == pytest.approx(-told[:, 0], nan_ok=True), "of the others the means"


def test_where_one_seed_alone_was_measured_there_is_no_mean() -> None:
    """As where a lease ended between two looks."""
    looks = {"t001": [10, 12, 20], "t002": [10, 20]}
    rows = [{"heads": 4, "trial": trial, "steps": at, "loss": 1.0} for trial in looks for at in looks[trial]]
    found = mean_curves(pd.DataFrame(rows), ["heads"], ["loss"])
    assert found["steps"].to_list() == [10, 20] and found["seeds"].to_list() == [2, 2]
    alone = mean_curves(pd.DataFrame(rows[:3]), ["heads"], ["loss"])
    assert alone["steps"].to_list() == looks["t001"], "of one seed all are there"


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
    assert found.by_kind == {
        "steps": 90,
        "start": 10,
        "compile": 0,
        "evaluation": 0,
        "checkpoint": 0,
        "idle": 55,
        "lost": 5,
    }
    assert found.table.loc["nanogpt", "steps"] == 70 and found.table.loc["translation", "lost"] == 5


def test_money_and_energy_stand_beside_the_seconds_where_they_are_known(spent: Written, printed: Printed) -> None:
    summary = "spent 2m40s of 16m40s (16.0 %), 56.2 % of it in optimizer steps"
    assert spending(open_study(spent.folder)).summary == summary
    spent.journal.write_facts(settings={"price_per_hour": "9.0"}, energy_joules=7200.0)
    assert spending(open_study(spent.folder)).summary == f"{summary}, 0.40 at 9.00 a device-hour, 2 Wh of this machine"
    assert json.loads(printed(SpendSettings, spent.folder, "--json"))["energy_joules"] == 7200


def test_what_was_spent_is_not_rounded_up_to_the_cap(write: Callable[..., Written]) -> None:
    """It is told as at the end of a search."""
    study = write(cap_seconds=90.0)
    study.trial("t1")
    study.slot(closed=89.5)
    assert spending(open_study(study.folder)).summary.startswith("spent 1m29.5s of 1m30s (99.4 %)")


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
    assert (found.spent, found.by_kind["idle"]) == (190, 55)


@pytest.mark.parametrize(("share", "how"), [(None, "turned"), (0.25, "final"), (1.25, "turned")])
def test_training_past_the_best_is_told_as_far_as_it_was_looked_at(
    spent: Written, share: float | None, how: str
) -> None:
    """t1 was best at 30 s, as its average tells: what its last report tells is of then. t2 is as good as ever. A second
    of a slot is what the slot holds of a device."""
    spent.slot(2)
    spent.journal.update("slots", 2, {"share": share})
    lease = spent.lease("t1", 2, rung=0, price=1.0, opened=0.0, charged=1.0)
    for trial, seconds, loss, averaged, ended in (
        ("t1", 10, 3.0, None, "rung"), ("t1", 30, 2.5, 2.0, None), ("t1", 50, 2.6, 2.1, None),
        ("t1", 70, 2.0, None, how), ("t2", 5, 3.0, None, None), ("t2", 20, 3.001, None, "rung"),
    ):  # fmt: skip
        row = {"trial": trial, "at": 80, "training_seconds": seconds, "valid_loss": loss, "averaged_loss": averaged}
        spent.journal.insert("reports", row | {"ended": ended, "lease": lease if trial == "t1" else None})
    found = spending(open_study(spent.folder))
    assert sorted(found.past_best) == [0, past := 40 * (share or 1)]
    assert found.past_best_text.startswith(f"trained past their best: {past:.0f}")


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
        "early": lambda study: study.journal.write_facts(cap_seconds=2000.0),
    }
    for name, later in went_on.items():
        study = write(name, ended={"reason": "cap", "spent": 100.0, "cap": 1000.0})
        study.slot(0, closed=100.0)
        study.trial("t1")
        later(study)
        assert ("it was killed" in ending(open_study(study.folder))) == (name != "no"), name
