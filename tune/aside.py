"""What of the cap is kept aside from the start: money to measure what more devices would gain for the winner."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tune.experiments.bench import unmeasured
from tune.experiments.experiment import Point
from tune.experiments.grounds import affordable_share, price
from tune.experiments.scaling.experiment import SCALING, points_of
from tune.experiments.trials import FoundTrial
from tune.journal import Journal
from tune.winners import Winner, winners

SHARE = 0.1
"""Of a cap: but no less than the points must have, and no more than they are worth."""


@dataclass(frozen=True, kw_only=True)
class Aside:
    """For the points of the scaling experiment on these numbers of devices; nothing for none. All in device-seconds."""

    counts: Sequence[int]

    def of(self, cap: float) -> float:
        """What is kept of a cap."""
        return self._bounded(SHARE * cap)

    def rest(self, cap: float) -> float:
        """What the search has of a new study's cap."""
        return cap - self.of(cap)

    def least_cap(self, search: float) -> float:
        """The least cap that leaves so much to the search."""
        return search + self._bounded(SHARE / (1 - SHARE) * search)

    def points(self, cap: float) -> list[Point]:
        """Each with the seconds that it is given of a cap."""
        share = affordable_share(self._points, self.of(cap))
        return [replace(point, seconds=point.given(share)) for point in self._points]

    def to_come(self, cap: float, journal: Journal, shares: Mapping[str, float]) -> list[Point]:
        """Those points of which the best trial so far has no row."""
        points, best = self.points(cap), best_of_all(journal, shares) if self.counts else None
        return unmeasured(points, journal, SCALING.name, FoundTrial(best.trial)) if best else points

    @property
    def _points(self) -> list[Point]:
        return [point for count in self.counts for point in points_of(count)]

    def _bounded(self, seconds: float) -> float:
        return min(max(price(self._points, 0.0), seconds), price(self._points))


def best_of_all(journal: Journal, shares: Mapping[str, float]) -> Winner | None:
    """The winner of the family with the largest share of the cap, of those that have one; the first of equal ones."""
    found = winners(journal)
    return max((found[name] for name in shares if name in found), key=lambda each: shares[each.family], default=None)
