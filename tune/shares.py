"""Shares: what each family may still use of the cap."""

from collections.abc import Collection, Mapping

from tune.books import Books
from tune.family import Family
from tune.records import Running
from tune.rungs import Left


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
        family = self._families[name]
        left_over = sum(max(0.0, self._families[each].seconds - self._used(each)) for each in idle if each != name)
        own = family.seconds - self._used(name)
        start_up = 0.0 if self._books.idle_slots and not family.fixed else family.prices.start_up
        return Left(
            seconds=min(own + left_over, self._books.affordable) - start_up,
            slots=slots,
            running=len(self.leases(name)),
            wall=wall,
        )

    def _used(self, name: str) -> float:
        """Device-seconds a family was charged, and those its leases may still use; as planned at fixed prices."""
        family = self._families[name]
        if family.fixed:
            return family.planned
        return family.charged + sum(run.assignment.seconds for run in self.leases(name))
