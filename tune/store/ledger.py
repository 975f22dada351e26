"""The ledger: the account of a study's cap, in device-seconds.

A slot is charged from the moment it is opened until it is handed back, whatever happens on it. What runs on a slot runs
on a lease: time that was reserved before it began, and with it a grace in which whoever works there ends himself. So
the cap holds by construction: the ledger never lets the ends of all leases, graces included, add up to more than the
cap.

Leases are lengths of time: where k slots share a device, a second of one of them is 1 / k of a device-second.
"""

from collections.abc import Callable
from dataclasses import dataclass

GRACE_SECONDS = 0.8
"""Kept aside for each open slot beyond its lease: for the last report, and until its worker has ended itself where
nobody answers; as much for one without a lease."""


@dataclass(kw_only=True)
class Slot:
    """A place where one trial runs, held from `opened` until `closed`, on a lease `until` then."""

    opened: float
    until: float
    closed: float | None = None

    def held(self, now: float) -> float:
        """Seconds charged so far."""
        return (now if self.closed is None else self.closed) - self.opened

    def committed(self, now: float) -> float:
        """Seconds charged so far and those that its lease may still use."""
        return self.held(now) if self.closed is not None else max(now, self.until) - self.opened + GRACE_SECONDS


class Ledger:
    """The account of one cap. `clock` gives the study's seconds; `spent_before` is what earlier runs of it spent.

    share: the device-seconds in a second of a slot.
    """

    def __init__(
        self, *, cap: float, clock: Callable[[], float], spent_before: float = 0.0, share: float = 1.0
    ) -> None:
        self.cap, self.share = cap, share
        self._clock = clock
        self._before = spent_before
        self._slots: dict[int, Slot] = {}

    @property
    def spent(self) -> float:
        """Device-seconds charged until now."""
        now = self._clock()
        return self._before + self.share * sum(slot.held(now) for slot in self._slots.values())

    @property
    def reserved(self) -> float:
        """Device-seconds that running leases may still use, and the graces of open slots."""
        now = self._clock()
        return self.share * sum(slot.committed(now) - slot.held(now) for slot in self._slots.values())

    @property
    def left(self) -> float:
        """Device-seconds neither spent nor reserved."""
        return self.cap - self.spent - self.reserved

    @property
    def open_slots(self) -> list[int]:
        """The slots held now."""
        return [number for number, slot in self._slots.items() if slot.closed is None]

    @property
    def room(self) -> float:
        """What is left, in seconds of a slot."""
        return self.left / self.share

    def affordable(self, slot: int | None, slots: int = 1) -> float:
        """The longest lease that could be reserved now on `slot`, or on each of so many new ones (None)."""
        return self.room if slot is not None else self.room / slots - GRACE_SECONDS

    def open(self, slot: int) -> None:
        """Begin to charge a new slot; a lease on it must be reserved at once."""
        assert slot not in self._slots, f"slot {slot} was opened before"
        now = self._clock()
        self._slots[slot] = Slot(opened=now, until=now)

    def reserve(self, slot: int, seconds: float) -> None:
        """Let what runs on `slot` use `seconds` from now. Raises ValueError where the cap does not hold them."""
        assert seconds > 0, f"a lease of {seconds} s"
        if seconds > self.room:
            raise ValueError(
                f"lease: {seconds:.1f} s do not fit: only {max(self.room, 0):.1f} s are neither spent nor reserved"
            )
        self._slots[slot].until = self._clock() + seconds

    def release(self, slot: int) -> None:
        """The lease on `slot` is over; what it did not use is free again."""
        self._slots[slot].until = self._clock()

    def hand_back(self, slot: int, at: float | None = None) -> float:
        """End the charging of `slot` for good, as of `at` (None: now); returns the seconds it was held."""
        closed = self._clock() if at is None else at
        self._slots[slot].until = self._slots[slot].closed = closed
        return self._slots[slot].held(closed)
