"""Accounting: the account of a study's cap, the leases by which it is used, and the movements of device-seconds while a
study runs, in the ledger and in the journal at once.

A slot is charged from the moment it is opened until it is handed back, whatever happens on it. What runs on a slot runs
on a lease: time that was reserved before it began, and with it a grace in which the process that works there ends
itself. So the cap holds by construction: the ledger never lets the ends of all leases, graces included, add up to more
than the cap.

Leases and what is charged to them are counted in seconds of their slot, of which one is 1 / k of a device-second where
k slots share a device, and n where a slot is n CPU cores; the journal has them in device-seconds.

What is reserved is written down before it is used. A slot is open while a process holds it; on it one lease follows
another, and what lies between them is idle time, charged like the rest. A hold is several slots for one trial.
"""

import math
import sqlite3
import time
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from typing import Self, TypeVar

from tune.errors import UserError
from tune.reports import Report, Value, journal_row
from tune.search_space import Config, precision_of
from tune.store.heartbeat import GRACE_SECONDS, Heartbeat, machine_boot_id, read_heartbeat
from tune.store.journal import Journal, as_mapping

DECODING = "decoding"
"""The purpose of a lease on which the driver itself lets a winner translate and write."""
Key = TypeVar("Key")
UNITS_PER_SECOND = 2**60
"""Units in a second, in which seconds are summed: each float above 4 ms is a whole number of them, so that sums are
exact in whatever order."""
ROUNDING_SECONDS = 1e-6
"""Seconds of a slot that are never reserved, as an end is rounded, and so is what it adds up to."""


class ExactSum(dict[Key, float]):
    """Moments or seconds by key, and their sum, exact to the last digit whatever was added and removed.

    It must be changed by item alone: `exact[key] = seconds`, `del exact[key]`.
    """

    _units = 0

    def beyond(self, moment: float) -> int:
        """Return the sum of what each is beyond a moment, of which `UNITS_PER_SECOND` make a second."""
        return self._units - len(self) * int(moment * UNITS_PER_SECOND)

    def __setitem__(self, key: Key, seconds: float) -> None:
        self._units += int(seconds * UNITS_PER_SECOND) - int(self.get(key, 0.0) * UNITS_PER_SECOND)
        super().__setitem__(key, seconds)

    def __delitem__(self, key: Key) -> None:
        self._units -= int(self[key] * UNITS_PER_SECOND)
        super().__delitem__(key)


class Ledger:
    """The account of one cap. clock: gives the study's seconds; spent_before: what earlier runs of it spent.

    share: the device-seconds in a second of a slot. Of a slot only these are known: when it was opened and closed, and
    until when it is on a lease. What is spent, reserved and left follows from their sums, however many slots there are.
    """

    def __init__(
        self, *, cap: float, clock: Callable[[], float], spent_before: float = 0.0, share: float = 1.0
    ) -> None:
        self.cap, self.share = cap, share
        self._clock = clock
        self._before = spent_before
        self._opened, self._closed, self._until = ExactSum[int](), ExactSum[int](), ExactSum[int]()
        self._leases: list[tuple[float, int]] = []
        """Leases in use, by their ends: (until, slot)."""

    def _spent(self, now: float) -> float:
        return self._before + self.share * ((self._closed.beyond(now) - self._opened.beyond(now)) / UNITS_PER_SECOND)

    def _reserved(self, now: float) -> float:
        overrun = sum(now - until for until, _ in takewhile(lambda lease: lease[0] < now, self._leases))
        open_slots = len(self._opened) - len(self._closed)
        return self.share * (self._until.beyond(now) / UNITS_PER_SECOND + overrun + open_slots * GRACE_SECONDS)

    def _room(self, now: float) -> float:
        return (self.cap - self._spent(now) - self._reserved(now)) / self.share

    @property
    def spent(self) -> float:
        """Device-seconds charged until now."""
        return self._spent(self._clock())

    @property
    def reserved(self) -> float:
        """Device-seconds that running leases may still use, and the graces of open slots."""
        return self._reserved(self._clock())

    @property
    def left(self) -> float:
        """Device-seconds neither spent nor reserved."""
        return self._room(self._clock()) * self.share

    @property
    def open_slots(self) -> list[int]:
        """The slots held now."""
        return [slot for slot in self._opened if slot not in self._closed]

    @property
    def first_end(self) -> float:
        """The study's clock at the end of the first of the leases in use; inf: there is none."""
        return self._leases[0][0] if self._leases else math.inf

    def can_wait(self, seconds: float) -> bool:
        """Whether what is left pays for so many seconds of each slot that is on no lease, or past its lease's end."""
        now = self._clock()
        in_use = len(self._leases) - bisect_right(self._leases, (now, math.inf))
        waiting = len(self._opened) - len(self._closed) - in_use
        return waiting <= 0 or waiting * seconds <= self._room(now)

    def affordable(self, slot: int | None, slots: int = 1, at: float | None = None) -> float:
        """Return the longest lease that could be reserved at the moment `at` (None: now) on `slot`, or on each of so
        many new ones (None)."""
        room = self._room(self._clock() if at is None else at) - ROUNDING_SECONDS
        return room if slot is not None else room / slots - GRACE_SECONDS

    def open(self, slot: int, at: float | None = None) -> None:
        """Begin to charge a new slot, as of `at` (None: now); a lease on it must be reserved at once, as of then."""
        assert slot not in self._opened, f"slot {slot} was opened before"
        self._opened[slot] = self._clock() if at is None else at

    def reserve(self, slot: int, at_most: float, at: float | None = None) -> float:
        """Let what runs on `slot` use up to `at_most` seconds from `at` (None: now) on, as many as are affordable then.
        Returns how many these are; there must be some."""
        assert slot in self._opened and slot not in self._closed, f"slot {slot} is not open"
        now = self._clock() if at is None else at
        self.release(slot)
        seconds = min(at_most, self.affordable(slot, at=now))
        assert seconds > 0, f"a lease of {seconds} s"
        self._until[slot] = now + seconds
        insort(self._leases, (self._until[slot], slot))
        return seconds

    def release(self, slot: int) -> None:
        """End the lease on `slot`, if it has one; what that did not use is free again."""
        if slot in self._until:
            del self._leases[bisect_left(self._leases, (self._until[slot], slot))]
            del self._until[slot]

    def hand_back(self, slot: int, at: float | None = None) -> float:
        """End the charging of `slot` for good, as of `at` (None: now); returns the seconds it was held.

        If it is called again, only the last call counts.
        """
        self.release(slot)
        self._closed[slot] = self._clock() if at is None else at
        return self._closed[slot] - self._opened[slot]


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """What a slot is to do next: a trial and its lease, reserved already.

    rung: None for the last segment; seconds: of the slot, from `opened` (the study's clock) on; steps,
    training_seconds, micro_batches: as in model.training.time_budget.Segment.
    """

    trial: str
    family: str
    config: Config
    slot: int
    lease: int
    rung: int | None
    opened: float
    seconds: float
    steps: int | None
    training_seconds: float | None
    checkpoint: str | None
    micro_batches: int


@dataclass(kw_only=True)
class RunningLease:
    """A lease in use. micro_batches: into how many parts batches are cut on it; there: names of the slots that there
    were when it was opened; charged: seconds of the slot so far, by what they were used for; gone: since when its
    worker is gone, None where it is not; cut_by: what made it shorter than its segment may need, the deadline or, of a
    list, the cap; silent: whether it is of a loop that had never reported, so that it holds more than that will take.
    """

    assignment: Assignment
    fresh_slot: bool
    steps_before: int
    micro_batches: int
    there: frozenset[str] = frozenset()
    charged: dict[str, float] = field(default_factory=dict)
    gone: float | None = None
    cut_by: str | None = None
    silent: bool = False


class Accounting:
    """The slots, leases and charges of one study.

    peak_flops: FLOP/s of a device by precision, as the first trial of each in this run measured it.
    """

    def __init__(self, journal: Journal, ledger: Ledger, clock: Callable[[], float]) -> None:
        self.journal, self.ledger, self.clock = journal, ledger, clock
        self.peak_flops: dict[str, float] = {}
        self._idle_since: dict[int, float] = {}
        self._next_slot = 1 + max((row["slot"] for row in journal.rows("SELECT slot FROM slots")), default=-1)

    @property
    def idle_slots(self) -> int:
        """Number of slots held, with nothing to do."""
        return len(self._idle_since)

    @property
    def affordable(self) -> float:
        """The longest lease that the next slot could be given: an idle one, else a new one."""
        return self.ledger.affordable(next(iter(self._idle_since), None))

    def open_lease(
        self, trial: str, rung: int | None, goal: int | None, price: float, wanted: float, wall: float,
        micro_batches: int,
    ) -> sqlite3.Row | None:  # fmt: skip
        """Reserve up to `wanted` seconds for a trial, within the cap and `wall`, on an idle slot or a new one, as
        of one moment, as the process may be stopped at any.

        Returns the row of `leases`; None: by now, nothing is left.
        """
        now, slot, at_most = self.clock(), next(iter(self._idle_since), None), min(wanted, wall)
        if min(at_most, self.ledger.affordable(slot, at=now)) <= 0:
            return None
        if slot is None:
            slot = self.open_slot(now)
        else:
            self._end_idling(slot, now)
        seconds = self.ledger.reserve(slot, at_most, now)
        row: dict[str, Value] = {
            "trial": trial,
            "slot": slot,
            "purpose": "final" if rung is None else "rung",
            "rung": rung,
            "goal": goal,
            "price": price * self.ledger.share,
            "reserved": seconds * self.ledger.share,
            "opened": now,
            "micro_batches": micro_batches,
        }
        (lease,) = self.journal.rows("SELECT * FROM leases WHERE lease = ?", self.journal.insert("leases", row))
        return lease

    def open_slot(self, at: float) -> int:
        """Begin to charge a new slot, as of `at`; a lease on it must be reserved at once, as of then."""
        slot = self._next_slot
        self._next_slot += 1
        self.ledger.open(slot, at)
        self.journal.insert("slots", {"slot": slot, "opened": at, "share": self.ledger.share})
        return slot

    def charge(self, run: RunningLease, seconds: Mapping[str, float]) -> None:
        """Charge what a running trial used, by what it used it for, but no more than its lease has lasted: processes of
        a loop that each report tell the same seconds."""
        held = self.clock() - run.assignment.opened
        for what, amount in seconds.items():
            amount = min(amount, held - sum(run.charged.values()))
            charged = self._write_charge(run.assignment.slot, what, amount, run.assignment)
            run.charged[what] = run.charged.get(what, 0.0) + charged / self.ledger.share

    def report(self, run: RunningLease, report: Report) -> Report:
        """Write a trial's report down. Returns it as the journal has it: with the rung that it completes, its MFU by
        the one peak that counts for all of its precision, and its checkpoint's path in the study's folder."""
        to, completes = run.assignment, report.ended == "rung" and report.valid is not None
        written = report.checkpoint and str(Path(report.checkpoint).relative_to(self.journal.folder))
        report = replace(report, rung=to.rung if completes else None, checkpoint=written)
        if report.mfu is not None and report.peak_flops is not None:
            peak = self.peak_flops.setdefault(precision_of(to.config), report.peak_flops)
            report = replace(report, mfu=report.mfu * report.peak_flops / peak, peak_flops=peak)
        row: dict[str, Value] = {"trial": to.trial, "lease": to.lease, "at": self.clock()}
        self.journal.insert("reports", row | journal_row(report))
        self.journal.update("trials", to.trial, {"parameters": report.parameters})
        return report

    def note_memory(
        self, to: Assignment, micro_batches: int, predicted: float, measured: int | None, limit: float
    ) -> None:
        """Write down the most memory that a trial took, with its batches cut into so many parts; measured None: it ran
        out under this limit, as another machine may have another one."""
        taken = {"micro_batches": micro_batches, "predicted": round(predicted), "measured": measured}
        event = self.journal.insert("memory", {"at": self.clock(), "trial": to.trial, "lease": to.lease, **taken})
        if measured is None and math.isfinite(limit):
            limits = as_mapping(self.journal.facts().get("memory_limits"))
            self.journal.write_facts(memory_limits={**limits, str(event): limit})

    def close_lease(self, run: RunningLease, rest: str) -> float:
        """End a lease: what the trial did not account for itself is charged as `rest`, what it did not use is released.

        If its worker is gone, the lease ended when that went. Returns the device-seconds of the lease.
        """
        assignment, now = run.assignment, self.clock() if run.gone is None else run.gone
        seconds = now - assignment.opened
        charged = seconds * self.ledger.share
        self.charge(run, {rest: seconds - sum(run.charged.values())})
        self.ledger.release(assignment.slot)
        self.journal.update("leases", assignment.lease, {"closed": now, "charged": charged})
        self._idle_since[assignment.slot] = now
        return charged

    def last_sign(self, run: RunningLease) -> Heartbeat | None:
        """Return the last sign of life that a worker gave on this lease; None: it gave none."""
        last = read_heartbeat(self.journal.folder, run.assignment.trial)
        return last if last is not None and last.lease == run.assignment.lease else None

    def note_gone(self, run: RunningLease, at: float, since: float = -math.inf) -> None:
        """Note that the worker of a lease is gone since `at`, or, if that is sooner, since the grace was over that
        followed its lease and the driver's last sign of life (`since`): its slot is charged no longer."""
        to = run.assignment
        over = max(to.opened + to.seconds, since) + GRACE_SECONDS
        run.gone = max(to.opened + sum(run.charged.values()), min(at, over))
        self.ledger.hand_back(to.slot, run.gone)

    def hand_back(self, slot: int | None = None, at: float | None = None) -> None:
        """Close a slot for good, as of `at` (None: now): the one named, else any idle one."""
        slot = next(iter(self._idle_since)) if slot is None else slot
        closed = self.clock() if at is None else at
        self._end_idling(slot, closed)
        self.ledger.hand_back(slot, closed)
        self.journal.update("slots", slot, {"closed": closed})

    def hand_back_slept(self, since: float) -> None:
        """Close an idle slot whose worker waited for a driver that was silent from `since` on: it is charged for its
        grace at most."""
        slot, idle_since = next(iter(self._idle_since.items()))
        self.hand_back(slot, min(self.clock(), max(since, idle_since) + GRACE_SECONDS))

    def _end_idling(self, slot: int, at: float) -> None:
        self._write_charge(slot, "idle", at - self._idle_since.pop(slot))

    def _write_charge(self, slot: int, what: str, seconds: float, to: Assignment | None = None) -> float:
        """Write down a charge. Returns its device-seconds."""
        charged = seconds * self.ledger.share
        row: dict[str, Value] = {"at": self.clock(), "slot": slot, "what": what, "seconds": charged}
        self.journal.insert("charges", row | ({"trial": to.trial, "lease": to.lease} if to else {}))
        return charged


class Hold:
    """New slots on leases of equal length, from now until the `with` block ends; all are charged alike.

    trial: to which the next charges go; None: to none.
    """

    def __init__(self, accounting: Accounting, trial: str, purpose: str, *, devices: int, seconds: float) -> None:
        """Reserve `seconds` on each. UserError: the cap does not hold them."""
        now = accounting.clock()
        most = accounting.ledger.affordable(None, devices, at=now)
        if seconds > most:
            raise UserError(f"lease: {devices} x {seconds:.1f} s do not fit: only {devices} x {max(most, 0):.1f} s do")
        self._accounting = accounting
        self.trial: str | None = trial
        self._leases: dict[int, int] = {}
        self._opened = self._charged = now
        reserved = seconds * accounting.ledger.share
        with accounting.journal.transaction():
            for _ in range(devices):
                slot = accounting.open_slot(now)
                accounting.ledger.reserve(slot, seconds, now)
                row: dict[str, Value] = {"trial": trial, "slot": slot, "purpose": purpose, "opened": now}
                self._leases[slot] = accounting.journal.insert(
                    "leases", row | {"price": reserved, "reserved": reserved}
                )
        self._ends = self._opened + seconds

    @property
    def seconds_left(self) -> float:
        """Seconds until the leases end."""
        return self._ends - self._accounting.clock()

    @property
    def moment(self) -> dict[str, float | str]:
        """When the leases end, by the study's clock and by the monotonic clock of this machine's boot."""
        return {"opened": self._ends, "boot": machine_boot_id(), "monotonic": time.monotonic() + self.seconds_left}

    def charge(self, what: str) -> None:
        """Charge the seconds since the last charge as `what`, on each slot; none after the grace, in which all that
        works on them has ended itself, however late the driver comes."""
        now = min(self._accounting.clock(), self._ends + GRACE_SECONDS)
        seconds = (now - self._charged) * self._accounting.ledger.share
        for slot, lease in self._leases.items():
            row = {"at": now, "slot": slot, "trial": self.trial, "lease": lease, "what": what}
            self._accounting.journal.insert("charges", row | {"seconds": seconds})
        self._charged = now

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Charge the rest as lost where an error ended the block, else as idle, and hand the slots back."""
        with self._accounting.journal.transaction():
            self.charge("idle" if kind is None else "lost")
            charged = (self._charged - self._opened) * self._accounting.ledger.share
            for slot, lease in self._leases.items():
                self._accounting.ledger.hand_back(slot, self._charged)
                self._accounting.journal.update("leases", lease, {"closed": self._charged, "charged": charged})
                self._accounting.journal.update("slots", slot, {"closed": self._charged})
