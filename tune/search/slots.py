"""What the engine counts with: slots held and slots there, how long a lease is, and what each family may still use of
the cap.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sized

from tune.search.family import Family
from tune.search.records import Running
from tune.search.successive_halving import Left
from tune.store.accounting import Books

MARGIN, SLACK_SECONDS = 2.0, 3.0
"""Of a lease over its price, where the cap allows: neither a noisy neighbour nor the first, slow steps of a new shape
may cut a stretch short. What it does not use is released."""
START_UP_MARGIN = 4.0
"""The same for the start-up of a slot, which a busy machine can stretch by much."""


def with_margin(price: float) -> float:
    """Seconds to reserve for a stretch of this price."""
    return price * MARGIN + SLACK_SECONDS


def with_start_up(seconds: float, start_up: float, even_share: float) -> float:
    """Seconds to reserve for a slot that must start first.

    The margin of the start-up may not take more than the slot's even share of what is left: the next slot could not
    start.
    """
    return max(seconds + start_up, min(seconds + START_UP_MARGIN * start_up, even_share))


class Slots:
    """most: how many trials may run at once; there: how many slots there are just now, where machines may be lost."""

    def __init__(self, most: int, there: Callable[[], int] | None, running: Sized, books: Books) -> None:
        self.most, self.there = most, there or (lambda: most)
        self._running, self._books = running, books
        self._handed_back = 0

    @property
    def kept(self) -> int:
        """Those that were not handed back for good."""
        return self.most - self._handed_back

    @property
    def free(self) -> int:
        """That can take work: those held and idle, and those not opened yet."""
        return max(0, self._in_use() - len(self._running))

    @property
    def idle_and_lost(self) -> bool:
        """Whether one is held idle whose machine is gone."""
        idle = self._books.idle_slots
        return idle > 0 and idle + len(self._running) > self._in_use()

    @property
    def all_gone(self) -> bool:
        """Every one was handed back, or is lost."""
        return not self._running and self._in_use() <= 0

    def hand_back(self) -> bool:
        """Give up a free slot for good: an idle one, else one that was never opened. Whether it was open."""
        self._handed_back += 1
        held = self._books.idle_slots > 0
        if held:
            self._books.hand_back()
        return held

    def _in_use(self) -> int:
        """Those that were not handed back for good, as far as they are there."""
        return min(self.kept, self.there())


class Shares:
    """Each family's part of the cap, what it was charged of it and what its leases may still use."""

    def __init__(self, families: Mapping[str, Family], running: Mapping[str, Running], books: Books) -> None:
        self._families, self._running, self._books = families, running, books

    def leases(self, name: str) -> list[Running]:
        """The leases that trials of a family run on."""
        return [run for run in self._running.values() if run.assignment.family == name]

    def used_share(self, name: str) -> float:
        """How much of its part a family was charged, or has reserved."""
        return self._used(name) / self._families[name].seconds

    def left(self, name: str, slots: int, wall: float | None, idle: Collection[str] = ()) -> Left:
        """What a family may still use: its own share, and what the `idle` ones of the others left over."""
        family, now = self._families[name], self._books.clock()
        leases = [run.assignment for run in self.leases(name)]
        left_over = sum(max(0.0, self._families[each].seconds - self._used(each)) for each in idle if each != name)
        own = family.seconds - self._used(name)
        start_up = 0.0 if self._books.idle_slots else family.prices.start_up
        return Left(
            seconds=min(own + left_over, self._books.affordable) - start_up,
            slots=slots,
            running=len(leases),
            wall=math.inf if wall is None else wall,
            reserved=sum(to.opened + to.seconds - now for to in leases if to.rung is not None),
        )

    def _used(self, name: str) -> float:
        """Device-seconds a family was charged, and those its leases may still use."""
        return self._families[name].charged + sum(run.assignment.seconds for run in self.leases(name))
