"""The slots of a search: how many can take work, and those that were handed back or whose machine is gone."""

from collections.abc import Callable, Sized

from tune.books import Books


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
