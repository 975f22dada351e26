"""A whole search whose trials hang, raise errors and diverge: each costs little, is told why, and the rest goes on."""

import json
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tune.heartbeats import last_beat, still_there
from tune.journal import connect

CAP = 110.0
FAULTS = {"hangs": ["t002"], "raises": ["t003"], "diverges": ["t004", "t006"]}


def search(repository: Path, folder: Path, faults: dict[str, list[str]], *flags: str) -> str:
    """Run a search with such faults to its end; what it printed."""
    (folder / "faults.json").write_text(json.dumps(faults))
    words = [sys.executable, str(repository / "tests" / "tune" / "faulty.py"), str(folder / "faults.json")]
    words += ["--out", str(folder / "study"), "--families", "nanogpt", "--report-every", "1s", *flags]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=240, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def study(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The study, and what was printed."""
    folder = tmp_path_factory.mktemp("faults")
    screen = search(repository, folder, FAULTS, "--budget", f"{CAP:.0f}s", "--devices", "2", "--oversubscribe")
    return folder / "study", screen


def one(journal: sqlite3.Connection, query: str, *values: object) -> float:
    return float(journal.execute(query, values).fetchone()[0])


def test_the_cap_holds_and_the_rest_goes_on(study: tuple[Path, str]) -> None:
    journal = connect(study[0])
    assert 0.9 * CAP <= one(journal, "SELECT SUM(closed - opened) FROM slots") <= CAP
    assert one(journal, "SELECT COUNT(*) FROM reports WHERE final") == 1
    sound = "SELECT COUNT(DISTINCT trial) FROM reports WHERE rung IS NOT NULL AND trial NOT IN ('t002', 't003', 't004')"
    assert one(journal, sound) >= 1


def test_a_trial_that_hangs_is_ended_after_its_lease_and_charged(study: tuple[Path, str]) -> None:
    journal = connect(study[0])
    leases = journal.execute("SELECT * FROM leases WHERE trial = 't002'").fetchall()
    assert leases
    for lease in leases:
        assert lease["reserved"] <= lease["charged"] <= lease["reserved"] + 7
    (first, *_) = journal.execute("SELECT * FROM decisions WHERE trial = 't002' AND reason LIKE 'error%'").fetchall()
    assert first["reason"] == "error: hung: no sign of life by the end of its lease"
    beat = last_beat(study[0], "t002")
    assert beat is not None and not still_there(beat)


def test_the_user_sees_what_a_trial_died_of(study: tuple[Path, str]) -> None:
    folder, screen = study
    (row,) = connect(folder).execute("SELECT state, reason FROM trials WHERE trial = 't003'").fetchall()
    assert (row["state"], row["reason"]) == ("failed", "error: ArithmeticError: the flux capacitor")
    assert re.search(r"t003 nanogpt .*: pause: error: ArithmeticError: the flux capacitor$", screen, re.MULTILINE)
    assert re.search(r"t003 nanogpt .*: stop: error: ArithmeticError: the flux capacitor$", screen, re.MULTILINE)


def test_what_diverged_gets_next_to_nothing_more_and_ranks_last(study: tuple[Path, str], repository: Path) -> None:
    """The steps after its last sound report are those after it diverged, and some before."""
    journal = connect(study[0])
    diverged = [row["trial"] for row in journal.execute("SELECT trial FROM trials WHERE reason = 'diverged'")]
    assert "t004" in diverged
    for trial in diverged:
        assert one(journal, "SELECT COUNT(*) FROM leases WHERE trial = ?", trial) == 1
        sound = "SELECT IFNULL(MAX(at), 0) + 0.001 FROM reports WHERE trial = ? AND train_loss IS NOT NULL"
        steps = f"SELECT TOTAL(seconds) FROM charges WHERE trial = ? AND what = 'steps' AND at > ({sound})"
        assert 0 < one(journal, steps, trial, trial) <= 0.02 * CAP
    words = [sys.executable, str(repository / "analysis" / "rank.py"), str(study[0]), "--json"]
    ranked = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    places = [row["trial"] in diverged for row in ranked if row["state"] != "failed"]
    assert places == sorted(places) and places.count(True) == len(diverged)
