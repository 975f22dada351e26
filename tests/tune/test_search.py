"""Whole searches, with real Ray, real processes and real training: left alone, killed, told to end.

How exact the account is, and how soon a search ends that is told to, is the soak's to measure, on a quiet machine.
"""

import json
import re
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.searches import FAMILIES, LONG, Searched, comes, trains
from tests.soak.accounts import adds_up, number, rows, spent
from tests.soak.kill import ASTRAY, TOLD, is_in
from tests.soak.observer import Observer
from tests.soak.search import Search
from tests.tune.display.conftest import check_all_are_complete
from tune.cli import main
from tune.ranking import ranking
from tune.search.ladder import WALL_CLOCK_MULTIPLE
from tune.search.resume import close_what_a_kill_left_open
from tune.settings import Settings
from tune.store.journal import Journal

LATE = r"error: (its process had not started|hung: no sign of life) .*by the end of its lease"
"""Why a trial may fail that does nothing wrong: it is a busy machine's."""


def test_no_process_outlives_it_and_each_that_trained_had_a_slot(searched: Searched, observer: Observer) -> None:
    assert comes(lambda: not observer.alive(searched.driver))
    assert 0 < len(observer.trials(searched.driver)) <= number(searched.study, "SELECT COUNT(*) FROM slots")


def test_the_cap_holds_and_the_journal_adds_up(searched: Searched) -> None:
    assert 0 < spent(searched.study) <= searched.cap and adds_up(searched.study)
    on_leases = number(searched.study, "SELECT TOTAL(seconds) FROM charges WHERE lease IS NOT NULL")
    assert number(searched.study, "SELECT TOTAL(charged) FROM leases") == pytest.approx(on_leases, abs=0.05)
    assert number(searched.study, "SELECT TOTAL(seconds) FROM charges WHERE what = 'steps'") > 0


def test_every_trial_is_accounted_for(searched: Searched) -> None:
    trials = rows(searched.study, "SELECT state, reason FROM trials")
    assert trials and "running" not in {trial["state"] for trial in trials}
    assert all(re.match(LATE, trial["reason"]) for trial in trials if trial["state"] == "failed")


def test_it_leaves_what_it_promises(searched: Searched) -> None:
    facts = json.loads((searched.study / "study.json").read_text())
    assert facts["corpora"]["nanogpt"]["builtin"] and facts["settings"]["report_every"] == "1s"
    for family in FAMILIES:
        kept = {file.name for file in (searched.study / f"best-{family}").iterdir()}
        assert kept >= {"config.json", "tokenizer.json"}
    assert "Failed to fetch" not in (searched.study / "log.txt").read_text()
    assert (searched.study / "tensorboard" / "ledger").is_dir()
    assert set(ranking(searched.study)["family"]) == set(FAMILIES)


def test_the_screen_shows_decisions_results_and_what_it_cost(searched: Searched) -> None:
    assert re.search(r"t\d+ \w+ d\d+ h\d+ l\d+ p\S+ \w+: (start|promote|finish): ", searched.printed)
    for family in FAMILIES:
        told = rf"^{family}: best t\d+ .*validation perplexity \S+ .*test perplexity (\S+|not measured), "
        assert re.search(told, searched.printed, re.MULTILINE)
    spending = r"^spent \S+ of \S+ \([\d.]+ %\), [\d.]+ % of it in optimizer steps(, \S+ k?Wh of this machine)?$"
    assert re.search(spending, searched.printed, re.MULTILINE)
    assert not re.search(r"warn|error|ray::|Traceback", re.sub(LATE, "", searched.printed), re.IGNORECASE)


def test_a_search_that_is_over_says_so_and_runs_no_more(searched: Searched, capsys: pytest.CaptureFixture[str]) -> None:
    before = rows(searched.study, "SELECT * FROM charges")
    assert main(Settings, ["--resume", str(searched.study)]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{searched.study}: it is over: spent ") and said.count("\n") == 1
    assert rows(searched.study, "SELECT * FROM charges") == before


def test_it_tells_the_wall_clock_that_it_had(searched: Searched) -> None:
    facts = {row["key"]: json.loads(row["value"]) for row in rows(searched.study, "SELECT key, value FROM study")}
    had = WALL_CLOCK_MULTIPLE * searched.cap / facts["devices"]["slots"]
    assert (facts["ended"]["reason"], facts["ended"]["wall_clock"]) == ("cap", pytest.approx(had))


def test_what_the_records_took_is_a_part_of_the_search(searched: Searched) -> None:
    taken = json.loads(rows(searched.study, "SELECT value FROM study WHERE key = 'overhead'")[0]["value"])
    assert 0 < taken["journal"] + taken["tensorboard"] < taken["search"]


def test_the_share_of_the_peak_is_of_the_peak_that_was_measured(searched: Searched) -> None:
    """Of every report that has a speed; and there is one peak of each precision that was tried."""
    query = "SELECT mfu, peak_flops, config FROM trials JOIN reports USING (trial) WHERE tokens_per_second > 0"
    reports = rows(searched.study, query)
    assert reports and all(report["mfu"] > 0 for report in reports)
    peaks = {(json.loads(report["config"])["precision"], report["peak_flops"]) for report in reports}
    assert len(peaks) == len(dict(peaks))


def test_hparams_of_every_trial_are_there(searched: Searched) -> None:
    check_all_are_complete(searched.study)


@dataclass(frozen=True, kw_only=True)
class Life:
    """One run of a search, until it was killed or told to end; last: its journal's last report, if it trained."""

    driver: int
    code: int
    printed: str
    trained: bool
    last: dict[str, Any]


@pytest.fixture(scope="module")
def lives(observer: Observer, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Life]]:
    """A study and its lives: told to end in order, killed, and told twice, each as soon as the search has trained.

    After the first its folder is lost, and it goes on from its mirror.
    """
    study, lives = tmp_path_factory.mktemp("ended") / "study", dict[str, Life]()
    (drive := study.with_name("drive")).mkdir()
    flags = ("--budget", LONG, "--families", "nanogpt", "--devices", "1", "--report-every", "1s", "--out", study)
    flags += ("--fix", "d_model=32,heads=4,layers=2,precision=fp32")  # its first rung is short
    for end in ("in order", "killed", "at once"):
        search = Search(observer, *(("--resume", study) if lives else flags), "--mirror", drive)
        trained = bool(lives or search.wait_for("at rung 0")) and trains(search, study)
        if end == "killed":
            search.kill()
        else:
            search.interrupt()
        if end == "at once":
            assert search.wait_for("ending in order"), search.printed
            search.tell(signal.SIGTERM)
        code = search.finish()
        (last,) = rows(study, "SELECT report, trial, steps FROM reports ORDER BY report DESC LIMIT 1")
        lives[end] = Life(driver=search.driver, code=code, printed=search.printed, trained=trained, last=last)
        if end == "in order":
            shutil.rmtree(study)
    return study, lives


def test_however_a_search_was_ended_it_goes_on_as_the_same(lives: tuple[Path, dict[str, Life]]) -> None:
    _, ended = lives
    assert all(life.trained and ASTRAY not in life.printed for life in ended.values())
    assert all("mirror: " not in life.printed for life in ended.values())


def test_nothing_that_was_told_is_lost(lives: tuple[Path, dict[str, Life]]) -> None:
    study, ended = lives
    told = [told for life in ended.values() for told in TOLD.findall(life.printed)]
    assert told and all(is_in(study, *each) for each in told)


def test_told_once_it_ends_in_order_and_keeps_what_it_found(lives: tuple[Path, dict[str, Life]]) -> None:
    study, ended = lives
    life = ended["in order"]
    assert life.code == 128 + signal.SIGINT
    how = f"python tune/run.py --resume {study} --mirror {study.with_name('drive')}"
    assert life.printed.splitlines()[-1] == f"ended by SIGINT; go on with: {how}"
    assert (study / "best-nanogpt" / "config.json").exists()


def test_the_trial_that_an_orderly_end_cut_short_is_the_first_to_go_on_and_from_there(
    lives: tuple[Path, dict[str, Life]],
) -> None:
    before = lives[1]["in order"].last
    after = rows(lives[0], f"SELECT trial, steps FROM reports WHERE report > {before['report']} ORDER BY report")[0]
    assert after["trial"] == before["trial"] and after["steps"] > before["steps"]


def test_told_twice_it_has_another_code_than_success(lives: tuple[Path, dict[str, Life]]) -> None:
    life = lives[1]["at once"]
    assert life.code in (128 + signal.SIGINT, 128 + signal.SIGTERM) and "\nspent " not in life.printed
    assert "\nspent " in lives[1]["in order"].printed


def test_no_trial_outlives_a_search_whose_driver_is_gone(
    lives: tuple[Path, dict[str, Life]], observer: Observer
) -> None:
    """Two small processes of Ray's, which use no device, see only after a minute that their driver was killed."""
    for life in lives[1].values():
        assert comes(lambda life=life: not {each.pid for each in observer.trials(life.driver) if each.gone is None})


def test_the_account_of_all_lives_adds_up(lives: tuple[Path, dict[str, Life]]) -> None:
    with Journal(lives[0], new=False) as journal:
        close_what_a_kill_left_open(journal)
    assert adds_up(lives[0]) and spent(lives[0]) > 0
