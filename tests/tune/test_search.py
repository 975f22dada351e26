"""A whole search, with real Ray, real processes and real training, on the builtin text."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.soak.accounts import compare
from tests.soak.observer import Observer, Process
from tests.tune.board.conftest import check_all_are_complete
from tune.store.journal import connect

CAP = 60.0


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
def observer() -> Iterator[Observer]:
    """Looks at the processes of the search below while it runs."""
    looking = Observer()
    looking.start()
    yield looking
    looking.end()


@pytest.fixture(scope="module")
def ended(
    repository: Path, observer: Observer, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str, list[Process]]:
    """A search of a minute, from another folder than the repository's: what it left, printed, and ran on."""
    folder = tmp_path_factory.mktemp("search")
    words = command(repository, "--budget", f"{CAP:.0f}s", "--out", "runs/minute", "--report-every", "1s")
    with subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as search:
        observer.watch(search.pid)
        printed, _ = search.communicate(timeout=240)
    assert search.returncode == 0, printed
    observer.look()
    return folder / "runs" / "minute", printed, observer.trials(search.pid)


@pytest.fixture(scope="module")
def study(ended: tuple[Path, str, list[Process]]) -> tuple[Path, str]:
    """What it left and printed."""
    return ended[:2]


def test_the_journals_account_is_the_operating_systems(ended: tuple[Path, str, list[Process]]) -> None:
    """Slot by slot, on a machine that may be busy; `make soak` asks for 1 s."""
    slots = compare(ended[0], ended[2])
    assert len(slots) == len(ended[2]) > 0
    assert all(abs(slot.off) <= 2.5 for slot in slots), slots


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
        told = rf"^{family}: best t\d+ .*validation perplexity \S+ on .*, test perplexity (\S+|not measured), "
        assert re.search(told, screen, re.MULTILINE)
    assert re.search(r"^spent [\d.]+s of 1m \([\d.]+ %\), [\d.]+ % of it in optimizer steps$", screen, re.MULTILINE)
    assert not re.search(r"warn|error|ray::|Traceback", screen, re.IGNORECASE)


def test_a_search_that_is_over_says_so_and_runs_no_more(study: tuple[Path, str], repository: Path) -> None:
    before = totals(study[0])
    words = command(repository, "--resume", str(study[0]))
    said = subprocess.run(words, capture_output=True, text=True, check=True)
    assert said.stdout.startswith(f"{study[0]}: it is over: spent ") and said.stdout.count("\n") == 1
    assert totals(study[0]) == before


def test_both_families_are_ranked(study: tuple[Path, str], repository: Path) -> None:
    ranked = subprocess.run(
        [sys.executable, str(repository / "analysis" / "rank.py"), str(study[0]), "--json"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert {row["family"] for row in json.loads(ranked.stdout)} == {"translation", "nanogpt"}


def test_the_records_take_little_of_the_search(study: tuple[Path, str]) -> None:
    """1 % is asked, of a search that is longer, on a machine that is quiet."""
    (facts,) = connect(study[0]).execute("SELECT value FROM study WHERE key = 'overhead'").fetchall()
    taken = json.loads(facts["value"])
    assert 0 < taken["journal"] + taken["tensorboard"] < 0.05 * taken["search"]


def test_the_share_of_the_peak_is_a_share(study: tuple[Path, str]) -> None:
    """Of every report that has a speed; and a peak is known of each precision that was tried."""
    rows = connect(study[0]).execute("SELECT mfu FROM reports WHERE tokens_per_second > 0").fetchall()
    assert rows and all(0 < row["mfu"] < 1.2 for row in rows)
    (facts,) = connect(study[0]).execute("SELECT value FROM study WHERE key = 'peak_flops'").fetchall()
    configs = connect(study[0]).execute("SELECT config FROM trials JOIN reports USING (trial)").fetchall()
    assert set(json.loads(facts["value"])) == {json.loads(row["config"])["precision"] for row in configs}


def test_hparams_of_every_trial_are_there(study: tuple[Path, str]) -> None:
    check_all_are_complete(study[0])
