import math
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.study import mean_curves, newest, open_kernels, open_studies, open_study, over_seeds
from tests.analysis.conftest import Written
from tune.arithmetic import mean_interval
from tune.store.journal import Journal, connect


def test_a_study_is_read_while_it_is_written(six: Written) -> None:
    study = open_study(six.folder)
    before = study.read("SELECT COUNT(*) AS n FROM reports")["n"].item()
    six.report("t1", 1.0, rung=1)
    assert study.read("SELECT COUNT(*) AS n FROM reports")["n"].item() == before + 1


def test_reading_never_writes(six: Written) -> None:
    with pytest.raises(ValueError, match="readonly"):
        open_study(six.folder).read("DELETE FROM trials RETURNING trial")


def test_the_newest_is_the_one_of_its_kind_that_was_written_last(write: Callable[..., Written]) -> None:
    old, new, kernels = write("b"), write("a"), write("kernels", kernels=["copy"])
    for study, age in ((old, 0), (new, 60), (kernels, 120)):
        for path in study.folder.iterdir():
            os.utime(path, (age, age))
    runs = old.folder.parent
    assert newest(runs) == new.folder and newest(runs, kernels=True) == kernels.folder
    with pytest.raises(ValueError, match=r"none of kernels.*kernels/run\.py"):
        open_kernels(old.folder)
    with pytest.raises(ValueError, match=r"is of kernels; draw it: .*plot\.py roofline"):
        open_study(kernels.folder)


def test_what_is_only_read_is_no_newer_for_it(write: Callable[..., Written]) -> None:
    """Though SQLite lays an empty log beside a journal that is opened; one with something in it counts."""
    old, new = write("b"), write("a")
    for study, age in ((old, 0), (new, 60)):
        study.trial("t1")
        study.journal.close()
        os.utime(study.folder / "journal.db", (age, age))
    with closing(connect(old.folder)) as reader:
        reader.execute("SELECT * FROM trials").fetchall()
        assert (old.folder / "journal.db-wal").exists() and newest(old.folder.parent) == new.folder
    with Journal(old.folder, new=False) as journal:
        journal.update("trials", "t1", {"state": "stopped"})
        os.utime(old.folder / "journal.db", (0, 0))
        assert newest(old.folder.parent) == old.folder


@pytest.mark.parametrize("content", [None, b"", b"no database at all" * 100])
def test_what_is_no_study_is_said_in_one_line(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "journal.db").write_bytes(content)
    with pytest.raises(ValueError, match=r"^study: .*") as error:
        open_study(tmp_path)
    assert "\n" not in str(error.value)


def test_an_empty_study_and_an_empty_runs_are_refused(write: Callable[..., Written], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no trial yet"):
        open_study(write("empty").folder)
    with pytest.raises(ValueError, match="no study in"):
        newest(tmp_path / "nowhere")


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
