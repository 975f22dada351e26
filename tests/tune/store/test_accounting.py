"""Several devices held together: n for t seconds are charged n x t, and the cap holds."""

from pathlib import Path

import pytest

from tune.search.resume import close_what_a_kill_left_open
from tune.store.accounting import OPENING_SECONDS, Books, Hold, Ledger, affordable
from tune.store.heartbeat import GRACE_SECONDS
from tune.store.journal import Journal


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def books(tmp_path: Path, clock: Clock) -> Books:
    journal = Journal(tmp_path, new=True)
    journal.insert("trials", {"trial": "t001", "family": "nanogpt", "config": "{}", "state": "running", "created": 0})
    return Books(journal, Ledger(cap=100, clock=clock), clock)


def hold(books: Books, devices: int, seconds: float) -> Hold:
    return Hold(books, "t001", "scaling", devices=devices, seconds=seconds)


def totals(books: Books) -> dict[str, float]:
    rows = books.journal.rows("SELECT what, TOTAL(seconds) AS seconds FROM charges GROUP BY what")
    return {row["what"]: row["seconds"] for row in rows}


def test_n_devices_for_t_seconds_are_charged_n_times_t(books, clock):
    with hold(books, 3, 30) as held:
        clock.now = 4
        held.charge("start")
        clock.now = 14
        held.charge("steps")
        clock.now = 15
        assert held.left == 15
    clock.now = 50
    assert totals(books) == {"start": 12, "steps": 30, "idle": 3} and books.ledger.spent == 45
    leases = books.journal.rows("SELECT closed, charged FROM leases")
    assert [tuple(lease) for lease in leases] == [(15, 15)] * 3
    assert books.ledger.left == 55 and books.ledger.open_slots == []


def test_slots_that_share_a_device_are_charged_their_part_of_it(tmp_path, clock):
    journal = Journal(tmp_path, new=True)
    journal.insert("trials", {"trial": "t001", "family": "nanogpt", "config": "{}", "state": "running", "created": 0})
    books = Books(journal, Ledger(cap=100, clock=clock, share=0.25), clock)
    with hold(books, 4, 90) as held:
        clock.now = 40
        held.charge("steps")
    assert totals(books)["steps"] == books.ledger.spent == 40
    leases = journal.rows("SELECT reserved, charged FROM leases")
    assert [tuple(lease) for lease in leases] == [(22.5, 10)] * 4


def test_all_slots_of_a_hold_begin_and_end_with_its_leases(books, clock, monkeypatch):
    monkeypatch.setattr(books, "clock", iter(range(100)).__next__)
    with hold(books, 3, 20) as held:
        held.charge("steps")
    kept = books.journal.rows("SELECT slots.closed - slots.opened AS held, charged FROM slots JOIN leases USING (slot)")
    assert all(row["held"] == row["charged"] for row in kept) and len(kept) == 3


def test_a_driver_that_sleeps_past_the_leases_charges_no_more_than_they_and_their_graces(books, clock):
    """All that works on them has ended itself by then."""
    with hold(books, 2, 30) as held:
        clock.now = 10
        held.charge("steps")
        clock.now = 6000
        assert held.left < 0
    assert totals(books) == {"steps": 20, "idle": 2 * (20 + GRACE_SECONDS)}
    assert books.ledger.spent == 2 * (30 + GRACE_SECONDS)
    assert all(slot["closed"] == 30 + GRACE_SECONDS for slot in books.journal.rows("SELECT closed FROM slots"))


def test_what_an_error_ends_is_lost_and_charged(books, clock):
    with pytest.raises(KeyboardInterrupt), hold(books, 2, 30):
        clock.now = 7
        raise KeyboardInterrupt
    assert totals(books) == {"lost": 14} and books.ledger.spent == 14


def test_more_than_the_cap_pays_for_is_refused_before_anything_is_held(books):
    most = affordable(books, 4)
    assert most == 25 - GRACE_SECONDS - OPENING_SECONDS
    with pytest.raises(ValueError, match=r"^lease: 4 x 25\.0 s do not fit: only 4 x 24\.1 s do$"):
        hold(books, 4, 25)
    assert books.ledger.open_slots == [] and books.journal.rows("SELECT * FROM slots") == []
    with hold(books, 4, most):
        assert 0 <= books.ledger.left <= 4 * OPENING_SECONDS + 1e-6


def test_a_kill_is_charged_on_every_device(books, clock):
    held = hold(books, 2, 30)
    clock.now = 10
    held.charge("steps")
    close_what_a_kill_left_open(books.journal)
    slots = books.journal.rows("SELECT opened, closed FROM slots")
    assert len(slots) == 2 and all(10 <= slot["closed"] - slot["opened"] <= 11 for slot in slots)
    assert sum(totals(books).values()) == pytest.approx(sum(slot["closed"] for slot in slots))
