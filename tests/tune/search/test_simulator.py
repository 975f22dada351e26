"""Laws of virtual time: it is charged as in a search, and no trial is told what it has not reached."""

import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.tune.search.alone import OVERHEAD, START_UP, STEP, Alone
from tests.tune.search.world import OVERHEAD_SECONDS, START_UP_SECONDS, STEP_SECONDS, World
from tune.search.ladder import Rules
from tune.search.simulator import Costs, PowerLaw, Simulation

FREE = Costs(start_up=0.0, overhead=0.0)
DEAR = Costs(start_up=20.0, overhead=3.0, thaw=2.0)


class Same(Alone):
    """All its trials train alike."""

    def __init__(self, like: PowerLaw, **about: Any) -> None:
        self.like = like
        super().__init__(step=like.step_seconds, **about)

    def course(self, *_: Any) -> PowerLaw:
        return self.like


def bytecodes(work: Callable[[], object]) -> int:
    """How many of them it executes."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def test_a_lease_takes_the_search_as_much_work_on_a_thousand_slots_as_on_ten() -> None:
    def work(slots: int) -> int:
        search = Alone(seconds=4e7, slots=slots).run(50)
        assert len(search.accounting.ledger.open_slots) == slots
        return bytecodes(lambda: search.run(50))

    assert work(1000) < 1.1 * work(10)


@pytest.mark.parametrize(
    ("costs", "life", "cap", "slots"), [(DEAR, 150.0, 100.0, 1), (DEAR, math.inf, 900.0, 3), (FREE, 150.0, 3000.0, 8)]
)
def test_what_slots_were_held_is_what_was_spent_and_charged_and_the_cap_holds(
    costs: Costs, life: float, cap: float, slots: int
) -> None:
    search = Alone(seconds=cap, slots=slots, life=life, costs=costs, diverging=0.2).run()
    charged = {
        row["what"]: row["seconds"]
        for row in search.rows("SELECT what, SUM(seconds) AS seconds FROM charges GROUP BY 1")
    }
    held = search.total("SELECT SUM(closed - opened) FROM slots")
    assert 0 < search.spent <= cap
    assert search.spent == pytest.approx(held) == pytest.approx(sum(charged.values()))
    assert charged["start"] == pytest.approx(costs.start_up * search.total("SELECT COUNT(*) FROM slots"), rel=0.2)
    steps = sum(record.steps for record in search.engine.trials.values())
    assert charged["steps"] == pytest.approx(steps * STEP)
    if search.spent > 50:
        leases = search.total("SELECT COUNT(*) FROM leases")
        assert charged["evaluation"] >= 0.9 * costs.overhead * leases


def test_slots_wait_beside_the_last_segment_only_as_long_as_what_is_left_pays_for_them() -> None:
    """Even where the policy would keep them: its lease has all of it reserved."""
    search = Alone(seconds=900.0, slots=8, rules=Rules(narrow=False)).run()
    assert 0.95 * 900.0 < search.spent <= 900.0


def test_a_slot_is_charged_a_thaw_where_it_had_another_trial() -> None:
    """One slot, and one trial that climbs on it alone: it is put there once."""
    costs = Costs(start_up=START_UP, overhead=OVERHEAD, thaw=7.0)
    search = Same(
        PowerLaw(step_seconds=STEP, max_steps=150 / STEP), life=150.0, seconds=400.0, configs=1, costs=costs
    ).run()
    leases = search.total("SELECT COUNT(*) FROM leases")
    assert leases > 1 and search.spent == pytest.approx(START_UP + 7.0 + leases * OVERHEAD + 150.0)


def test_what_a_trial_passed_before_the_cap_cut_it_short_counts() -> None:
    like = PowerLaw(step_seconds=1.0, max_steps=1000.0, report_every=10.0)
    search = Same(like, life=1000.0, seconds=300.0, configs=1, costs=FREE).run()
    (record,) = search.engine.trials.values()
    assert 250 < record.steps < 300
    assert search.total("SELECT MAX(steps) FROM reports WHERE valid_loss IS NOT NULL") == record.steps
    assert search.total("SELECT MIN(valid_loss) FROM reports") == pytest.approx(like.loss(record.steps))


def test_no_loss_is_told_before_the_first_report() -> None:
    search = Same(PowerLaw(step_seconds=0.01, report_every=2000.0), slots=2).run()
    assert search.total("SELECT MIN(steps) FROM reports WHERE valid_loss IS NOT NULL") >= 2000


def test_what_does_not_fit_in_memory_is_found_out_once_and_costs_no_step() -> None:
    like = PowerLaw(step_seconds=STEP, memory_bytes=2e9)
    search = Same(like, configs=4, costs=Costs(start_up=5.0, overhead=1.0, thaw=1.0, memory_limit=1e9)).run()
    assert {row["reason"].split(":")[0] for row in search.rows("SELECT reason FROM trials")} == {"memory"}
    assert search.total("SELECT COUNT(*) FROM leases") == 4
    assert search.spent == pytest.approx(4 * (5.0 + 1.0))


@pytest.mark.parametrize("life", [math.inf, 200.0])
def test_divergence_ends_a_trial_at_its_first_report_that_is_not_finite(life: float) -> None:
    search = Same(PowerLaw(step_seconds=STEP, max_steps=life / STEP, diverges=250.0), life=life, configs=5).run()
    assert [record.steps for record in search.engine.trials.values()] == [250.0] * 5
    assert [row["reason"] for row in search.rows("SELECT reason FROM trials")] == ["diverged"] * 5
    assert search.total("SELECT COUNT(*) FROM reports WHERE valid_loss IS NOT NULL AND steps >= 250") == 0


def test_a_trial_ends_where_its_own_life_does_however_short() -> None:
    like = PowerLaw(step_seconds=STEP, max_steps=90 / STEP)
    search = Same(like, life=150.0, seconds=2000.0, configs=4).run()
    assert [record.steps for record in search.engine.trials.values()] == [like.max_steps] * 4
    assert [row["state"] for row in search.rows("SELECT state FROM trials")] == ["finished"] * 4


def test_a_last_segment_has_the_loss_that_its_decay_gives() -> None:
    class Decays(PowerLaw):
        def final(self, steps: float) -> float:
            return 0.5

    search = Same(Decays(step_seconds=STEP)).run()
    assert [row["valid_loss"] for row in search.rows("SELECT valid_loss FROM reports WHERE final")] == [0.5]
    assert search.total("SELECT MIN(valid_loss) FROM reports WHERE NOT final") > 1


@pytest.mark.parametrize(("cap", "slots"), [(60, 1), (240, 2), (7200, 8)])
def test_a_noisy_world_whose_prices_are_learned_comes_within_a_fifth(tmp_path: Path, cap: float, slots: int) -> None:
    def world(name: str) -> World:
        (tmp_path / name).mkdir()
        return World(tmp_path / name, cap=cap, slots=slots, seed=7)

    noisy, plain = world("noisy"), world("plain")
    noisy.run()
    costs = Costs(start_up=START_UP_SECONDS, overhead=OVERHEAD_SECONDS)
    Simulation(plain.engine, plain.clock, costs, lambda *_: PowerLaw(step_seconds=STEP_SECONDS)).run()
    assert len(plain.engine.trials) == pytest.approx(len(noisy.engine.trials), rel=0.2)
    assert plain.spent == pytest.approx(noisy.spent, rel=0.2)
    assert 0.85 * cap < plain.spent <= cap
    assert plain.total("SELECT COUNT(*) FROM trials WHERE state IN ('running', 'failed')") == 0
