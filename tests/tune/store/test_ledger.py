"""The ledger's law: what is spent and what is promised never exceed the cap, whatever happens between."""

import math
import random
from fractions import Fraction

import pytest

from tune.search.simulator import Clock
from tune.store.accounting import Ledger
from tune.store.heartbeat import GRACE_SECONDS


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
    """One that does not fit is refused and changes nothing; an overrun is counted as it happens."""
    ledger = Ledger(cap=100, clock=clock)
    ledger.open(0)
    ledger.reserve(0, 60)
    ledger.open(1)
    assert ledger.left == pytest.approx(40 - 2 * GRACE_SECONDS)
    with pytest.raises(ValueError, match="do not fit"):
        ledger.reserve(1, 60)
    assert ledger.left == pytest.approx(40 - 2 * GRACE_SECONDS)
    ledger.hand_back(1)
    clock.now = 10
    ledger.release(0)
    assert ledger.left == pytest.approx(90 - GRACE_SECONDS)
    ledger.reserve(0, 10)
    clock.now = 35
    assert ledger.spent == 35 and ledger.left == pytest.approx(65 - GRACE_SECONDS)


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
