"""Searches of a user's loop in virtual time: the cap, a kill, faults."""

import json
import math
import random
import shutil
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd
import pytest

from tests.tune.search.loops import SPACE, Loops
from tune.display.tensorboard import TensorBoard
from tune.loop import RECORD
from tune.own_loop import export
from tune.own_space import choice
from tune.ranking import ranking
from tune.search.resume import state_mismatch_warnings
from tune.search.successive_halving import HOPELESS
from tune.store.journal import ENDED_BY_ERRORS, spent_at_its_end
from tune.study import conclude

FAULTS = ("none", "crashes", "hangs", "never saves", "returns", "diverges", "says nothing")
FAILS = {"crashes": "error: its train raised RuntimeError: mine", "says nothing": "error: no report within its lease"}


def check(search: Loops, cap: float) -> None:
    assert search.spent <= cap
    charged = search.total("SELECT TOTAL(seconds) FROM charges")
    held = search.total("SELECT TOTAL(closed - opened) FROM slots")
    assert charged == pytest.approx(held, abs=0.01)


@pytest.mark.parametrize("seed", range(6))
def test_the_cap_holds_whatever_loops_do_and_nothing_of_the_others_is_lost(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    cap, slots, gap = chance.choice((120.0, 400.0)), chance.choice((1, 2, 4)), chance.choice((0.2, 0.5, 2.0, 8.0))
    search = Loops(
        tmp_path / "study", cap=cap, slots=slots, gap=gap, seed=seed, space={**SPACE, "fault": choice(*FAULTS)}
    )  # fmt: skip
    search.run()
    check(search, cap)
    for row in search.values():
        why = FAILS.get(json.loads(row["config"])["fault"], ())
        assert row["state"] != "failed" or row["reason"].startswith(why), row["reason"]


@pytest.mark.parametrize(("gap", "slots"), [(0.1, 1), (0.5, 4), (4.0, 2)])
def test_good_loops_use_the_cap_and_the_best_value_reported_wins(tmp_path: Path, gap: float, slots: int) -> None:
    search = Loops(tmp_path / "study", cap=400.0, slots=slots, gap=gap).run()
    check(search, 400.0)
    assert search.spent > 0.9 * 400.0
    found = search.values()
    lowest = search.total("SELECT MIN(valid_loss) FROM reports WHERE final OR rung IS NOT NULL")
    assert found[0]["loss"] == lowest and len(found) > 4
    assert [row["loss"] for row in found if row["loss"]] == sorted(row["loss"] for row in found if row["loss"])
    assert {row["perplexity"] for row in found} == {None}


@pytest.mark.parametrize("how", ["at first", "after a kill", "after a fault"])
def test_a_slot_waits_for_the_end_of_a_lease_of_a_loop_that_never_reported(how: str, tmp_path: Path) -> None:
    """That holds half of what is there."""
    asked: dict[str, Any] = {"cap": 100.0, "slots": 2, "gap": 0.5, "deadline": 60.0}
    search = Loops(tmp_path / "study", **asked)
    if how == "after a kill":
        search.begin()
        search = Loops(tmp_path / "study", **asked)
    if how == "after a fault":
        search.broken = True
        search.run(1)
        search.broken = False
    search.run()
    check(search, 100.0)
    assert len(search.rows("SELECT slot FROM slots")) >= 2
    assert search.spent > 0.9 * 100.0


def test_a_printed_ranking_shows_the_trial_its_metric_and_its_configuration(tmp_path: Path) -> None:
    search = Loops(tmp_path / "study", cap=120.0, slots=1, gap=0.5, maximize="accuracy").run()
    table = ranking(search.folder, search.metric)
    assert list(table)[:6] == ["trial", "best_accuracy", "width", "rate", "accuracy", "seen"]
    with pd.option_context("display.width", 80, "display.max_columns", 0):
        header = str(table).partition("\n")[0].split()
    assert header[:4] == ["trial", "best_accuracy", "width", "rate"]


def test_with_a_life_trials_end_there_all_at_the_same_steps(tmp_path: Path) -> None:
    search = Loops(tmp_path / "study", cap=400.0, slots=2, gap=0.5, life=64).run()
    check(search, 400.0)
    at = search.rows("SELECT steps, ended FROM reports WHERE final")
    assert {row["steps"] for row in at if row["ended"] == "returned"} == {64} and max(row["steps"] for row in at) == 64
    rungs = search.rows("SELECT rung, COUNT(DISTINCT steps) AS several FROM reports WHERE rung > 0 GROUP BY rung")
    assert {row["several"] for row in rungs} <= {1}
    states = [row["state"] for row in search.rows("SELECT state FROM trials")]
    assert states.count("finished") == len(at)


def test_with_other_reports_it_is_told_first_what_takes_long(tmp_path: Path) -> None:
    """A loop that reports rarely has no rung shorter than that: nothing is told apart there."""
    search = Loops(tmp_path / "study", cap=3300.0, slots=1, gap=60.0).run()
    ladder = search.engine.families["loop"].policy.ladder
    assert ladder.first >= 60 * 0.8 / 5 and search.values()[0]["loss"] is not None


@pytest.mark.parametrize("cut", [1, 4, 9])
def test_killed_anywhere_it_goes_on_as_what_it_was(tmp_path: Path, cut: int) -> None:
    space = {**SPACE, "fault": choice("none", "never saves", "returns"), "seed": choice(0, 1)}
    search = Loops(tmp_path / "study", cap=300.0, slots=2, gap=0.5, space=space, life=200)
    search.run(cut)
    again = Loops(tmp_path / "study", cap=300.0, slots=2, gap=0.5, space=space, life=200)
    assert not [line for line in again.told if "does not tell" in line]
    assert not list(state_mismatch_warnings(again.engine.state, again.journal))
    again.run()
    check(again, 300.0)


def test_a_loop_that_returns_at_once_after_a_kill_trained_nothing_then_and_at_the_next_resume(tmp_path: Path) -> None:
    search = Loops(tmp_path / "study", cap=300.0, slots=1, gap=0.5)
    search.run(2)
    search.begin()
    again = Loops(tmp_path / "study", cap=300.0, slots=1, gap=0.5)
    again.at_once = True
    again.run(1)
    assert [row["trial"] for row in again.rows("SELECT trial FROM reports WHERE ended = 'returned'")] == ["t003"]
    assert not Loops(tmp_path / "study", cap=300.0, slots=1, gap=0.5).told


def test_time_that_is_lost_before_a_deadline_is_made_up_by_a_slot_that_was_of_no_use_before(tmp_path: Path) -> None:
    search = Loops(tmp_path / "study", cap=100.0, slots=2, gap=0.5, deadline=100.0)
    search.run(4)
    assert search.engine.slots.count_kept == 1
    again = Loops(
        tmp_path / "study", cap=100.0, slots=2, gap=0.5, deadline=100.0, elapsed=search.clock.now + 20.0
    ).run()
    (line,) = again.told
    assert line.startswith("20s passed since the last run, and count: ")
    check(again, 100.0)
    assert again.spent > 0.9 * 100.0


@pytest.mark.parametrize("at_once", [False, True])
def test_a_loop_that_is_broken_when_the_study_goes_on_ends_the_run_and_not_the_cap_nor_any_trial_that_had_saved(
    tmp_path: Path, at_once: bool
) -> None:
    """Also where those that go on return at once, as a script does that ends before its loop."""
    search = Loops(tmp_path / "study", cap=300.0, slots=1, gap=0.5)
    search.run()
    broken = Loops(tmp_path / "study", cap=600.0, slots=1, gap=0.5)
    broken.broken, broken.at_once = True, at_once
    broken.run()
    assert at_once == any(row["ended"] == "returned" for row in broken.rows("SELECT ended FROM reports"))
    failed = "SELECT COUNT(*) FROM trials WHERE state = 'failed'"
    assert broken.total(failed) == 3 and broken.spent < 350.0 and broken.engine.ended_by == ENDED_BY_ERRORS
    (*_, last) = broken.rows("SELECT action, reason FROM decisions ORDER BY decision")
    assert tuple(last) == ("hand back", HOPELESS)
    saved = {row["trial"] for row in broken.rows("SELECT trial FROM trials WHERE state = 'failed'")}
    saved = {trial for trial in saved if list((tmp_path / "study" / "checkpoints").glob(f"{trial}/step-*"))}
    mended = Loops(tmp_path / "study", cap=600.0, slots=1, gap=0.5)
    assert not mended.told and saved == {
        row["trial"] for row in mended.rows("SELECT trial FROM decisions WHERE action = 'retry'")
    }
    mended.run()
    check(mended, 600.0)
    assert mended.spent > 0.9 * 600.0 and mended.total(failed) == 3 - len(saved)
    assert not Loops(tmp_path / "study", cap=600.0, slots=1, gap=0.5).told


@pytest.mark.parametrize(("before", "after"), [(8, 1), (1, 8)])
@pytest.mark.parametrize("life", [None, 400])
def test_with_other_slots_a_study_goes_on_on_its_own_ladder(
    tmp_path: Path, before: int, after: int, life: int | None
) -> None:
    search = Loops(tmp_path / "study", cap=2000.0, slots=before, gap=0.5, life=life).run(12)
    ladder = search.engine.families["loop"].policy.ladder
    again = Loops(tmp_path / "study", cap=2000.0, slots=after, gap=0.5, life=life)
    assert again.told == [] and again.engine.families["loop"].policy.ladder == ladder


@pytest.mark.parametrize("slots", [1, 3])
def test_a_new_trial_is_expected_to_take_what_the_others_took(tmp_path: Path, slots: int) -> None:
    """Their widths make their steps up to nine times as long; and after a kill it costs the same."""
    search = Loops(tmp_path / "study", cap=2000.0, slots=slots, gap=0.5, life=100).run(24)
    family, price = search.engine.families["loop"], search.engine.price_of("loop")(None, 0)
    query = "SELECT step_seconds, MIN(report) FROM reports WHERE step_seconds IS NOT NULL GROUP BY trial"
    first = [row["step_seconds"] for row in search.rows(query)]
    steps = family.steps_at(None, 0)
    assert steps is not None and len(first) > 3 and max(first) > 2 * min(first)
    assert price == pytest.approx(family.cost_model.segment(None, steps * fmean(first)))
    again = Loops(tmp_path / "study", cap=2000.0, slots=slots, gap=0.5, life=100)
    assert again.engine.price_of("loop")(None, 0) == pytest.approx(price)


def test_a_trial_that_hung_does_not_make_the_others_dear(tmp_path: Path) -> None:
    """What it took until it was ended is no price of a segment."""
    search = Loops(tmp_path / "study", cap=60.0, slots=1, gap=0.2, space={**SPACE, "fault": choice("hangs", "none")})
    search.run(1)
    price = search.engine.price_of("loop")(None, 0)
    hung = search.total("SELECT TOTAL(seconds) FROM charges WHERE what = 'lost'")
    assert price < 10 < hung


@pytest.mark.parametrize("slots", [1, 2])
def test_a_loop_that_hangs_once_it_had_reported_fails_at_little_cost(tmp_path: Path, slots: int) -> None:
    """What it took for that is no time between two reports: no lease is longer for it; and the journal tells of it."""
    space = {**SPACE, "fault": choice("none", "hangs once restored")}
    search = Loops(tmp_path / "study", cap=2000.0, slots=slots, gap=0.5, space=space).run()
    check(search, 2000.0)
    hung = [row for row in search.values() if json.loads(row["config"])["fault"] != "none"]
    assert "failed" in {row["state"] for row in hung}
    longest = search.total("SELECT MAX(gap) FROM reports")
    assert search.engine.families["loop"].gap == longest < 0.5 * 9 / 5 * 1.2
    of_them = ", ".join(f"'{row['trial']}'" for row in hung)
    assert search.total(f"SELECT TOTAL(charged) FROM leases WHERE trial IN ({of_them})") < 0.3 * 2000.0
    assert not Loops(tmp_path / "study", cap=2000.0, slots=slots, gap=0.5, space=space).told


def test_a_loop_that_takes_longer_than_a_lease_to_restore_is_not_taken_for_one_that_hangs(tmp_path: Path) -> None:
    space = {**SPACE, "fault": choice("none", "restores for 25")}
    search = Loops(tmp_path / "study", cap=2000.0, slots=1, gap=0.2, space=space).run()
    check(search, 2000.0)
    assert "failed" not in {row["state"] for row in search.values()}


@pytest.mark.parametrize("seed", range(8))
def test_who_reported_once_never_fails_for_want_of_time_and_keeps_its_best(tmp_path: Path, seed: int) -> None:
    """A report takes up to a third of the cap. None is given a lease too short for one, in the end or under a larger
    cap; and what a lease was too short for all the same waits where it was."""
    best = math.inf
    for cap in (90.0, 100.0, 113.0, 128.0, 150.0):
        search = Loops(
            tmp_path / "study", cap=cap, slots=2, gap=random.Random(seed).choice((3.0, 8.0, 15.0)), seed=seed
        )
        search.run()
        check(search, cap)
        reported = {row["trial"] for row in search.rows("SELECT DISTINCT trial FROM reports WHERE gap > 0")}
        assert not [row for row in search.values() if row["state"] == "failed" and row["trial"] in reported]
        found = min((row["loss"] for row in search.values() if row["loss"] is not None), default=math.inf)
        assert found <= best
        best = found
        search.journal.close()


def test_what_crashed_or_diverged_late_counts_with_what_it_had(tmp_path: Path) -> None:
    space = {**SPACE, "fault": choice("crashes", "diverges")}
    search = Loops(tmp_path / "study", cap=400.0, slots=2, gap=0.5, seed=1, space=space).run()
    check(search, 400.0)
    for row in search.values():
        completed = search.rows("SELECT 1 FROM reports WHERE trial = ? AND (final OR rung IS NOT NULL)", row["trial"])
        assert (row["loss"] is not None) == bool(completed)
    ended = {json.loads(row["config"])["fault"] for row in search.values() if row["loss"] is not None}
    assert ended >= {"diverges"}


def test_a_search_is_not_over_before_its_best_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed while that is copied, it goes on with it."""

    def search() -> Loops:
        return Loops(tmp_path / "study", cap=60.0, slots=1, gap=0.5).run()

    def end(search: Loops) -> float | None:
        settings, dimensions = search.context.settings, search.context.dimensions
        board = TensorBoard(tmp_path / "board", search.journal, settings, dimensions, search.metric)
        found, *_ = conclude(search.context, search.engine, board, [])
        assert found.startswith("loop: best ")
        return spent_at_its_end(search.folder, settings.terms)

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shutil, "copytree", killed)
        end(first := search())
    assert spent_at_its_end(first.folder, first.context.settings.terms) is None
    assert end(search()) is not None and (first.folder / "best-loop" / "state.json").exists()


def test_what_is_kept_has_all_that_a_loop_saved_and_our_record(tmp_path: Path) -> None:
    """Also a file of its own that is called as that, in a folder inside."""
    for file in (tmp_path / "step-1" / RECORD, tmp_path / "step-1" / "model" / RECORD):
        file.parent.mkdir()
        file.write_text("theirs")
    export(tmp_path / "step-1", tmp_path / "best", {"value": 1.0})
    assert json.loads((tmp_path / "best" / RECORD).read_text()) == {"value": 1.0}
    assert (tmp_path / "best" / "model" / RECORD).read_text() == "theirs"
