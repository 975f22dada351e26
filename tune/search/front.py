"""What a loss is expected to gain: over the best one, or as a point of the front of size against loss.

Pure functions. A point is the log of a model's parameters and its loss in nats; of both low is good.
"""

import math
from collections.abc import Iterable, Sequence
from statistics import NormalDist

Forecast = tuple[float, float]
"""A loss in nats, and the standard deviation of its log."""
Point = tuple[float, float]
NORMAL = NormalDist()
REFERENCE_MARGIN = 0.1
"""Share of the range of the points on each axis by which their reference lies beyond the largest and the worst of them,
so that these add something too (Ishibuchi et al. 2018, doi:10.1162/evco_a_00226)."""


def expected_gain(best: Forecast, other: Forecast) -> float:
    """Return the nats by which the lower of two losses is expected to be below `best` (expected improvement, Jones et
    al. 1998)."""
    return expected_lead(best[0] - other[0], abs(best[0]) * math.hypot(best[1], other[1]))


def expected_lead(nats: float, spread: float) -> float:
    """Return the expectation of a normal number of this mean and standard deviation where below 0 counts as 0."""
    if not spread:
        return max(0.0, nats)
    lead = spread * NORMAL.pdf(nats / spread) + nats * NORMAL.cdf(nats / spread)
    return max(0.0, lead)  # far out, the two cancel only as far as they are exact


def reference(points: Sequence[Point]) -> Point:
    """Return the point that bounds the hypervolume: REFERENCE_MARGIN of the range of these beyond the largest and the
    worst."""
    sizes, losses = zip(*points, strict=True)
    size, loss = (max(each) + REFERENCE_MARGIN * (max(each) - min(each) or 1.0) for each in (sizes, losses))
    return size, loss


def front(points: Iterable[Point], bound: Point) -> list[Point]:
    """Return the points inside the bound of which none other is as small and as good, the smallest first."""
    found: list[Point] = []
    level = bound[1]
    for size, loss in sorted(points):
        if loss < level and size < bound[0]:
            found.append((size, loss))
            level = loss
    return found


def hypervolume(points: Iterable[Point], bound: Point) -> float:
    """Return the area that the points dominate inside a bound (Zitzler and Thiele 1998), in nats times the log of
    parameters."""
    best = front(points, bound)
    levels = [bound[1], *(loss for _, loss in best)]
    return sum((above - loss) * (bound[0] - size) for above, (size, loss) in zip(levels, best, strict=False))


def expected_hypervolume_gain(
    size: float, forecast: Forecast, best: Sequence[Point], bound: Point
) -> tuple[float, float]:
    """Return what a trial of this log size is expected to add to the hypervolume of a front (expected hypervolume
    improvement, Emmerich et al. 2006, for a known size); and, to tell apart those that add nothing, how many nats it is
    below the best of its size or smaller."""
    at, level, steps = size, bound[1], list[tuple[float, float]]()
    for larger, loss in best:
        if larger > size:
            steps.append((larger - at, level))
            at = larger
        level = loss
    steps.append((max(0.0, bound[0] - at), level))  # steps of the front from that size on: (width, loss)
    added = math.fsum(width * expected_gain((loss, 0.0), forecast) for width, loss in steps)
    return added, steps[0][1] - forecast[0]
