"""The journal's laws: all or nothing, one writer, readable while it is written."""

import errno
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tune.errors import UserError
from tune.reports import Value
from tune.store.journal import JOURNAL_FILE, LAST_BEFORE, SCHEMA, Journal, connect, spent_at_its_end


def trial(name: str) -> dict[str, Value]:
    return {"trial": name, "family": "nanogpt", "config": "{}", "state": "paused", "created": 0.0}


def test_a_transaction_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    journal = Journal(tmp_path, new=True)
    with pytest.raises(RuntimeError), journal.transaction():
        journal.insert("trials", trial("t001"))
        with journal.transaction():
            journal.insert("trials", trial("t002"))
        raise RuntimeError
    assert journal.rows("SELECT * FROM trials") == []


def test_facts_that_are_written_together_are_written_all_or_none(tmp_path: Path) -> None:
    """Here the disk has no place for the second."""
    with Journal(tmp_path, new=True) as journal:
        ((pages,),) = journal.rows("PRAGMA page_count")
        journal.rows(f"PRAGMA max_page_count = {pages + 1}")
        with pytest.raises(sqlite3.OperationalError, match="full"):
            journal.write_facts(samples=1, bleu="x" * 100_000)
        assert journal.facts() == {}


def test_it_is_read_while_it_is_written_and_only_read(tmp_path: Path) -> None:
    journal = Journal(tmp_path, new=True)
    journal.insert("trials", trial("t001"))
    reader = connect(tmp_path)
    assert [row["trial"] for row in reader.execute("SELECT trial FROM trials")] == ["t001"]
    with pytest.raises(Exception, match="readonly"):
        reader.execute("DELETE FROM trials")
    journal.insert("trials", trial("t002"))
    assert len(reader.execute("SELECT trial FROM trials").fetchall()) == 2


def test_a_journal_of_before_an_upgrade_is_left_as_it_is_for_the_commit_that_is_named(tmp_path: Path) -> None:
    """And analysis reads it; one with what it never had is refused as none of ours."""
    with closing(sqlite3.connect(tmp_path / JOURNAL_FILE)) as before:
        before.executescript(SCHEMA)
        before.execute("INSERT INTO trials (trial, family, config, state, created) VALUES ('t1', 'a', '', 'paused', 0)")
        before.commit()
    there = (tmp_path / JOURNAL_FILE).read_bytes()
    for look in (lambda: Journal(tmp_path, new=False), lambda: Journal.in_memory_copy(tmp_path)) * 2:
        with pytest.raises(ValueError, match=f"earlier version: go on with it at the project's commit {LAST_BEFORE}"):
            look()
    assert (tmp_path / JOURNAL_FILE).read_bytes() == there
    with closing(connect(tmp_path)) as read:
        assert [row["trial"] for row in read.execute("SELECT trial FROM trials")] == ["t1"]
        assert read.execute("SELECT mfu FROM reports").fetchall() == []
    with closing(sqlite3.connect(tmp_path / JOURNAL_FILE)) as stranger:
        stranger.execute("ALTER TABLE reports ADD COLUMN theirs REAL")
    with pytest.raises(ValueError, match="of another version"):
        Journal(tmp_path, new=False)


def test_a_journal_of_before_an_index_gets_it_and_goes_on(tmp_path: Path) -> None:
    """Without it, what one trial was charged is looked for among the leases of all."""
    Journal(tmp_path, new=True).close()
    with closing(sqlite3.connect(tmp_path / JOURNAL_FILE)) as before:
        before.execute("DROP INDEX leases_by_trial")
    for look in (lambda: Journal.in_memory_copy(tmp_path), lambda: Journal(tmp_path, new=False)):
        with look() as journal:
            query = "SELECT TOTAL(charged) FROM leases JOIN slots USING (slot) WHERE trial = 't001'"
            assert not [row for row in journal.rows(f"EXPLAIN QUERY PLAN {query}") if "SCAN" in row["detail"]]


def test_a_second_run_is_refused(tmp_path: Path) -> None:
    first = Journal(tmp_path, new=True)
    with pytest.raises(ValueError, match="another run"):
        Journal(tmp_path, new=False)
    first.close()
    Journal(tmp_path, new=False).close()


def test_what_is_committed_is_on_the_disk(tmp_path: Path) -> None:
    """A power failure takes nothing back: SQLite waits for the disk at each commit (2 is FULL)."""
    with Journal(tmp_path, new=True) as journal:
        assert journal.rows("PRAGMA synchronous")[0][0] == 2
        assert journal.rows("PRAGMA journal_mode")[0][0] == "wal"


def test_an_error_leaves_no_lock(tmp_path: Path) -> None:
    """Nor where the journal is refused; the error is kept, as a notebook keeps it."""
    with pytest.raises(RuntimeError) as kept, Journal(tmp_path, new=True):
        raise RuntimeError
    with Journal(tmp_path, new=False) as journal:
        journal.insert("slots", {"slot": 0, "opened": 2.0, "closed": 1.0})
    for _ in range(2):
        with pytest.raises(ValueError, match="damaged"):
            Journal(tmp_path, new=False)
    assert kept.tb is not None


def test_a_disk_without_locks_is_told_by_the_flag_that_named_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    Journal(tmp_path, new=True).close()
    monkeypatch.setattr("fcntl.flock", refuse)
    for new, flag, remedy in ((True, "--out", "name one"), (False, "--resume", "make it writable, or copy it")):
        rule = rf"'{tmp_path}' cannot be written and locked \(No locks available\), .*: {remedy}"
        with pytest.raises(UserError, match=f"^{flag}: {rule}"):
            Journal(tmp_path, new=new)


@pytest.mark.parametrize("ahead", [0.0, 3600.0, 20 * 3600.0, 1e9])
def test_a_study_goes_on_whose_clock_was_ahead_when_it_was_created(tmp_path: Path, ahead: float) -> None:
    """And has been set right since: the study's own clock has nothing of that. Other times are still checked."""
    with Journal(tmp_path, new=True) as journal:
        journal.write_facts(created=time.time() + ahead)
        journal.insert("slots", {"slot": 0, "opened": 0.0, "closed": 36_000.0})
        journal.insert("charges", {"at": 36_000.0, "slot": 0, "what": "lost", "seconds": 36_000.0})
    with Journal(tmp_path, new=False) as journal:
        assert journal.rows("SELECT closed FROM slots")[0][0] == 36_000.0
        journal.insert("slots", {"slot": 1, "opened": 0.0, "closed": 1e300})
    with pytest.raises(ValueError, match="damaged"):
        Journal(tmp_path, new=False)


def test_what_a_kill_left_of_a_new_journal_is_made_whole(tmp_path: Path) -> None:
    """Killed before the file came, or before its tables; not where trials ran, whose account would be forgotten."""
    for _ in range(2):
        with Journal(tmp_path, new=False) as journal:
            assert journal.rows("SELECT * FROM trials") == []
        (tmp_path / JOURNAL_FILE).write_bytes(b"")
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(ValueError, match="damaged"):
        Journal(tmp_path, new=False)
    (tmp_path / JOURNAL_FILE).unlink()
    with pytest.raises(ValueError, match="holds no journal"):
        Journal(tmp_path, new=False)


def test_where_none_can_be_looked_for_there_is_none(tmp_path: Path) -> None:
    """As in a folder that is another user's alone."""
    with pytest.raises(ValueError, match=r"^study: [^\n]* holds no journal\.db: name the folder of a study"):
        connect(tmp_path / ("x" * 300))


@pytest.mark.parametrize(
    ("terms", "over"),
    [
        ({}, True), ({"cap": 61.0}, False), ({"deadline": 20.0}, True), ({"deadline": 41.0}, False),
        ({"deadline": None}, False), ({"stop_below_gain": 2e-6}, True), ({"stop_below_gain": 1e-7}, False),
        ({"stop_below_gain": None}, False),
    ],
)  # fmt: skip
def test_a_study_is_over_under_its_terms_and_goes_on_under_others_that_allow_more(
    tmp_path: Path, terms: dict[str, float | None], over: bool
) -> None:
    """Nor is it where it was told to stop."""
    before: dict[str, float | None] = {"cap": 60.0, "deadline": 40.0, "stop_below_gain": 1e-6}
    with Journal(tmp_path, new=True) as journal:
        journal.insert("trials", trial("t001"))
        journal.insert("reports", {"trial": "t001", "at": 1.0, "rung": 0, "valid_loss": 1.0})
        for reason in ("SIGTERM", "errors", "cap"):
            asked = {name: before[name] for name in ("cap", "stop_below_gain")}
            journal.write_facts(caps=[{"deadline": 40.0}], ended={"reason": reason, "spent": 30.0, **asked})
            assert spent_at_its_end(tmp_path, before | terms) == (30.0 if over and reason == "cap" else None)


def test_a_study_that_found_nothing_is_not_over(tmp_path: Path) -> None:
    """What failed may have been mended since."""
    terms: dict[str, float | None] = {"cap": 60.0, "deadline": None, "stop_below_gain": None}
    with Journal(tmp_path, new=True) as journal:
        journal.insert("trials", trial("t001"))
        journal.write_facts(ended={"reason": "cap", "spent": 30.0, "cap": 60.0})
        for rung, over in ((None, None), (0, 30.0)):
            journal.insert("reports", {"trial": "t001", "at": 1.0, "rung": rung, "valid_loss": 1.0})
            assert spent_at_its_end(tmp_path, terms) == over


def test_a_loops_worst_number_is_no_damage(tmp_path: Path) -> None:
    """As the sentinel that some report of a training that failed."""
    with Journal(tmp_path, new=True) as journal:
        journal.insert("trials", trial("t001"))
        journal.insert("reports", {"trial": "t001", "at": 0.0, "rung": 0, "valid_loss": sys.float_info.max})
    with Journal(tmp_path, new=False) as journal:
        assert journal.rows("SELECT valid_loss FROM reports")


READ = """
import locale, os, sys
from pathlib import Path
from tune import cli
from tune.settings import Settings
from tune.store.journal import Journal, connect
if not os.getuid():
    os.setuid(65534)
print(connect(sys.argv[1]).execute("SELECT COUNT(*) FROM trials").fetchone()[0], flush=True)
print(cli.main(Settings, ["--resume", sys.argv[1]]))
try:
    Journal(Path(sys.argv[1]), new=False)
except ValueError as error:
    print(error)
"""


@pytest.fixture
def read_only() -> Iterator[Path]:
    """A finished study where nobody may write, not even root; pytest's own folders are closed to others."""
    with tempfile.TemporaryDirectory() as outer:
        folder = Path(outer) / "study"
        folder.mkdir()
        with Journal(folder, new=True) as journal:
            journal.insert("trials", trial("t001"))
            measured = {"at": 1.0, "rung": 0, "valid_loss": 1.0, "training_seconds": 1.0}
            journal.insert("reports", {"trial": "t001", **measured})
            journal.write_facts(ended={"reason": "cap", "spent": 58.25, "cap": 60.0})
        (folder / "study.json").write_text('{"settings": {"budget": "1m"}}')
        for path, mode in ((Path(outer), 0o755), *((each, 0o444) for each in folder.iterdir()), (folder, 0o555)):
            path.chmod(mode)
        yield folder
        folder.chmod(0o755)


def test_a_finished_study_is_read_in_a_folder_that_is_read_only(read_only: Path, repository: Path) -> None:
    """And to go on with it is one line: with another cap it would be written on."""
    there = sorted(read_only.iterdir())
    words = [sys.executable, "-c", READ, str(read_only)]
    said = subprocess.run(words, capture_output=True, text=True, cwd=repository, check=False)
    assert said.returncode == 0, said.stderr
    count, over, code, refused = said.stdout.splitlines()
    assert (count, code) == ("1", "0")
    assert over.startswith(f"{read_only}: it is over: spent 58.2s of 1m; a larger --budget goes on")
    assert refused.startswith(f"--resume: {str(read_only)!r} cannot be written and locked (")
    assert sorted(read_only.iterdir()) == there
