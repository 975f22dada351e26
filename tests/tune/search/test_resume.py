"""The laws of going on: a study that was killed stands where its journal says; no device-second is lost or found."""

import math
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

from model.training.checkpoint import AFTER_DECAY, BEFORE_DECAY, save
from tests.tune.search.alone import START_UP, Search, left
from tests.tune.search.world import SHARES, STEP_SECONDS, Numbered, World, add_trial
from tune.facts import check_same_text
from tune.reports import Evaluation, Report
from tune.search.engine import NOTE_SECONDS
from tune.search.family import START_UP_MARGIN, with_margin
from tune.search.ladder import Rules
from tune.search.policy import Finish
from tune.search.resume import LIVES_ON_SECONDS, close_what_a_kill_left_open, spent_beside
from tune.search.simulator import Simulation
from tune.search.successive_halving import BEFORE_DEADLINE
from tune.store.accounting import DECODING, Assignment, Hold
from tune.store.heartbeat import DRIVER, GRACE_SECONDS, HEARTBEAT_FOLDER, write_heartbeat
from tune.store.journal import ENDED_BY_CAP, spent_at_its_end

REPEATED = "SELECT trial FROM reports WHERE rung IS NOT NULL GROUP BY trial, rung HAVING COUNT(*) > 1"


def saved(folder: Path, name: str, steps: int, fraction: float = 1.0) -> None:
    """A checkpoint of a trial, at this share of its peak rate."""
    state = {"steps": steps, "decay": {"fraction": fraction, "length": None}}
    save(folder, torch.nn.Linear(1, 1), {"random": torch.zeros(1)}, state, name)


def policy_states(world: World) -> dict[str, Any]:
    return {
        name: {trial: (standing.rung, dict(standing.losses)) for trial, standing in family.policy.trials.items()}
        for name, family in world.families.items()
    }


@pytest.mark.parametrize("seed", range(3))
def test_killed_at_any_moment_it_goes_on_on_fewer_slots_or_more_and_the_cap_holds(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    world = World(tmp_path, cap=1200, slots=2, seed=seed)
    for kill in range(3):
        world.run(reports=chance.randrange(1, 15))
        before, held = policy_states(world), world.spent
        world = World(tmp_path, cap=1200, slots=2 - kill % 2, seed=seed + 10 * kill)
        assert policy_states(world) == before
        assert held - 1e-6 <= world.spent <= held + 2 * LIVES_ON_SECONDS + 1e-6
    world.run()
    assert world.spent <= 1200
    assert world.total("SELECT TOTAL(seconds) FROM charges") == pytest.approx(
        world.total("SELECT TOTAL(closed - opened) FROM slots")
    )
    assert world.rows(REPEATED) == []
    assert world.total("SELECT COUNT(*) FROM reports WHERE final") == 2


def test_an_extended_study_that_is_killed_is_still_extended(tmp_path: Path) -> None:
    """Killed once before its first lease under the new cap and once after some: rungs, places and money stand."""
    world = World(tmp_path, cap=600, slots=2).run()
    world = World(tmp_path, cap=600, slots=2).run()
    assert world.assignments == [], "what is over has nothing more to do"
    first_rungs = {name: family.policy.rung_seconds(0) for name, family in world.families.items()}
    for reports in (0, 7):
        world = World(tmp_path, cap=2400, slots=2)
        before = policy_states(world)
        world.run(reports)
        assert (reports == 0) == (policy_states(world) == before)
    world = World(tmp_path, cap=2400, slots=2)
    assert {name: family.policy.rung_seconds(0) for name, family in world.families.items()} == first_rungs
    world.run()
    assert 0.97 * 2400 <= world.spent <= 2400
    assert world.rows(REPEATED) == []
    assert world.total("SELECT COUNT(*) FROM reports WHERE final") == 4


def test_a_study_that_its_deadline_ended_uses_the_rest_of_its_cap_before_a_later_one(tmp_path: Path) -> None:
    about: dict[str, Any] = {"cap": 1200, "slots": 1, "shares": {"nanogpt": 1.0}}
    assert World(tmp_path, **about, deadline=300.0).run().spent <= 300
    later = World(tmp_path, **about, deadline=3000.0).run()
    assert 0.97 * 1200 <= later.spent <= 1200
    again = World(tmp_path, **about, deadline=3000.0)
    assert again.told == [] and again.run().assignments == []


def test_a_study_that_went_on_and_was_killed_is_not_over_as_it_was_before(tmp_path: Path) -> None:
    """Though nothing was agreed anew since it went on."""
    about: dict[str, Any] = {"cap": 1200, "slots": 1, "shares": {"nanogpt": 1.0}}
    first = World(tmp_path, **about, deadline=300.0).run()
    first.journal.write_facts(ended={"reason": ENDED_BY_CAP, "spent": first.spent, "cap": 1200.0})
    early, late = ({"cap": 1200.0, "deadline": at, "stop_below_gain": None} for at in (300.0, 3000.0))
    assert spent_at_its_end(tmp_path, early) == first.spent and spent_at_its_end(tmp_path, late) is None
    World(tmp_path, **about, deadline=3000.0).run(2)
    assert spent_at_its_end(tmp_path, late) is None


@pytest.mark.parametrize("kept", [0, 40])
def test_steps_that_no_checkpoint_has_are_done_again_whether_it_was_killed_or_not(tmp_path: Path, kept: int) -> None:
    """Where none is kept the trial is over: it would use the cap in vain, as a loop that never saves. What one that is
    over saved is not looked for."""
    world = World(tmp_path, cap=600, slots=1, shares={"nanogpt": 1.0})
    lease = world.taken()
    world.now += lease.seconds
    if kept:
        saved(tmp_path / "checkpoints" / lease.trial, "", kept)
    report = Report(
        steps=100, tokens=100, training_seconds=5.0, step_seconds=STEP_SECONDS, ended="lease", lost=100 - kept,
        numbers={"loss": 2.0}, gap=0.1, valid=Evaluation(loss=2.0), seconds={"steps": lease.seconds},
    )  # fmt: skip
    world.engine.on_report(lease.trial, report)
    (row,) = world.rows("SELECT state FROM trials")
    assert row["state"] == ("paused" if kept else "stopped")
    with mock.patch.object(World, "newest", autospec=True, side_effect=World.newest) as newest:
        again = World(tmp_path, cap=600, slots=1, shares={"nanogpt": 1.0})
    assert newest.called == bool(kept)
    assert again.told == [] and again.engine.trials[lease.trial].steps == world.engine.trials[lease.trial].steps == kept


def test_a_trial_whose_checkpoints_are_gone_begins_anew_on_a_lease_that_pays_for_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one that paid for the rest alone it would come to nothing new, and be over."""
    about: dict[str, Any] = {"cap": 600, "slots": 1, "shares": {"nanogpt": 1.0}}
    world, kept = World(tmp_path, **about), {"checkpoint": str(tmp_path / "kept"), "step_seconds": STEP_SECONDS}
    rung = world.families["nanogpt"].policy.rung_seconds(0)
    steps = round(0.9 * rung / STEP_SECONDS)
    world.report_after(rung, steps=steps, seconds={"steps": 0.9 * rung}, ended="lease", **kept)
    monkeypatch.setattr(World, "newest", lambda *of, undecayed: None)
    again = World(tmp_path, **about)
    lease = again.report_after(rung, steps=steps // 2, ended="lease", **kept)
    assert lease.checkpoint is None and again.total("SELECT price FROM leases ORDER BY lease DESC LIMIT 1") > 0.9 * rung
    assert [tuple(row) for row in again.rows("SELECT trial, state FROM trials")] == [(lease.trial, "paused")]


def test_a_trial_goes_on_from_its_newest_checkpoint_and_after_its_decay_from_before_it(tmp_path: Path) -> None:
    """Killed inside its last segment it goes on falling; once finished, a larger cap forgets the fall."""
    world = World(tmp_path, cap=600, slots=1, shares={"nanogpt": 1.0}).run()
    winner = world.rows("SELECT trial FROM reports WHERE final")[0]["trial"]
    world.journal.update("trials", winner, {"state": "running"})
    folder = tmp_path / "checkpoints" / winner
    for name, steps, fraction in (
        ("", 100, 1.0), (BEFORE_DECAY, 120, 1.0), ("", 150, 0.6), (f"{AFTER_DECAY}-000200", 200, 0.0),
    ):  # fmt: skip
        saved(folder, name, steps, fraction)
    inside = World(tmp_path, cap=600, slots=1, shares={"nanogpt": 1.0})
    assert inside.engine.trials[winner].steps == 150
    inside.journal.update("trials", winner, {"state": "finished"})
    extended = World(tmp_path, cap=1800, slots=1, shares={"nanogpt": 1.0})
    assert extended.engine.trials[winner].steps == 120
    saved(folder, "", 130)
    extended.journal.update("trials", winner, {"state": "paused"})
    later = World(tmp_path, cap=1800, slots=1, shares={"nanogpt": 1.0})
    assert later.engine.trials[winner].steps == 130
    assert (folder / f"{AFTER_DECAY}-000200").is_dir()


def killed_in_its_last_segments(search: Simulation) -> None:
    """When all that can run at once have begun."""
    killed_where(search, lambda rung: rung is None)


def killed_where(search: Simulation, reached: Callable[[int | None], bool]) -> None:
    """When all that run are on their way to such rungs."""
    while search.begin():
        pass
    while not all(reached(run.assignment.rung) for run in search.engine.running.values()):
        search.go_on()
        while search.begin():
            pass


@pytest.mark.parametrize(("front", "slots", "within"), [(False, 8, 2400.0), (True, 1, math.inf), (True, 8, 2400.0)])
def test_cut_short_in_its_last_segments_it_ends_as_if_it_had_not_been(front: bool, slots: int, within: float) -> None:
    about: dict[str, Any] = {"seconds": 9600.0, "slots": slots, "within": within, "rules": Rules(front=front)}
    whole, cut = Search(**about), Search(**about)
    whole.run()
    killed_in_its_last_segments(cut)
    after = Search(**about, journal=cut.accounting.journal).run()

    def ends(search: Search) -> dict[str, float]:
        rows = search.rows("SELECT trial, MAX(training_seconds) AS training FROM reports WHERE final GROUP BY trial")
        return {row["trial"]: row["training"] for row in rows}

    assert len(ends(whole)) > 1 and ends(after) == pytest.approx(ends(whole), rel=0.05)
    assert after.clock.now == pytest.approx(whole.clock.now, rel=0.02)


def test_cut_short_in_its_last_segments_it_uses_a_smaller_cap_within_the_wall_clock_that_there_was() -> None:
    about: dict[str, Any] = {"slots": 8, "within": 2400.0}
    cut = Search(seconds=9600.0, **about)
    killed_in_its_last_segments(cut)
    after = Search(seconds=9000.0, **about, journal=cut.accounting.journal).run()
    assert after.spent >= 0.97 * 9000 and after.clock.now <= 2400 + START_UP


def test_cut_short_in_its_last_segment_before_a_deadline_it_uses_the_rest_of_its_cap_without_one() -> None:
    """Also where nothing more is explored then."""
    about: dict[str, Any] = {"seconds": 600.0, "rules": Rules(last_share=0.85)}
    cut = Search(**about, deadline=400.0)
    killed_in_its_last_segments(cut)
    assert Search(**about, journal=cut.accounting.journal).run().spent >= 0.97 * 600


@pytest.mark.parametrize("killed", [False, True])
def test_before_a_deadline_families_that_share_a_slot_have_their_parts_of_the_time(
    tmp_path: Path, killed: bool
) -> None:
    """Also where it is set only once one of them is in its last segment."""
    deadline = 600.0
    if killed:
        cut = World(tmp_path, cap=1200, slots=1)
        killed_in_its_last_segments(cut)
        deadline = cut.now + 200.0
    world = World(tmp_path, cap=1200, slots=1, deadline=deadline).run()
    ends = world.rows("SELECT family, training_seconds FROM reports JOIN trials USING (trial) WHERE final")
    assert {row["family"] for row in ends} == set(SHARES)
    assert min(row["training_seconds"] for row in ends) > 0.5 * max(row["training_seconds"] for row in ends)


def test_where_its_part_of_the_time_to_a_later_deadline_is_of_no_use_to_any_family_one_has_all(tmp_path: Path) -> None:
    """Each trains one configuration, which had its decay."""
    about: dict[str, Any] = {"cap": 2400, "slots": 1, "suggestions": lambda: Numbered(most=1)}
    early = World(tmp_path, **about, deadline=600.0).run()
    late = World(tmp_path, **about, deadline=early.now + 60.0).run()
    assert late.spent >= early.spent + 55.0 and late.total("SELECT COUNT(*) FROM reports WHERE final") == 3


@pytest.mark.parametrize(("times", "smaller_cap"), [(0.5, False), (0.9, False), (1.05, False), (0.5, True)])
def test_cut_short_on_its_way_to_a_rung_it_has_its_decay_where_a_deadline_comes_before_that(
    tmp_path: Path, times: float, smaller_cap: bool
) -> None:
    """times: of what that rung costs."""
    about: dict[str, Any] = {"cap": 6000, "slots": 1, "shares": {"nanogpt": 1.0}}
    killed = World(tmp_path, **about)
    killed_where(killed, lambda rung: rung == 3)
    (run,) = killed.engine.running.values()
    price = killed.engine.price_of("nanogpt")(run.assignment.trial, run.assignment.rung)
    changes = {"cap": killed.spent + times * price} if smaller_cap else {"deadline": killed.now + times * price}
    later = World(tmp_path, **{**about, **changes}).run()
    assert later.total("SELECT COUNT(*) FROM reports WHERE final") == 1
    (wait,) = later.rows("SELECT reason FROM decisions WHERE action = 'wait'")
    assert wait["reason"].endswith(BEFORE_DEADLINE) != smaller_cap


@pytest.mark.parametrize("slots", [1, 2])
def test_cut_short_in_its_last_segment_it_goes_on_with_what_another_family_left_over(
    tmp_path: Path, slots: int
) -> None:
    """That has no configuration to try."""

    def world() -> World:
        made = World(tmp_path, cap=1200, slots=slots)
        made.families["translation"].suggestions = Numbered(most=0)
        return made

    killed = world()
    killed_in_its_last_segments(killed)
    (trial,) = killed.engine.running
    killed.now += 300
    killed.live(killed.engine.running[trial].assignment)
    again = world().run()
    assert 0.97 * 1200 <= again.spent <= 1200
    assert [row["trial"] for row in again.rows("SELECT trial FROM reports WHERE final")] == [trial]
    assert again.total("SELECT COUNT(*) FROM decisions WHERE action = 'finish'") == 1


def test_cut_short_in_their_last_segments_no_family_has_what_another_needs_for_its_own(tmp_path: Path) -> None:
    """Under a later deadline, by which a lease may be longer than the one that was cut short."""

    def world(deadline: float) -> World:
        return World(tmp_path, cap=600, slots=2, deadline=deadline, suggestions=lambda: Numbered(most=1))

    killed_in_its_last_segments(world(1e5))
    finals = world(2e5).run().rows("SELECT family FROM reports JOIN trials USING (trial) WHERE final ORDER BY family")
    assert [row["family"] for row in finals] == ["nanogpt", "translation"]


def test_cut_short_in_the_middle_of_it_a_last_segment_has_no_more_in_all_than_its_lease_had() -> None:
    """But for the start of another slot."""
    about: dict[str, Any] = {"seconds": 9600.0, "slots": 8, "within": 2400.0}
    cut, used = Search(**about), 120.0
    killed_in_its_last_segments(cut)
    trial = next(iter(cut.engine.running))
    cut.clock.now += used
    steps = cut.engine.running[trial].steps_before + 9
    cut.engine.on_report(trial, Report(steps=steps, tokens=9, training_seconds=9.0, seconds={"steps": used}))
    after = Search(**about, journal=cut.accounting.journal).run()
    rows = after.rows("""
        SELECT MAX(reserved) AS had, SUM(charged) AS used FROM leases WHERE rung IS NULL
        GROUP BY trial HAVING COUNT(*) > 1""")
    assert rows and all(row["used"] <= row["had"] + START_UP_MARGIN * START_UP for row in rows)


def test_cut_short_in_its_decay_a_trial_goes_on_in_it_or_with_a_larger_cap_from_before_it(tmp_path: Path) -> None:
    """Cut short once more before its next decay, with a yet larger cap from where it is."""
    world = World(tmp_path, cap=600, slots=1, shares={"nanogpt": 1.0})
    killed_in_its_last_segments(world)
    (trial,) = world.engine.running
    for name, steps, fraction in (("", 100, 1.0), (BEFORE_DECAY, 120, 1.0), ("", 150, 0.6)):
        saved(tmp_path / "checkpoints" / trial, name, steps, fraction)
    for cap, steps in ((600, 150), (600, 150), (4800, 120)):
        world = World(tmp_path, cap=cap, slots=1, shares={"nanogpt": 1.0})
        assert world.engine.trials[trial].steps == steps
    killed_in_its_last_segments(world)
    (again,) = world.engine.running
    saved(tmp_path / "checkpoints" / again, BEFORE_DECAY, 120)
    saved(tmp_path / "checkpoints" / again, "", 140)
    for cap in (4800, 9600):
        world = World(tmp_path, cap=cap, slots=1, shares={"nanogpt": 1.0})
        assert world.engine.trials[again].steps == 140


def test_a_trial_with_an_end_that_was_killed_on_its_way_on_is_known_to_go_on_from_where_it_is(tmp_path: Path) -> None:
    """From before its decay, or later: from its last rung on what is left would train it no longer than it was."""
    about: dict[str, Any] = {"slots": 1, "shares": {"nanogpt": 1.0}}
    world = World(tmp_path, cap=600, **about).run()
    ((winner, steps),) = world.rows("SELECT trial, steps FROM reports WHERE final")
    saved(tmp_path / "checkpoints" / winner, BEFORE_DECAY, round(0.6 * steps))
    enough, moves = left(0.65 * steps * STEP_SECONDS), list[Any]()
    for _ in range(2):
        world = World(tmp_path, cap=900, **about)
        policy: Any = world.families["nanogpt"].policy
        if world.engine.cut_short:
            world.engine.state.put_back(winner)
        moves.append(policy.decide(enough))
        killed_in_its_last_segments(world)
        assert winner in world.engine.running
    assert [(type(move), move.trial) for move in moves] == [(Finish, winner)] * 2


class Slow(Search):
    """The first lease of its last segment runs out half way."""

    slow = False

    def segment(self, assignment: Assignment) -> Report | None:
        report = super().segment(assignment)
        if assignment.rung is not None or self.slow or report is None:
            return report
        self.slow, before = True, self.engine.running[assignment.trial].steps_before
        seconds = {"steps": assignment.seconds}
        return replace(report, ended="lease", steps=(before + report.steps) // 2, valid=None, seconds=seconds)


@pytest.mark.parametrize(("left", "gap"), [(0.5, None), (40.0, 30.0)])
def test_a_last_segment_that_was_cut_short_waits_where_no_use_can_be_made_of_what_is_left(
    tmp_path: Path, left: float, gap: float | None
) -> None:
    """Less than a lease has at least, or than a loop needs to report."""
    world = World(tmp_path, cap=600, slots=1, shares={"nanogpt": 1.0})
    killed_in_its_last_segments(world)
    (run,) = world.engine.running.values()
    used = run.assignment.seconds - left
    world.now = run.assignment.opened + used
    report = Report(
        steps=run.steps_before + 9, tokens=9, training_seconds=9.0, step_seconds=STEP_SECONDS, ended="lease", gap=gap,
        numbers=None if gap is None else {"loss": 2.0}, valid=Evaluation(loss=2.0), seconds={"steps": used},
    )  # fmt: skip
    world.engine.on_report(run.assignment.trial, report)
    world.engine.next_assignment()
    assert world.total("SELECT COUNT(*) FROM decisions WHERE action = 'wait'") == 1


def test_a_last_segment_to_so_many_steps_whose_lease_ran_out_goes_on_to_them() -> None:
    search = Slow(seconds=1500.0, rules=Rules(least_gain=3e-4)).run()
    (end,) = search.rows("SELECT * FROM reports WHERE final")
    first, again = search.rows("SELECT * FROM leases WHERE rung IS NULL")
    assert first["goal"] == again["goal"] == end["steps"] and not search.on_decision("wait")


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("ends", [True, False])
def test_with_a_smaller_least_gain_a_study_goes_on_and_with_another_it_does_not(slots: int, ends: bool) -> None:
    """Also where it is killed in the last segment that the larger one makes short, and once more when it goes on."""
    about: dict[str, Any] = {"seconds": 1500.0, "slots": slots}
    before = Search(**about, rules=Rules(least_gain=5e-4))
    about["journal"] = before.accounting.journal
    if ends:
        assert before.run().spent < 750
        for gain in (5e-4, 1e-3, 5e-4):
            assert Search(**about, rules=Rules(least_gain=gain)).run().assignments == []
    else:
        killed_in_its_last_segments(before)
    Search(**about).run(1)
    after = Search(**about).run()
    assert 0.97 * 1500 < after.spent <= 1500 and after.notes == []


def test_a_rung_whose_rest_is_not_paid_for_waits(tmp_path: Path) -> None:
    """It would be cut short again."""
    world = World(tmp_path, cap=40, slots=1, shares={"nanogpt": 1.0})
    lease = world.taken()
    world.now += lease.seconds
    report = Report(
        steps=10, tokens=10, training_seconds=0.5, step_seconds=STEP_SECONDS, ended="lease",
        seconds={"evaluation": lease.seconds},
    )  # fmt: skip
    world.engine.on_report(lease.trial, report)
    assert world.engine.next_assignment() is None
    assert [row["action"] for row in world.rows("SELECT action FROM decisions")][:2] == ["start", "wait"]


@pytest.mark.parametrize(("seconds", "to_steps"), [(600.0, False), (900.0, True)])
def test_a_last_segment_leads_to_so_many_steps_where_its_lease_has_its_margin_and_nowhere_else(
    seconds: float, to_steps: bool
) -> None:
    """Else it would be cut short where its steps are slow; it has what is left, and ends within that."""
    search = Search(seconds=seconds, rules=Rules(least_gain=3e-4)).run()
    (last,) = search.rows("SELECT * FROM leases WHERE rung IS NULL")
    assert (last["goal"] is not None) is to_steps is (last["reserved"] >= with_margin(last["price"]))


@pytest.mark.parametrize("slots", [1, 4])
def test_cut_short_in_its_last_segment_it_explores_a_larger_cap_as_one_that_ended(slots: int) -> None:
    ended, cut = Search(slots=slots), Search(slots=slots)
    ended.run()
    killed_in_its_last_segments(cut)
    begun = len(cut.policy.trials)
    found = [Search(seconds=4800.0, slots=slots, journal=each.accounting.journal) for each in (ended, cut)]
    for each in found:
        assert each.engine.slots.most == slots, "also those that were handed back"
        each.run()
    trials = [len(each.policy.trials) for each in found]
    assert trials[1] > 2 * begun and trials[1] == pytest.approx(trials[0], rel=0.1)


def held(world: World, *signs: tuple[str, int, float]) -> float:
    """Seconds that slots were held of a search whose driver was killed, after these last signs of life: whose, on which
    lease, when. Each of them is charged."""
    (world.journal.folder / HEARTBEAT_FOLDER).mkdir()
    for name, lease, at in signs:
        write_heartbeat(world.journal.folder, name, lease, at)
    close_what_a_kill_left_open(world.journal)
    seconds = world.total("SELECT TOTAL(closed - opened) FROM slots")
    assert world.total("SELECT TOTAL(seconds) FROM charges") == pytest.approx(seconds)
    return seconds


def test_after_a_kill_no_trial_is_said_to_run(tmp_path: Path) -> None:
    """Also where the study is not gone on with, and only looked at."""
    world = World(tmp_path, cap=600, slots=2)
    assert world.taken() and world.taken()
    held(world)
    assert [row["state"] for row in world.rows("SELECT state FROM trials")] == ["paused", "paused"]


def test_what_a_killed_driver_left_running_is_ended_and_no_process_that_only_has_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, workers = World(tmp_path, cap=600, slots=2), list[subprocess.Popen[bytes]]()
    for name in ("ray::Trial", "another"):
        words, both = [sys.executable, "-c", "print(flush=True); input()", name], subprocess.PIPE
        workers.append(worker := subprocess.Popen(words, stdin=both, stdout=both))
        assert worker.stdout is not None and worker.stdout.readline()
        with monkeypatch.context() as patch:
            patch.setattr("os.getpid", lambda pid=worker.pid: pid)
            world.live(world.taken())
    close_what_a_kill_left_open(world.journal)
    for worker in workers:
        worker.communicate(b"\n")
    assert [worker.returncode for worker in workers] == [-signal.SIGKILL, 0]


@pytest.mark.parametrize(("driver", "trial", "charged"), [(None, 7.0, 7.0), (5.0, 3.0, 5.0)])
def test_a_slot_is_charged_up_to_the_last_sign_of_life_of_its_trial_or_its_driver_as_lost(
    tmp_path: Path, driver: float | None, trial: float, charged: float
) -> None:
    """A trial that fell silent, as one whose disk is full, may have held its device all the time."""
    world = World(tmp_path, cap=600, slots=1)
    lease = world.taken()
    signs = [(DRIVER, 0, lease.opened + (driver or 0)), (lease.trial, lease.lease, lease.opened + trial)]
    assert held(world, *signs[driver is None :]) == pytest.approx(charged)
    assert world.total("SELECT TOTAL(seconds) FROM charges WHERE what = 'lost'") == pytest.approx(charged)


def test_a_process_that_never_gave_a_sign_of_life_is_charged_for_a_moment_more_than_its_driver(tmp_path: Path) -> None:
    """Two slots, killed 5 s into their start-up; one trial gave a sign of life since and is charged up to that."""
    world = World(tmp_path, cap=600, slots=2)
    first, second = world.taken(), world.taken()
    seconds = held(world, (DRIVER, 0, first.opened + 5), (second.trial, second.lease, second.opened + 6.5))
    assert seconds == pytest.approx(5 + LIVES_ON_SECONDS + 6.5)


@pytest.mark.parametrize("late", [-LIVES_ON_SECONDS / 2, 1e300])
def test_no_sign_of_life_charges_no_more_than_was_reserved(tmp_path: Path, late: float) -> None:
    """A stranger's neither. late: after the end of the lease and of its grace."""
    world = World(tmp_path, cap=600, slots=1)
    lease = world.taken()
    signs = [(name, lease.lease, lease.opened + lease.seconds + GRACE_SECONDS + late) for name in (DRIVER, lease.trial)]
    assert held(world, *signs[: 1 if late < 0 else 2]) == pytest.approx(lease.seconds + GRACE_SECONDS)


def test_after_a_power_failure_that_took_all_signs_of_life_a_slot_is_charged_up_to_seconds_before_it(
    tmp_path: Path,
) -> None:
    """Of a trial that had not reported yet."""
    world = World(tmp_path, cap=600, slots=1)
    lease = world.taken()
    while world.now < lease.opened + lease.seconds:
        world.now += 0.5
        world.engine.note_alive()
    assert world.now - lease.opened > 3 * NOTE_SECONDS
    (tmp_path / HEARTBEAT_FOLDER).mkdir()
    for name in (DRIVER, lease.trial):
        (tmp_path / HEARTBEAT_FOLDER / name).touch()
    close_what_a_kill_left_open(world.journal)
    seconds = world.total("SELECT TOTAL(closed - opened) FROM slots")
    assert world.now - lease.opened - NOTE_SECONDS <= seconds <= lease.seconds + GRACE_SECONDS


@pytest.mark.parametrize("decodes", [True, False])
def test_what_the_driver_holds_itself_is_charged_up_to_its_own_last_sign_of_life(tmp_path: Path, decodes: bool) -> None:
    """Killed 4.2 s into the decoding of a winner, whose trial gave its last sign of life on another lease; or with a
    slot on which nothing had begun.
    """
    world = World(tmp_path, cap=600, slots=1)
    if decodes:
        add_trial(world.journal, state="finished")
        Hold(world.accounting, "t001", DECODING, devices=1, seconds=60)
    else:
        world.accounting.ledger.reserve(world.accounting.open_slot(world.now), 60)
    assert held(world, ("t001", 7, world.now + 9), (DRIVER, 0, world.now + 4.2)) == pytest.approx(4.2)


@pytest.mark.parametrize(("driver", "worker", "seconds"), [(0.3, 0.7, 5.7), (0.0, 1e300, 5 + GRACE_SECONDS)])
def test_a_worker_that_waited_when_its_driver_died_is_charged_up_to_its_own_last_sign_of_life_and_its_grace(
    tmp_path: Path, driver: float, worker: float, seconds: float
) -> None:
    """After a lease of five seconds. A stranger's sign of life charges no more either."""
    world = World(tmp_path, cap=600, slots=1)
    lease = world.taken()
    world.now += 5
    world.accounting.close_lease(world.engine.running[lease.trial], "steps")
    signs = (DRIVER, 0, world.now + driver), (lease.trial, lease.lease, world.now + worker)
    assert held(world, *signs) == pytest.approx(seconds)


def test_after_a_kill_no_more_is_charged_than_a_slot_was_held_whatever_its_trial_says(tmp_path: Path) -> None:
    """As two processes of one loop, which both report."""
    world = World(tmp_path, cap=600, slots=1)
    lease = world.taken()
    for passed in (10.0, 0.5):
        world.now += passed
        for _ in range(2):
            report = Report(steps=5, tokens=5, training_seconds=0.5, seconds={"start": 0.1 * passed, "steps": passed})
            world.engine.on_report(lease.trial, report)
    again = World(tmp_path, cap=600, slots=1)
    assert 10.5 <= again.spent <= 10.5 + LIVES_ON_SECONDS + 1e-6
    assert again.total("SELECT TOTAL(seconds) FROM charges") == pytest.approx(again.spent)
    assert again.total("SELECT MIN(seconds) FROM charges") >= 0


def test_only_what_no_trial_was_trained_with_is_spent_beside_them(tmp_path: Path) -> None:
    world = World(tmp_path, cap=600, slots=1, shares={"nanogpt": 1.0}).run(3)
    assert spent_beside(world.journal) == 0
    with Hold(world.accounting, "t001", DECODING, devices=2, seconds=9):
        world.now += 7
    assert spent_beside(world.journal) == pytest.approx(2 * 7)


@pytest.mark.parametrize("what", ["sha256", "vocabulary", "training_tokens"])
def test_a_text_that_changed_or_has_other_tokens_is_refused_by_the_name_of_its_flag(what: str) -> None:
    """What a study's first version did not note may be anything."""
    now = SimpleNamespace(name="text.txt", sha256="same", vocabulary=65, training_tokens=900)
    facts = {"sha256": "same", "vocabulary": 65, "training_tokens": 900}
    for before in (facts, {"sha256": "same"}):
        check_same_text({"nanogpt": now}, {"corpora": {"nanogpt": before}})
    with pytest.raises(ValueError, match=r"--text-corpus: 'text\.txt' has changed .* text, Ration and packages that"):
        check_same_text({"nanogpt": now}, {"corpora": {"nanogpt": facts | {what: "other"}}})
