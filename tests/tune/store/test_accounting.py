"""Several devices held together: n for t seconds are charged n x t, and the cap holds."""

import math
from pathlib import Path

import pytest

from tune.search.resume import close_what_a_kill_left_open
from tune.search.simulator import Clock
from tune.store.accounting import OPENING_SECONDS, Accounting, Hold, Ledger, affordable
from tune.store.heartbeat import GRACE_SECONDS
from tune.store.journal import Journal


@pytest.fixture
def accounting(tmp_path: Path, clock: Clock) -> Accounting:
    journal = Journal(tmp_path, new=True)
    journal.insert("trials", {"trial": "t001", "family": "nanogpt", "config": "{}", "state": "running", "created": 0})
    return Accounting(journal, Ledger(cap=100, clock=clock), clock)


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
        assert held.left == 15
    clock.now = 50
    assert totals(accounting) == {"start": 12, "steps": 30, "idle": 3} and accounting.ledger.spent == 45
    leases = accounting.journal.rows("SELECT closed, charged FROM leases")
    assert [tuple(lease) for lease in leases] == [(15, 15)] * 3
    assert accounting.ledger.left == 55 and accounting.ledger.open_slots == []


def test_slots_that_share_a_device_are_charged_their_part_of_it(tmp_path, clock):
    journal = Journal(tmp_path, new=True)
    journal.insert("trials", {"trial": "t001", "family": "nanogpt", "config": "{}", "state": "running", "created": 0})
    accounting = Accounting(journal, Ledger(cap=100, clock=clock, share=0.25), clock)
    with hold(accounting, 4, 90) as held:
        clock.now = 40
        held.charge("steps")
    assert totals(accounting)["steps"] == accounting.ledger.spent == 40
    leases = journal.rows("SELECT reserved, charged FROM leases")
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
        assert held.left < 0
    assert totals(accounting) == {"steps": 20, "idle": 2 * (20 + GRACE_SECONDS)}
    assert accounting.ledger.spent == 2 * (30 + GRACE_SECONDS)
    assert all(slot["closed"] == 30 + GRACE_SECONDS for slot in accounting.journal.rows("SELECT closed FROM slots"))


def test_what_an_error_ends_is_lost_and_charged(accounting, clock):
    with pytest.raises(KeyboardInterrupt), hold(accounting, 2, 30):
        clock.now = 7
        raise KeyboardInterrupt
    assert totals(accounting) == {"lost": 14} and accounting.ledger.spent == 14


def test_more_than_the_cap_pays_for_is_refused_before_anything_is_held(accounting):
    most = affordable(accounting, 4)
    assert most == 25 - GRACE_SECONDS - OPENING_SECONDS
    with pytest.raises(ValueError, match=r"^lease: 4 x 25\.0 s do not fit: only 4 x 24\.1 s do$"):
        hold(accounting, 4, 25)
    assert accounting.ledger.open_slots == [] and accounting.journal.rows("SELECT * FROM slots") == []
    with hold(accounting, 4, most):
        assert 0 <= accounting.ledger.left <= 4 * OPENING_SECONDS + 1e-6


@pytest.mark.parametrize(("wanted", "wall"), [(50.0, 20.0), (20.0, 50.0), (500.0, math.inf)])
def test_a_lease_outlasts_neither_what_is_wanted_nor_the_deadline_nor_the_cap(accounting, wanted, wall):
    lease = accounting.open_lease("t001", 0, None, wanted, wanted, wall, 1)
    assert lease["reserved"] == pytest.approx(min(wanted, wall, 100 - GRACE_SECONDS), abs=0.1)
    assert lease["reserved"] <= min(wanted, wall) and accounting.ledger.left >= 0


def test_a_kill_is_charged_on_every_device(accounting, clock):
    held = hold(accounting, 2, 30)
    clock.now = 10
    held.charge("steps")
    close_what_a_kill_left_open(accounting.journal)
    slots = accounting.journal.rows("SELECT opened, closed FROM slots")
    assert len(slots) == 2 and all(10 <= slot["closed"] - slot["opened"] <= 11 for slot in slots)
    assert sum(totals(accounting).values()) == pytest.approx(sum(slot["closed"] for slot in slots))
