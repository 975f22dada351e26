"""The account: what is spent and what is promised never exceed the cap, whatever happens between; several devices held
together; and the one peak of a precision, the first that was measured, of which its trials' utilisation is a share.
"""

import math
import random
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from tests.tune.search.world import Numbered, World, add_trial
from tune.reports import Report
from tune.search.resume import LIVES_ON_SECONDS, close_what_a_kill_left_open, spent
from tune.search.simulator import Clock
from tune.store.accounting import Accounting, Hold, Ledger
from tune.store.heartbeat import GRACE_SECONDS
from tune.store.journal import Journal


def test_a_slot_is_charged_while_it_is_held_idle_or_not(clock: Clock) -> None:
    ledger = Ledger(cap=100, clock=clock)
    clock.now = 3
    ledger.open(0)
    ledger.reserve(0, 10)
    clock.now = 7
    ledger.release(0)
    clock.now = 9
    assert ledger.spent == 6
    assert ledger.hand_back(0) == 6
    clock.now = 50
    assert ledger.spent == 6


def test_a_reservation_is_taken_from_what_is_left_at_once_and_released_when_unused(clock: Clock) -> None:
    """One that does not fit gets what is left; an overrun is counted as it happens."""
    ledger = Ledger(cap=100, clock=clock)
    ledger.open(0)
    ledger.reserve(0, 60)
    ledger.open(1)
    assert ledger.left == pytest.approx(40 - 2 * GRACE_SECONDS)
    assert ledger.reserve(1, 60) == pytest.approx(40 - 2 * GRACE_SECONDS)
    assert 0 <= ledger.left <= 1e-3
    ledger.hand_back(1)
    clock.now = 10
    ledger.release(0)
    assert ledger.left == pytest.approx(90 - GRACE_SECONDS)
    ledger.reserve(0, 10)
    clock.now = 35
    assert ledger.spent == 35 and ledger.left == pytest.approx(65 - GRACE_SECONDS)


@pytest.mark.parametrize("slots", [1, 2, 5])
def test_what_is_left_has_to_pay_for_all_slots_that_wait(slots: int, clock: Clock) -> None:
    ledger = Ledger(cap=100, clock=clock)
    for slot in range(slots):
        ledger.open(slot)
    for busy in range(slots):
        each = ledger.left / (slots - busy)
        assert ledger.can_wait(0.99 * each) and not ledger.can_wait(1.01 * each)
        ledger.reserve(busy, 1)
    assert ledger.can_wait(math.inf)


def test_the_cap_holds_for_random_histories() -> None:
    """Leases of random length on random slots, ended early at random: held time never exceeds the cap."""
    for seed in range(8):
        chance, clock = random.Random(seed), Clock()
        ledger = Ledger(cap=200, clock=clock)
        ends: dict[int, float] = {}
        for step in range(300):
            clock.now += chance.uniform(0, 2)
            clock.now = min([clock.now, *ends.values()]) if ends else clock.now
            for slot in [slot for slot, end in ends.items() if end <= clock.now or chance.random() < 0.1]:
                del ends[slot]
                ledger.release(slot)
            if len(ledger.open_slots) < 4 and ledger.affordable(None) > 1 and chance.random() < 0.5:
                ledger.open(step)
            for slot in [slot for slot in ledger.open_slots if slot not in ends]:
                if (most := ledger.affordable(slot)) > 1:
                    seconds = chance.uniform(0.5, 1) * most
                    ledger.reserve(slot, seconds)
                    ends[slot] = clock.now + seconds
                else:
                    ledger.hand_back(slot)
            assert ledger.spent <= ledger.cap
        assert ledger.spent > 0.95 * ledger.cap


def test_the_account_is_what_its_slots_add_up_to_whatever_came_and_went() -> None:
    """To the last digit: slots overrun their leases, get another before the end, close in the past, and twice."""
    chance, clock = random.Random(0), Clock()
    ledger = Ledger(cap=1e9, clock=clock)
    opened: dict[int, float] = {}
    closed: dict[int, float] = {}
    until: dict[int, float] = {}
    for step in range(300):
        clock.now += chance.expovariate(3) + 1 / 128
        if chance.random() < 0.3:
            ledger.open(step)
            opened[step] = clock.now
        slot = chance.choice(list(opened) or [0])
        match chance.choice(["reserve", "release", "hand back"] if opened else [""]):
            case "reserve" if slot not in closed:
                until[slot] = clock.now + (seconds := chance.uniform(0.5, 40))
                ledger.reserve(slot, seconds)
            case "release":
                until.pop(slot, None)
                ledger.release(slot)
            case "hand back":
                until.pop(slot, None)
                closed[slot] = chance.uniform(opened[slot], clock.now)
                assert ledger.hand_back(slot, closed[slot]) == closed[slot] - opened[slot]
        held = sum(Fraction(closed.get(slot, clock.now)) - Fraction(opened[slot]) for slot in opened)
        promised = sum(max(0.0, end - clock.now) for end in until.values())
        assert ledger.spent == float(held)
        assert ledger.reserved == pytest.approx(promised + (len(opened) - len(closed)) * GRACE_SECONDS)
        assert ledger.first_end == min(until.values(), default=math.inf)
        assert ledger.open_slots == [slot for slot in opened if slot not in closed]


# --- several devices, on leases of equal length


def account(clock: Clock, share: float = 1.0) -> Accounting:
    """Of a cap of 100 s."""
    journal = Journal(None, new=True)
    add_trial(journal, state="running")
    return Accounting(journal, Ledger(cap=100, clock=clock, share=share), clock)


@pytest.fixture
def accounting(clock: Clock, request: pytest.FixtureRequest) -> Accounting:
    """param: the share of a device that a slot is, if it is not all of one."""
    return account(clock, getattr(request, "param", 1.0))


def hold(accounting: Accounting, devices: int, seconds: float) -> Hold:
    return Hold(accounting, "t001", "scaling", devices=devices, seconds=seconds)


def totals(accounting: Accounting) -> dict[str, float]:
    rows = accounting.journal.rows("SELECT what, TOTAL(seconds) AS seconds FROM charges GROUP BY what")
    return {row["what"]: row["seconds"] for row in rows}


def test_n_devices_for_t_seconds_are_charged_n_times_t(accounting, clock):
    with hold(accounting, 3, 30) as held:
        clock.now = 4
        held.charge("start")
        clock.now = 14
        held.charge("steps")
        clock.now = 15
        assert held.seconds_left == 15
    clock.now = 50
    assert totals(accounting) == {"start": 12, "steps": 30, "idle": 3} and accounting.ledger.spent == 45
    leases = accounting.journal.rows("SELECT closed, charged FROM leases")
    assert [tuple(lease) for lease in leases] == [(15, 15)] * 3
    assert accounting.ledger.left == 55 and accounting.ledger.open_slots == []


@pytest.mark.parametrize("accounting", [0.25], indirect=True)
def test_slots_that_share_a_device_are_charged_their_part_of_it(accounting, clock):
    with hold(accounting, 4, 90) as held:
        clock.now = 40
        held.charge("steps")
    assert totals(accounting)["steps"] == accounting.ledger.spent == spent(accounting.journal) == 40
    leases = accounting.journal.rows("SELECT reserved, charged FROM leases")
    assert [tuple(lease) for lease in leases] == [(22.5, 10)] * 4


def test_all_slots_of_a_hold_begin_and_end_with_its_leases(accounting, clock, monkeypatch):
    monkeypatch.setattr(accounting, "clock", iter(range(100)).__next__)
    with hold(accounting, 3, 20) as held:
        held.charge("steps")
    kept = accounting.journal.rows(
        "SELECT slots.closed - slots.opened AS held, charged FROM slots JOIN leases USING (slot)"
    )
    assert all(row["held"] == row["charged"] for row in kept) and len(kept) == 3


def test_a_driver_that_sleeps_past_the_leases_charges_no_more_than_they_and_their_graces(accounting, clock):
    """All that works on them has ended itself by then."""
    with hold(accounting, 2, 30) as held:
        clock.now = 10
        held.charge("steps")
        clock.now = 6000
        assert held.seconds_left < 0
    assert totals(accounting) == {"steps": 20, "idle": 2 * (20 + GRACE_SECONDS)}
    assert accounting.ledger.spent == 2 * (30 + GRACE_SECONDS)
    assert all(slot["closed"] == 30 + GRACE_SECONDS for slot in accounting.journal.rows("SELECT closed FROM slots"))


def test_what_an_error_ends_is_lost_and_charged(accounting, clock):
    with pytest.raises(KeyboardInterrupt), hold(accounting, 2, 30):
        clock.now = 7
        raise KeyboardInterrupt
    assert totals(accounting) == {"lost": 14} and accounting.ledger.spent == 14


def test_more_than_the_cap_pays_for_is_refused_before_anything_is_held(accounting):
    most = accounting.ledger.affordable(None, 4)
    assert most == pytest.approx(25 - GRACE_SECONDS)
    with pytest.raises(ValueError, match=r"^lease: 4 x 25\.0 s do not fit: only 4 x 24\.2 s do$"):
        hold(accounting, 4, 25)
    assert accounting.ledger.open_slots == [] and accounting.journal.rows("SELECT * FROM slots") == []
    with hold(accounting, 4, most):
        assert 0 <= accounting.ledger.left <= 1e-3


@pytest.mark.parametrize(("wanted", "wall"), [(50.0, 20.0), (20.0, 50.0), (500.0, math.inf)])
def test_a_lease_outlasts_neither_what_is_wanted_nor_the_deadline_nor_the_cap(accounting, wanted, wall):
    lease = accounting.open_lease("t001", 0, None, wanted, wanted, wall, 1)
    assert lease["reserved"] == pytest.approx(min(wanted, wall, 100 - GRACE_SECONDS), abs=0.1)
    assert lease["reserved"] <= min(wanted, wall) and accounting.ledger.left >= 0


class Stopped(Clock):
    """The process is stopped for so many seconds before one of the next readings."""

    readings, seconds = 0, 0.0

    def __call__(self) -> float:
        self.readings -= 1
        self.now += self.seconds if self.readings == 0 else 0.0
        return self.now


@pytest.mark.parametrize("seconds", [0.05, 5.0, 500.0])
@pytest.mark.parametrize("taken", ["a lease", "a lease beside another", "a hold"])
def test_at_whatever_moment_the_process_is_stopped_what_it_reserves_is_within_the_cap(
    taken: str, seconds: float
) -> None:
    """It asks for all there is, and has that, unless what it was stopped for took it."""
    for readings in range(1, 20):
        clock = Stopped()
        accounting = account(clock)
        if taken == "a lease beside another":
            accounting.open_lease("t001", 0, None, 30.0, 30.0, math.inf, 1)
        most = accounting.ledger.affordable(None, 3)
        clock.readings, clock.seconds = readings, seconds
        if taken == "a hold":
            hold(accounting, 3, most)
        else:
            accounting.open_lease("t001", 0, None, 99.0, 200.0, math.inf, 1)
        rows = accounting.journal.rows("SELECT l.opened + reserved - s.opened FROM leases l JOIN slots s USING (slot)")
        promised = sum(held + GRACE_SECONDS for (held,) in rows)
        assert promised <= 100 and (promised > 99.99 or (taken, seconds) == ("a lease beside another", 500.0))


def test_a_kill_is_charged_on_every_device(accounting, clock):
    """From the last charge on for the moment that a process lives on without its driver."""
    held = hold(accounting, 2, 30)
    clock.now = 10
    held.charge("steps")
    close_what_a_kill_left_open(accounting.journal)
    slots = accounting.journal.rows("SELECT opened, closed FROM slots")
    assert [slot["closed"] - slot["opened"] for slot in slots] == [10 + LIVES_ON_SECONDS] * 2
    assert sum(totals(accounting).values()) == pytest.approx(sum(slot["closed"] for slot in slots))


# --- the share of a peak


class InTurns(Numbered):
    """Every other configuration is of another precision."""

    def suggest(self, trial: str) -> dict[str, Any]:
        return super().suggest(trial) | {"precision": ("bf16", "fp32")[self.given % 2]}


FLOPS = 20.0
"""What training reaches a second."""


def shares(world: World, *peaks: float | None) -> list[float | None]:
    """What the journal says of new trials, by the peak that each measured; their precisions alternate, fp32 first."""
    for peak in peaks:
        assignment = world.taken()
        report = Report(steps=40, tokens=40, training_seconds=2.0, mfu=peak and FLOPS / peak, peak_flops=peak)
        world.engine.on_report(assignment.trial, report)
    return [row["mfu"] for row in world.rows("SELECT mfu FROM reports ORDER BY report")]


def test_the_first_peak_of_a_precision_counts_for_all_of_its_trials(tmp_path: Path) -> None:
    world = World(tmp_path, cap=1200, slots=4, shares={"nanogpt": 1.0}, suggestions=InTurns)
    assert shares(world, 100.0, 400.0, 50.0, 100.0) == pytest.approx([0.2, 0.05, 0.2, 0.05])
    assert world.accounting.peak_flops == {"fp32": 100.0, "bf16": 400.0}


def test_what_was_not_measured_is_not_known(tmp_path: Path) -> None:
    world = World(tmp_path, cap=1200, slots=2, shares={"nanogpt": 1.0}, suggestions=InTurns)
    assert shares(world, None, None) == [None, None]
    assert world.accounting.peak_flops == {}
