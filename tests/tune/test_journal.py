"""The journal's laws: all or nothing, one writer, readable while it is written."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tune import stopwatch
from tune.journal import FILE, SCHEMA, Journal, connect


def trial(name: str) -> dict[str, object]:
    return {"trial": name, "family": "nanogpt", "config": "{}", "state": "paused", "created": 0.0}


def test_a_transaction_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    journal = Journal(tmp_path, new=True)
    with pytest.raises(RuntimeError), journal.transaction():
        journal.insert("trials", trial("t001"))
        with journal.transaction():
            journal.insert("trials", trial("t002"))
        raise RuntimeError
    assert journal.rows("SELECT * FROM trials") == []


def test_it_is_read_while_it_is_written_and_only_read(tmp_path: Path) -> None:
    journal = Journal(tmp_path, new=True)
    journal.insert("trials", trial("t001"))
    reader = connect(tmp_path)
    assert [row["trial"] for row in reader.execute("SELECT trial FROM trials")] == ["t001"]
    with pytest.raises(Exception, match="readonly"):
        reader.execute("DELETE FROM trials")
    journal.insert("trials", trial("t002"))
    assert len(reader.execute("SELECT trial FROM trials").fetchall()) == 2


def test_facts_come_back_and_are_replaced(tmp_path: Path) -> None:
    journal = Journal(tmp_path, new=True)
    journal.note(cap_seconds=10, families={"nanogpt": 1.0})
    journal.note(cap_seconds=20)
    assert journal.facts() == {"cap_seconds": 20, "families": {"nanogpt": 1.0}}


def test_a_journal_of_before_an_upgrade_goes_on(tmp_path: Path) -> None:
    """With its rows; and what it never had is refused as before."""
    with closing(sqlite3.connect(tmp_path / FILE)) as before:
        before.executescript(SCHEMA)
        before.execute("INSERT INTO trials (trial, family, config, state, created) VALUES ('t1', 'a', '', 'paused', 0)")
        before.commit()
    for _ in range(2):
        journal = Journal(tmp_path, new=False)
        journal.insert("reports", {"trial": "t1", "at": 0.0, "mfu": 0.5})
        journal.close()
    with closing(sqlite3.connect(tmp_path / FILE)) as stranger:
        assert stranger.execute("SELECT mfu FROM reports").fetchall() == [(0.5,), (0.5,)]
        stranger.execute("ALTER TABLE reports ADD COLUMN theirs REAL")
    with pytest.raises(ValueError, match="of another version"):
        Journal(tmp_path, new=False)


def test_its_watch_counts_each_statement_and_nothing_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a clock that goes on by a second each time it is read."""
    journal, clock = Journal(tmp_path, new=True), iter(range(1000))
    monkeypatch.setattr(stopwatch, "perf_counter", lambda: next(clock))
    before = journal.watch.seconds
    with journal.transaction():
        next(clock)
        journal.insert("trials", trial("t001"))
        with journal.transaction():
            journal.update("trials", "t001", {"reason": "why"})
    journal.note(cap_seconds=10)
    journal.rows("SELECT * FROM trials")
    assert journal.watch.seconds - before == 6


def test_a_folder_without_a_study_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no journal\.db"):
        connect(tmp_path)


def test_a_second_run_is_refused(tmp_path: Path) -> None:
    first = Journal(tmp_path, new=True)
    with pytest.raises(ValueError, match="another run"):
        Journal(tmp_path, new=False)
    first.close()
    Journal(tmp_path, new=False).close()
