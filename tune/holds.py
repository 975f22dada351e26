"""Several slots held together for one trial that runs on all of them: n devices for t seconds are charged n x t."""

import time
from typing import Any, Self

from tune.books import Books
from tune.errors import UserError
from tune.heartbeats import boot
from tune.ledger import GRACE_SECONDS

OPENING_SECONDS = 0.1
"""What the account may move between the question what can be afforded and the last reservation."""


class Hold:
    """New slots on leases of equal length, from now until the `with` ends; each is charged what the others are.

    trial: whose the next charges are; None: no trial's.
    """

    def __init__(self, books: Books, trial: str, purpose: str, *, devices: int, seconds: float) -> None:
        """Reserve `seconds` on each. UserError: the cap does not hold them."""
        most = affordable(books, devices)
        if seconds > most:
            raise UserError(f"lease: {devices} x {seconds:.1f} s do not fit: only {devices} x {max(most, 0):.1f} s do")
        self._books = books
        self.trial: str | None = trial
        self._leases: dict[int, int] = {}
        self._opened = self._charged = books.clock()
        reserved = seconds * books.ledger.share
        with books.journal.transaction():
            for _ in range(devices):
                slot = books.open_slot()
                books.ledger.reserve(slot, seconds)
                books.journal.update("slots", slot, {"opened": self._opened})
                row = {"trial": trial, "slot": slot, "purpose": purpose, "price": reserved, "reserved": reserved}
                self._leases[slot] = books.journal.insert("leases", row | {"opened": self._opened})
        self._ends = self._opened + seconds

    @property
    def left(self) -> float:
        """Seconds until the leases end."""
        return self._ends - self._books.clock()

    @property
    def moment(self) -> dict[str, Any]:
        """When the leases end, by the study's clock and by the monotonic one of this machine since its start."""
        return {"opened": self._ends, "boot": boot(), "monotonic": time.monotonic() + self.left}

    def charge(self, what: str) -> None:
        """The seconds since the last charge went to this, on each slot; none after the grace, in which all that works
        on them has ended itself, however late the driver comes."""
        now = min(self._books.clock(), self._ends + GRACE_SECONDS)
        seconds = (now - self._charged) * self._books.ledger.share
        for slot, lease in self._leases.items():
            row = {"at": now, "slot": slot, "trial": self.trial, "lease": lease, "what": what}
            self._books.journal.insert("charges", row | {"seconds": seconds})
        self._charged = now

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """What was not charged yet is lost where an error ends it, else idle; the slots are handed back."""
        with self._books.journal.transaction():
            self.charge("idle" if kind is None else "lost")
            charged = (self._charged - self._opened) * self._books.ledger.share
            for slot, lease in self._leases.items():
                self._books.ledger.hand_back(slot, self._charged)
                self._books.journal.update("leases", lease, {"closed": self._charged, "charged": charged})
                self._books.journal.update("slots", slot, {"closed": self._charged})


def affordable(books: Books, devices: int) -> float:
    """The longest lease that could be reserved on each of so many new slots at once."""
    return books.ledger.affordable(None, devices) - OPENING_SECONDS
