"""A whole search, with real Ray, real processes and real training, on the builtin text."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tune.heartbeats import last_beat, still_there
from tune.journal import connect

CAP = 60.0
SHORT_CAP = 40.0
"""Of a search of one family on one slot, which takes as long by the clock on the wall."""


def command(repository: Path, *arguments: str) -> list[str]:
    return [sys.executable, str(repository / "tune" / "run.py"), *arguments]


def totals(study: Path) -> dict[str, float]:
    """Device-seconds held, charged, and charged to leases."""
    journal = connect(study)
    queries = {
        "held": "SELECT TOTAL(closed - opened) FROM slots",
        "charged": "SELECT TOTAL(seconds) FROM charges",
        "on leases": "SELECT TOTAL(seconds) FROM charges WHERE lease IS NOT NULL",
        "leases": "SELECT TOTAL(charged) FROM leases",
        "steps": "SELECT TOTAL(seconds) FROM charges WHERE what = 'steps'",
        "open": "SELECT COUNT(*) FROM slots WHERE closed IS NULL",
    }
    return {name: journal.execute(query).fetchone()[0] for name, query in queries.items()}


@pytest.fixture(scope="module")
def study(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A search of a minute, from another folder than the repository's, and what it printed."""
    folder = tmp_path_factory.mktemp("search")
    ran = subprocess.run(
        command(repository, "--budget", f"{CAP:.0f}s", "--out", "runs/minute", "--report-every", "1s"),
        cwd=folder, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return folder / "runs" / "minute", ran.stdout + ran.stderr


def test_the_cap_holds_and_the_journal_adds_up(study: tuple[Path, str]) -> None:
    total = totals(study[0])
    assert 0 < total["held"] <= CAP
    assert total["charged"] == pytest.approx(total["held"], abs=0.05)
    assert total["leases"] == pytest.approx(total["on leases"], abs=0.05)
    assert total["steps"] > 0 and total["open"] == 0


def test_every_trial_is_accounted_for(study: tuple[Path, str]) -> None:
    states = dict(connect(study[0]).execute("SELECT trial, state FROM trials").fetchall())
    assert states and not {"running", "failed"} & set(states.values())


def test_it_leaves_what_it_promises(study: tuple[Path, str]) -> None:
    folder = study[0]
    facts = json.loads((folder / "study.json").read_text())
    assert facts["corpora"]["nanogpt"]["builtin"] and facts["settings"]["budget"] == "1m"
    for family in ("translation", "nanogpt"):
        assert {file.name for file in (folder / f"best-{family}").iterdir()} >= {"config.json", "tokenizer.json"}
    assert (folder / "log.txt").is_file() and (folder / "tensorboard" / "ledger").is_dir()


def test_the_screen_shows_decisions_results_and_what_it_cost(study: tuple[Path, str]) -> None:
    screen = study[1]
    assert re.search(r"t001 \w+ d128 h4 l4 p\.1 \w+: start: ", screen)
    for family in ("translation", "nanogpt"):
        assert re.search(rf"^{family}: best t\d+ .*validation perplexity \S+, test perplexity ", screen, re.MULTILINE)
    assert re.search(r"^spent [\d.]+s of 1m \([\d.]+ %\), [\d.]+ % of it in optimizer steps$", screen, re.MULTILINE)
    assert not re.search(r"warn|error|ray::|Traceback", screen, re.IGNORECASE)


def test_both_families_are_ranked(study: tuple[Path, str], repository: Path) -> None:
    ranked = subprocess.run(
        [sys.executable, str(repository / "analysis" / "rank.py"), str(study[0]), "--json"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert {row["family"] for row in json.loads(ranked.stdout)} == {"translation", "nanogpt"}


def test_hparams_of_every_trial_are_there(study: tuple[Path, str]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trials = connect(study[0]).execute("SELECT trial, family FROM trials").fetchall()
    for trial, family in trials:
        (run,) = (study[0] / "tensorboard" / family).glob(f"{trial} *")
        events = EventAccumulator(str(run))
        events.Reload()
        assert "_hparams_/session_start_info" in events.summary_metadata


@contextmanager
def search_until(repository: Path, study: Path, seen: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """A search of one family on one slot that has printed `seen`, and what it printed so far."""
    words = command(
        repository, "--budget", f"{SHORT_CAP:.0f}s", "--families", "nanogpt", "--devices", "1", "--out", str(study)
    )
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as started:
        assert started.stdout is not None
        lines = []
        for line in started.stdout:
            lines.append(line)
            if seen in line:
                break
        try:
            yield started, lines
        finally:
            started.kill()


def resume(repository: Path, study: Path) -> None:
    """Go on with a study to its end; the books must add up, and no trial be trained to a rung a second time."""
    ran = subprocess.run(
        command(repository, "--resume", str(study)), capture_output=True, text=True, timeout=240, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    total = totals(study)
    assert total["held"] <= SHORT_CAP and total["open"] == 0
    assert total["charged"] == pytest.approx(total["held"], abs=0.05)
    journal = connect(study)
    assert journal.execute("SELECT COUNT(*) FROM reports WHERE final").fetchone()[0] == 1
    repeated = "SELECT trial, rung FROM reports WHERE rung IS NOT NULL GROUP BY trial, rung HAVING COUNT(*) > 1"
    assert journal.execute(repeated).fetchall() == []


def test_a_search_whose_driver_is_killed_loses_nothing_that_it_told(repository: Path, tmp_path: Path) -> None:
    """SIGKILL after the first result: what was printed is in the journal, no process is left, and the study goes on."""
    study = tmp_path / "study"
    with search_until(repository, study, "at rung 0") as (started, lines):
        started.kill()
    told = re.findall(r"(t\d+) \w+ at rung (\d+)", "".join(lines))
    journal = connect(study)
    query = "SELECT COUNT(*) FROM reports WHERE trial = ? AND rung = ?"
    assert told and [journal.execute(query, found).fetchone()[0] for found in told] == [1] * len(told)
    deadline = time.monotonic() + 20
    beats = [beat for trial in (study / "heartbeats").iterdir() if (beat := last_beat(study, trial.name))]
    while any(still_there(beat) for beat in beats) and time.monotonic() < deadline:
        pass
    assert not any(still_there(beat) for beat in beats)
    journal.close()
    resume(repository, study)


def test_a_search_told_to_end_does_so_in_order_and_goes_on_from_there(repository: Path, tmp_path: Path) -> None:
    """SIGTERM after the first result, then --resume: no trial is lost or trained again, and the cap holds over both."""
    study = tmp_path / "study"
    with search_until(repository, study, "at rung 0") as (started, _):
        told = time.monotonic()
        started.send_signal(signal.SIGTERM)
        assert started.stdout is not None
        rest = started.stdout.read()
        assert started.wait(60) == 128 + signal.SIGTERM
        assert time.monotonic() - told < 20
    assert f"--resume {study}" in rest
    before = totals(study)
    assert before["open"] == 0
    resume(repository, study)
    assert totals(study)["held"] > before["held"]
