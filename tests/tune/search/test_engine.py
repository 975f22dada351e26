"""The engine's laws, in virtual time: nothing is lost, nothing overspent, and every charge is in the journal."""

import random
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.tune.search.alone import bare, left
from tests.tune.search.world import STEP_SECONDS, STOPPED, WARM_UP_STEPS, Numbered, World
from tune.reports import LEASE_RESERVE_FACTOR, Evaluation
from tune.search.engine import MACHINES_LOST
from tune.search.family import (  # fmt: skip
    DECODING_SHARE,
    SLOWER,
    WARM_UPS_BEFORE_A_FALL_TELLS,
    CostModel,
    Family,
    TrialRecord,
    with_margin,
    with_start_up,
)
from tune.search.forecast import NO_PROGRESS, Progress
from tune.search.policy import HandBack, Wait
from tune.search.successive_halving import HOPELESS, SAME_ERRORS_TO_GIVE_UP
from tune.store.heartbeat import GRACE_SECONDS
from tune.store.journal import ENDED_BY_CAP, ENDED_BY_ERRORS


@pytest.mark.parametrize(("cap", "slots"), [(60, 1), (60, 2), (240, 2), (1200, 4), (28800, 8)])
def test_the_cap_holds_and_is_used_every_device_second_is_charged_once_and_each_family_has_a_winner(
    tmp_path: Path, cap: float, slots: int
) -> None:
    world = World(tmp_path, cap=cap, slots=slots, seed=slots).run()
    spent = world.spent
    assert (0.97 if cap >= 120 else 0.85) * cap <= spent <= cap
    assert world.total("SELECT SUM(closed - opened) FROM slots") == pytest.approx(spent)
    assert world.total("SELECT SUM(seconds) FROM charges") == pytest.approx(spent)
    assert world.total("SELECT SUM(charged) FROM leases") == pytest.approx(
        world.total("SELECT SUM(seconds) FROM charges WHERE lease IS NOT NULL")
    )
    assert world.total("SELECT COUNT(*) FROM leases WHERE charged > reserved + 1e-6") == 0
    finals = world.rows("SELECT family FROM reports JOIN trials USING (trial) WHERE final ORDER BY family")
    assert [row["family"] for row in finals] == ["nanogpt", "translation"]


def test_a_driver_that_sleeps_while_it_decides_gives_no_lease_that_nothing_pays_for_and_keeps_its_slots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For longer than the cap seems to last, while it asks for a configuration; then it is killed."""
    world, suggest, silences = World(tmp_path, cap=600, slots=2), Numbered.suggest, list[float]()
    world.engine.silence = lambda: silences.pop() if silences else None
    world.taken()

    def late(self: Numbered, trial: str) -> dict[str, Any]:
        silences.append(world.now)
        world.now += 700
        return suggest(self, trial)

    with monkeypatch.context() as patch:
        patch.setattr(Numbered, "suggest", late)
        assert world.engine.next_assignment() is None
    assert world.total("SELECT COUNT(*) FROM slots") == world.total("SELECT COUNT(*) FROM leases") == 1
    assert world.engine.slots.count_kept == 2
    again = World(tmp_path, cap=600, slots=2)
    assert again.told == [] and again.run().spent <= 600
    assert again.total("SELECT COUNT(*) FROM reports WHERE final") == 2


@pytest.mark.parametrize(("most", "charged"), [(10_000, 0.7), (0, 0.98)])
def test_a_family_keeps_to_its_share_and_what_it_leaves_over_goes_to_the_other(
    tmp_path: Path, most: int, charged: float
) -> None:
    world = World(tmp_path, cap=1200, slots=2, shares={"translation": 0.7, "nanogpt": 0.3})
    world.families["nanogpt"].suggestions = Numbered(most=most)
    world.run()
    assert world.families["translation"].charged == pytest.approx(charged * 1200, rel=0.03)


def test_a_family_whose_share_pays_for_no_trial_takes_nothing_of_one_that_runs(tmp_path: Path) -> None:
    world = World(tmp_path, cap=100, slots=2, shares={"nanogpt": 0.08, "translation": 0.92})
    while world.begin():
        pass
    assert {assignment.family for assignment in world.assignments} == {"translation"}


def test_a_slot_does_not_wait_for_what_runs_where_nothing_is_left_to_pay_for_that(tmp_path: Path) -> None:
    """What runs holds all that is left, and has never reported, so that another slot would wait."""
    world = World(tmp_path, cap=60, slots=2)
    world.families["nanogpt"].suggestions = Numbered(most=1)
    world.report_after(8.0, ended="diverged")
    short = world.taken()
    world.families["translation"].margin, world.families["translation"].first_lease = 50.0, 1.0
    holds = world.taken()
    assert (short.family, holds.family) == ("nanogpt", "translation") and holds.seconds > 2 * short.seconds
    world.now += 3.0
    world.engine.on_report(short.trial, replace(STOPPED, ended="diverged"))
    assert world.engine.next_assignment() is None
    world.now = holds.opened + holds.seconds
    assert world.spent <= 60


@pytest.mark.parametrize("waits", ["translation", "nanogpt"])
def test_a_slot_with_which_one_family_waits_is_kept_though_the_other_has_no_use_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: str
) -> None:
    world = World(tmp_path, cap=600, slots=2)
    for name, family in world.families.items():
        move = Wait("for a report") if name == waits else HandBack("of no use")
        monkeypatch.setattr(family, "decide", lambda left, move=move: move)
    assert world.engine.next_assignment() is None and world.engine.slots.count_kept == 2


@pytest.mark.parametrize("seed", range(3))
def test_a_quarter_that_diverges_costs_next_to_nothing_afterwards(tmp_path: Path, seed: int) -> None:
    """Of the cap, at most 2 % goes to trials after they diverged, at whatever moment they do."""
    world = World(tmp_path, cap=1200, slots=2, seed=seed)
    chance = random.Random(seed)
    world.diverging = {number: chance.uniform(0, 12) for number in range(2, 1000, 4)}
    world.run()
    assert world.diverged_at
    after = 0.0
    for trial, moment in world.diverged_at.items():
        for row in world.rows("SELECT opened, closed FROM leases WHERE trial = ?", trial):
            after += max(0.0, row["closed"] - max(moment, row["opened"]))
    assert 0 < after <= 0.02 * 1200
    finals = world.rows("SELECT trial FROM trials WHERE state = 'finished'")
    assert len(finals) == 2 and not {row["trial"] for row in finals} & set(world.diverged_at)


@pytest.mark.parametrize("slots", [1, 32])
@pytest.mark.parametrize("each", [1, 2])
def test_a_search_gives_up_where_each_trial_diverges_and_not_where_many_slots_begin_some_that_do_not(
    tmp_path: Path, slots: int, each: int
) -> None:
    """Of so many at once a usual share is more than twenty before any can reach a rung."""
    world = World(tmp_path, cap=1000.0 * slots, slots=slots, shares={"nanogpt": 1.0})
    world.diverging = dict.fromkeys(range(1, 10_000, each), 0.1)
    world.run()
    gave_up = world.total("SELECT COUNT(*) FROM decisions WHERE action = 'give up'")
    assert (gave_up, world.engine.ended_by) == ((1, ENDED_BY_ERRORS) if each == 1 else (0, ENDED_BY_CAP))
    assert bool(world.rows("SELECT 1 FROM decisions WHERE reason = ?", HOPELESS)) == (each == 1)
    assert (world.spent < 0.5 * 1000 * slots) == (each == 1)


def test_where_a_search_gave_up_a_trial_that_was_cut_short_goes_on_no_more(tmp_path: Path) -> None:
    world = World(tmp_path, cap=1200, slots=1 + SAME_ERRORS_TO_GIVE_UP, shares={"nanogpt": 1.0})
    first, *others = [world.taken() for _ in range(1 + SAME_ERRORS_TO_GIVE_UP)]
    world.now += 5
    world.engine.on_report(first.trial, replace(STOPPED, steps=40, ended="lease"))
    for each in others:
        world.engine.on_error(each.trial, "error: alike")
    assert world.engine.next_assignment() is None and world.engine.is_done


@pytest.mark.parametrize("signs", [True, False])
def test_a_trial_whose_process_dies_twice_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signs: bool
) -> None:
    """Also before its first sign of life, as where a library cannot be loaded."""
    world = World(tmp_path, cap=1200, slots=2)
    world.dying = {"t001": 9}
    if not signs:
        monkeypatch.setattr(world, "live", lambda assignment: None)
    world.run()
    (row,) = world.rows("SELECT state, reason FROM trials WHERE trial = 't001'")
    assert (row["state"], row["reason"]) == ("failed", "error: KilledError: it was")
    decisions = world.rows("SELECT action, reason FROM decisions WHERE trial = 't001' AND reason LIKE 'error%'")
    assert [row["action"] for row in decisions] == ["pause", "stop"]
    assert len([a for a in world.assignments if a.trial == "t001"]) == 2


@pytest.mark.parametrize(("saved", "deaths", "state"), [(True, 0, "paused"), (True, 2, "failed"), (False, 0, "failed")])
def test_what_failed_waits_again_when_the_study_goes_on_if_it_had_saved_and_its_process_did_not_die_twice(
    tmp_path: Path, saved: bool, deaths: int, state: str
) -> None:
    about: dict[str, Any] = {"cap": 1200, "slots": 1, "shares": {"nanogpt": 1.0}}
    world, kept = World(tmp_path, **about, suggestions=lambda: Numbered(most=1)), str(tmp_path / "step-000040")
    found = {"valid": Evaluation(loss=2.0), "checkpoint": kept if saved else None}
    world.report_after(9, steps=40, step_seconds=STEP_SECONDS, ended="rung", **found)
    world.dying, world.raising = {"t001": deaths}, lambda assignment: "error: it raised"
    assert [row["state"] for row in world.run().rows("SELECT state FROM trials")] == ["failed"]
    assert [row["state"] for row in World(tmp_path, **about).rows("SELECT state FROM trials")] == [state]


@pytest.mark.parametrize(("after", "late"), [(GRACE_SECONDS / 4, False), (GRACE_SECONDS, True)])
def test_a_trial_is_overdue_within_its_grace_and_not_as_soon_as_its_lease_is_over(
    tmp_path: Path, after: float, late: bool
) -> None:
    """Ended at once it would lose its last report; later its slot would be held for longer than was reserved."""
    world = World(tmp_path, cap=600, slots=1)
    lease = world.taken()
    world.now = lease.opened + lease.seconds + after
    assert world.engine.overdue() == [lease.trial] * late


def test_a_trial_whose_end_cannot_be_measured_for_want_of_memory_is_over(tmp_path: Path) -> None:
    """It would run out of it again, on lease after lease."""
    world = World(tmp_path, cap=600, slots=1, shares={"nanogpt": 1.0})
    assignment = world.report_after(9, steps=40, step_seconds=STEP_SECONDS, ended="unmeasured")
    (row,) = world.rows("SELECT state, reason FROM trials")
    assert row["state"] == "stopped" and row["reason"].startswith("memory")
    world.run()
    assert assignment.trial not in {each.trial for each in world.assignments}


def test_a_rung_at_whose_end_no_time_was_left_to_measure_the_trial_is_not_completed(tmp_path: Path) -> None:
    """It goes on to the same rung."""
    world = World(tmp_path, cap=600, slots=1, shares={"nanogpt": 1.0})
    assignment = world.report_after(9, steps=40, step_seconds=STEP_SECONDS, ended="rung")
    again = world.taken()
    assert (again.trial, again.rung) == (assignment.trial, assignment.rung)
    assert world.total("SELECT COUNT(rung) FROM reports") == 0


def test_a_lease_is_charged_for_as_long_as_it_was_held_whatever_its_trial_says(tmp_path: Path) -> None:
    """As one on another machine, whose clock is another."""
    world = World(tmp_path, cap=600, slots=1, shares={"nanogpt": 1.0})
    world.report_after(5, steps=40, step_seconds=STEP_SECONDS, ended="lease", seconds={"steps": 6.5})
    held, charged = world.total("SELECT charged FROM leases"), world.total("SELECT SUM(seconds) FROM charges")
    assert held == pytest.approx(5) == charged


@pytest.mark.parametrize(("cap", "slots", "times"), [(1200, 2, 0.6), (1200, 2, 1.3), (4800, 8, 1.0)])
def test_where_the_deadline_binds_runners_up_finish_on_the_free_slots(
    tmp_path: Path, cap: float, slots: int, times: float
) -> None:
    """times: of the deadline, the cap over the slots. What cannot be spent before it is no fault of the search's."""
    deadline = times * cap / slots
    world = World(tmp_path, cap=cap, slots=slots, shares={"nanogpt": 1.0}, deadline=deadline).run()
    assert world.now <= deadline
    assert world.spent >= 0.85 * min(cap, slots * deadline)
    ends = "SELECT COUNT(*) FROM reports WHERE final"
    assert 1 < world.total(ends) <= slots and world.total("SELECT MAX(rung) FROM reports") >= 2


@pytest.mark.parametrize(("deadline", "told", "state"), [
    (8.0, {}, ("paused", "deadline")),
    (8.0, {"steps": 0, "numbers": {}}, ("paused", "deadline")),
    (None, {}, ("stopped", "price: its lease paid for no step")),
])  # fmt: skip
def test_a_deadline_ends_no_trial_that_had_no_time_for_a_step_and_no_loop_for_a_report(
    tmp_path: Path, deadline: float | None, told: dict[str, Any], state: tuple[str, str]
) -> None:
    about: dict[str, Any] = {"cap": 600, "slots": 1, "shares": {"nanogpt": 1.0}}
    world = World(tmp_path, **about, deadline=deadline)
    assignment = world.report_after(8.0, ended="lease", **told)
    world.run()
    assert tuple(world.rows("SELECT state, reason FROM trials WHERE trial = ?", assignment.trial)[0]) == state
    assert world.engine.ended_by == ("deadline" if deadline else "cap")
    later = World(tmp_path, **about, deadline=500.0).engine.next_assignment()
    assert (later is not None and later.trial == assignment.trial) == (deadline is not None)


def test_what_a_lease_was_too_short_for_waits_for_a_longer_one(tmp_path: Path) -> None:
    """Of a loop that had reported before."""
    world = World(tmp_path, cap=600, slots=1, shares={"nanogpt": 1.0}, suggestions=lambda: Numbered(most=1))
    leases = []
    for steps, ended, valid in ((40, "rung", Evaluation(loss=2.0)), (40, "lease", None)):
        leases.append(assignment := world.taken())
        world.now += assignment.seconds
        report = replace(STOPPED, steps=steps, step_seconds=STEP_SECONDS, numbers={"loss": 2.0}, gap=5.0, valid=valid)
        world.engine.on_report("t001", replace(report, ended=ended, seconds={"steps": assignment.seconds}))
    assert world.taken().seconds > 1.1 * leases[-1].seconds


def test_a_loop_that_saves_step_0_alone_goes_on_once(tmp_path: Path) -> None:
    """As one whose first epoch is 0; on its next lease it has done more."""
    world = World(tmp_path, cap=600, slots=1, shares={"nanogpt": 1.0}, suggestions=lambda: Numbered(most=1))
    said: dict[str, Any] = {"valid": Evaluation(loss=2.0), "numbers": {"loss": 2.0}, "gap": 5.0, "ended": "lease"}
    states = []
    for _ in range(2):
        world.report_after(9, **said, checkpoint=str(tmp_path / "step-0"))
        states += [row["state"] for row in world.rows("SELECT state FROM trials")]
    assert states == ["paused", "stopped"]


def test_a_trial_that_was_stopped_before_its_first_step_goes_on_later(tmp_path: Path) -> None:
    world = World(tmp_path, cap=1200, slots=2)
    assignment = world.taken()
    world.engine.stopping = "SIGTERM"
    assert world.engine.next_assignment() is None and len(world.engine.running) == 1
    world.engine.on_report(assignment.trial, STOPPED)
    assert world.engine.trials[assignment.trial].steps == 0
    assert [row["state"] for row in world.rows("SELECT state FROM trials")] == ["paused"]
    assert world.engine.cut_short == {assignment.trial: 0}


def test_a_trial_goes_on_from_where_it_last_saved_also_after_a_lease_on_which_it_saved_nothing(tmp_path: Path) -> None:
    world = World(tmp_path, cap=600, slots=1, shares={"nanogpt": 1.0}, suggestions=lambda: Numbered(most=1))
    saved = {"checkpoint": str(tmp_path / "step-000040"), "valid": Evaluation(loss=2.0), "step_seconds": STEP_SECONDS}
    world.report_after(9, steps=40, ended="rung", **saved)
    world.report_after(2, steps=40)
    assert world.taken().checkpoint == saved["checkpoint"]


def test_killed_while_it_is_being_stopped_a_search_has_all_its_slots_again(tmp_path: Path) -> None:
    """Those that it handed back then could be of use again; one trial had not reported yet."""
    world = World(tmp_path, cap=600, slots=2)
    first, _ = world.taken(), world.taken()
    world.now += 3
    world.engine.stopping = "SIGTERM"
    world.engine.on_report(first.trial, STOPPED)
    assert world.engine.next_assignment() is None and world.engine.slots.count_kept == 1
    assert World(tmp_path, cap=600, slots=2).engine.slots.count_kept == 2


@pytest.mark.parametrize("heard_of", ["on_death", "on_error"])
def test_a_machine_that_is_lost_takes_its_slot_along_and_blames_no_trial(tmp_path: Path, heard_of: str) -> None:
    world = World(tmp_path, cap=600, slots=2)
    engine, there = world.engine, frozenset("ab")
    engine.slots.there = lambda: there
    first, second = world.taken(), world.taken()
    engine.slots.there = lambda: pytest.fail("all slots are busy, and machines are asked, each for up to a second")
    assert engine.next_assignment() is None
    engine.slots.there = lambda: there
    there = frozenset("a")
    getattr(engine, heard_of)(second.trial, "error: it raised ObjectLostError")
    assert engine.next_assignment() is None and not engine.is_done
    there = frozenset()
    getattr(engine, heard_of)(first.trial, "error: it raised ObjectLostError")
    assert engine.next_assignment() is None and engine.is_done
    assert engine.ended_by == engine.cut_off == MACHINES_LOST, "not its cap, of which most is left"
    there = frozenset("ab")
    assert {again.trial for _ in range(2) if (again := engine.next_assignment())} == {first.trial, second.trial}
    assert [engine.trials[each.trial].deaths for each in (first, second)] == [0, 0]


def test_a_machine_that_joins_hides_none_that_is_lost_and_a_trial_that_began_with_it_is_blamed(tmp_path: Path) -> None:
    world = World(tmp_path, cap=600, slots=2)
    engine, there = world.engine, frozenset("ab")
    engine.slots.there = lambda: there
    _, lost = world.taken(), world.taken()
    there = frozenset("ac")
    engine.on_error(lost.trial, "error: it raised ObjectLostError")
    assert engine.trials[lost.trial].deaths == 0 and world.taken().trial == lost.trial
    engine.on_death(lost.trial, "error")
    assert engine.trials[lost.trial].deaths == 1


def test_no_trial_is_blamed_where_an_idle_slot_was_given_up_before_its_death_was_heard_of(tmp_path: Path) -> None:
    world = World(tmp_path, cap=600, slots=2)
    engine, there = world.engine, frozenset("ab")
    engine.slots.there = lambda: there
    first, second = world.taken(), world.taken()
    world.now += max(map(world.length, (first, second)))
    world.end(first)
    there = frozenset("a")
    assert engine.next_assignment() is None and world.accounting.idle_slots == 0
    engine.on_death(second.trial, "error")
    assert engine.trials[second.trial].deaths == 0


@pytest.mark.parametrize("looks", range(1, 4))
def test_a_machine_that_is_lost_while_a_slot_is_decided_on_ends_no_search(tmp_path: Path, looks: int) -> None:
    """Each look at how many there are may be the last that finds it."""
    world = World(tmp_path, cap=600, slots=1, confirm=1)
    there = chain(repeat(frozenset("a"), looks), repeat(frozenset[str]()))
    world.engine.slots.there = lambda: next(there)
    while world.begin():
        pass
    world.engine.slots.there = lambda: frozenset("a")
    assert world.run().total("SELECT COUNT(*) FROM reports WHERE final") > 0


def test_an_idle_slot_whose_machine_is_lost_is_charged_no_more(tmp_path: Path) -> None:
    world = World(tmp_path, cap=600, slots=1)
    assignment = world.taken()
    world.now += world.length(assignment)
    world.end(assignment)
    assert world.accounting.idle_slots == 1
    world.engine.slots.there = frozenset
    assert world.engine.next_assignment() is None
    assert world.accounting.idle_slots == 0 and world.total("SELECT COUNT(*) FROM slots WHERE closed IS NULL") == 0


# --- its families and its leases


def test_a_fall_tells_once_the_rung_below_it_lies_behind_the_warm_up() -> None:
    """Counted in steps of the family, so that all trials of a rung are compared in the same way."""
    for rung, share, tells in ((1, 0.99, True), (1, 1.01, False), (3, 0.99, True), (3, 1.01, False)):
        shortest = bare().rung_seconds(rung - 1) / (WARM_UPS_BEFORE_A_FALL_TELLS * WARM_UP_STEPS)
        judged = Family(
            seconds=600, policy=bare(), cost_model=CostModel(), suggestions=Numbered(), step_seconds=share * shortest,
            warm_up_steps=WARM_UP_STEPS,
        )  # fmt: skip
        judged.policy.on_promoted("t001", 0, 1.0)
        judged.note_rung("t001", rung, 2.0, NO_PROGRESS)
        assert judged.policy.trials["t001"].telling == tells


def test_a_trial_past_its_best_counts_with_the_weights_that_are_kept_of_it(tmp_path: Path) -> None:
    """Their average, where that is better than they are."""
    world = World(tmp_path, cap=600, slots=1, shares={"nanogpt": 1.0})
    about = {"valid": Evaluation(loss=3.0), "averaged": Evaluation(loss=2.0)}
    assignment = world.report_after(9, steps=40, ended="turned", **about)
    best: Any = world.families["nanogpt"].policy.state()["past best"]
    assert best[assignment.trial][0] == 2.0


@pytest.mark.parametrize(
    ("ended", "numbers", "told"),
    [
        ("final", None, "decayed"),
        ("turned", None, "past its best"),
        ("final", {"loss": 2.0}, "last lease"),
        ("returned", {"loss": 2.0}, "at its end"),
    ],
)
def test_only_a_loop_that_came_to_its_end_is_told_to_have(
    tmp_path: Path, ended: Any, numbers: dict[str, float] | None, told: str
) -> None:
    world = World(tmp_path, cap=600, slots=1)
    found = {"valid": Evaluation(loss=2.0), "numbers": numbers, "ended": ended}
    world.report_after(9, steps=40, step_seconds=STEP_SECONDS, **found)
    (row,) = world.rows("SELECT state, reason FROM trials")
    assert (row["state"], row["reason"]) == ("finished", told)


class Hearing(Numbered):
    """Keeps what it is told of trials that came somewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[tuple[str, int, float | None]] = []

    def tell(self, trial: str, rung: int, loss: float | None, progress: Progress = NO_PROGRESS) -> None:
        self.heard.append((trial, rung, loss))


@pytest.mark.parametrize("ended", ["rung", "turned", "returned"])
def test_what_suggests_hears_of_all_that_reached_a_rung_or_an_end_of_their_own_on_the_way(
    tmp_path: Path, ended: Any
) -> None:
    hearing = Hearing()
    world = World(tmp_path, cap=600, slots=1, shares={"nanogpt": 1.0}, suggestions=lambda: hearing)
    assignment = world.report_after(
        9, steps=40, step_seconds=STEP_SECONDS, ended=ended, valid=Evaluation(loss=2.0), seconds={"steps": 8.0}
    )
    assert hearing.heard == [(assignment.trial, 0, 2.0)]


def test_what_a_loss_was_within_the_warm_up_is_not_what_a_law_is_fitted_to(tmp_path: Path) -> None:
    world = World(tmp_path, cap=1200, slots=2).run()
    standings = [each for family in world.families.values() for each in family.policy.trials.values()]
    assert world.total("SELECT MIN(tokens) FROM reports WHERE rung IS NOT NULL") < WARM_UP_STEPS
    assert min(seen.tokens for each in standings for seen in each.observed) >= WARM_UP_STEPS


def test_a_new_trial_is_expected_to_take_beside_its_steps_what_the_others_took_last(tmp_path: Path) -> None:
    world = World(tmp_path, cap=1200, slots=2, shares={"nanogpt": 1.0}).run(40)
    rows = world.rows("""
        SELECT trial, TOTAL(IIF(what IN ('steps', 'start'), 0, seconds)) AS beside FROM charges
        WHERE lease IN (SELECT lease FROM reports WHERE ended IS NOT NULL) GROUP BY lease ORDER BY lease""")
    last = {row["trial"]: row["beside"] for row in rows}
    assert len(last) < len(rows)
    assert world.families["nanogpt"].cost_model.segment(None, 0.0) == pytest.approx(median(last.values()))


def test_on_another_processor_nothing_counts_that_earlier_studies_took() -> None:
    prices, unknown = CostModel(overhead=9.0, start_up=30.0), CostModel()
    prices.reset()
    assert (prices.start_up, prices.segment(None, 0.0)) == (unknown.start_up, unknown.segment(None, 0.0))


def test_a_trial_keeps_the_small_parts_in_which_it_fitted_where_no_limit_tells_of_them(tmp_path: Path) -> None:
    world = World(tmp_path, cap=1200, slots=1, shares={"nanogpt": 1.0})
    assignment = world.report_after(6, steps=9, ended="lease", micro_batches=4, ran_out=True)
    assert assignment.micro_batches == 1
    again = world.taken()
    assert (again.trial, again.micro_batches) == (assignment.trial, 4)


def test_the_first_slot_leaves_the_second_as_much_to_start_with(tmp_path: Path) -> None:
    """In a cap so small that one start with its whole margin would take most of it."""
    for cap in (40, 44):
        (tmp_path / str(cap)).mkdir()
        world = World(tmp_path / str(cap), cap=cap, slots=2)
        first, second = world.taken(), world.taken()
        assert second.seconds > 0.9 * first.seconds


def test_a_start_has_its_margin_where_that_is_left_and_never_less_than_its_price() -> None:
    assert with_start_up(9.0, 6.0, even_share=100.0) > 2 * 6.0 + 9.0
    assert with_start_up(9.0, 6.0, even_share=20.0) == 20.0
    assert with_start_up(9.0, 6.0, even_share=5.0) == 15.0


def test_what_a_new_slot_needs_to_start_is_not_left_for_training(tmp_path: Path) -> None:
    world = World(tmp_path, cap=600, slots=1, shares={"nanogpt": 1.0})
    family, account = world.families["nanogpt"], world.accounting
    new = account.affordable - family.seconds_left(account, 1, 1e9).seconds
    world.run(1)
    assert new == pytest.approx(CostModel().start_up) and account.idle_slots == 1
    assert family.seconds_left(account, 1, 1e9).seconds == pytest.approx(
        min(account.affordable, family.seconds - family.seconds_used)
    )


@pytest.mark.parametrize("need", [0.0, 0.1, 1e6])
def test_a_last_segment_leaves_what_its_winner_needs_to_decode_but_never_much_of_it(need: float) -> None:
    family = Family(
        seconds=600, policy=bare(), cost_model=CostModel(), suggestions=Numbered(), decoding=lambda step: need
    )
    record = TrialRecord(family="alone", config={}, step_seconds=STEP_SECONDS)
    assert 100.0 - family.last_segment(record, 100.0) == pytest.approx(min(need, DECODING_SHARE * 100.0))


def test_no_rung_leads_beyond_the_steps_of_a_life() -> None:
    """Though in its seconds a trial whose steps are short would make more."""
    family = Family(seconds=600, policy=bare(), cost_model=CostModel(), suggestions=Numbered(), life_steps=100)
    assert family.steps_at(TrialRecord(family="alone", config={}, step_seconds=1e-6), 0) == 100


@pytest.mark.parametrize("whole", [0.0, 20.0])
def test_what_it_took_to_measure_a_trial_at_its_end_is_no_price_of_a_segment(tmp_path: Path, whole: float) -> None:
    """Of one that turned on its way to a rung."""
    world = World(tmp_path, cap=600, slots=1, shares={"nanogpt": 1.0})
    seconds = {"start": 2.0, "steps": 5.0, "evaluation": (beside := 3.0) + whole}
    splits = dict.fromkeys(("whole", "test"), Evaluation(loss=2.0, seconds=whole / 2))
    about = {"steps": 40, "step_seconds": STEP_SECONDS, "ended": "turned", "valid": Evaluation(loss=2.0)}
    world.report_after(sum(seconds.values()), **about, **splits, seconds=seconds)
    assert world.families["nanogpt"].cost_model.segment(None, 0.0) == pytest.approx(beside)


def test_a_slot_that_was_long_in_starting_does_not_make_it_dear_to_take_its_trial_further(tmp_path: Path) -> None:
    world = World(tmp_path, cap=600, slots=1, shares={"nanogpt": 1.0}, suggestions=lambda: Numbered(most=1))
    found = {"step_seconds": STEP_SECONDS, "valid": Evaluation(loss=2.0)}
    world.report_after(9, steps=40, ended="rung", **found)
    world.report_after(100, steps=1000, ended="final", **found, seconds={"start": 90.0, "steps": 5.0})
    policy = world.families["nanogpt"].policy
    policy.refit(policy.make_ladder(1200.0))
    assert not isinstance(policy.decide(left(1000 * STEP_SECONDS + 20.0)), HandBack)


def test_a_trial_costs_what_its_steps_take_by_now_and_a_loop_reports_as_rarely_as_it_ever_did(tmp_path: Path) -> None:
    world = World(tmp_path, cap=600, slots=1, shares={"nanogpt": 1.0}, suggestions=lambda: Numbered(most=1))
    family = world.families["nanogpt"]
    for rung, step_seconds, gap in ((0, STEP_SECONDS, 3.0), (1, 2 * STEP_SECONDS, 1.0)):
        about = {"step_seconds": step_seconds, "numbers": {"loss": 2.0}, "gap": gap, "valid": Evaluation(loss=2.0)}
        assignment = world.report_after(9, steps=40 * (rung + 1), ended="rung", **about)
        assert (assignment.trial, assignment.rung) == ("t001", rung)
        assert world.engine.trials["t001"].gap == family.gap == 3.0
        prices = [family.cost_model.segment("t001", training) for training in (0.0, 10.0)]
        assert prices[1] - prices[0] == pytest.approx(10.0 * step_seconds / STEP_SECONDS)


@pytest.mark.parametrize("most", [1e6, 100.0, 1.0])
def test_a_lease_of_a_loop_has_time_for_another_report_and_a_new_ones_for_a_rarer_one_within_half_of_what_is_there(
    most: float,
) -> None:
    family = Family(seconds=600, policy=bare(), cost_model=CostModel(), suggestions=Numbered(), gap=20.0)
    known, new = (TrialRecord(family="alone", config={}, step_seconds=step) for step in (STEP_SECONDS, None))
    for price in (1.0, 1000.0):
        wanted = family.seconds_to_reserve(known, price, most)
        assert wanted >= with_margin(max(price, family.gap)) + LEASE_RESERVE_FACTOR * family.gap
        assert family.seconds_to_reserve(new, price, most) == max(wanted, min(SLOWER * family.gap, most / 2))


@pytest.mark.parametrize("hopeless", [(False, False), (True, False), (True, True)])
def test_a_search_is_ended_by_errors_only_where_all_its_families_gave_up(
    tmp_path: Path, hopeless: tuple[bool, bool]
) -> None:
    """What one leaves over another one spends."""
    engine = World(tmp_path, cap=60, slots=1).engine
    assert len(engine.families) == 2
    for family, gave_up in zip(engine.families.values(), hopeless, strict=True):
        for trial in range(SAME_ERRORS_TO_GIVE_UP if gave_up else 0):
            family.policy.on_promoted(f"{trial}", 0, 1.0)
            family.policy.on_ended(f"{trial}", "error: alike")
    while engine.slots.count_kept:
        engine.slots.hand_back()
    assert engine.ended_by == (ENDED_BY_ERRORS if all(hopeless) else ENDED_BY_CAP)
