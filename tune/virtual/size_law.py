"""A law fitted over a study's own trials, L(N, D) = a(D) + b log N, and the size that it favours."""

import math
from collections.abc import Sequence
from statistics import covariance

from tune.virtual.curves import Curve

ENOUGH_RESULTS = 6
"""Nothing is favoured before that many trials were measured."""


class SizeLaw:
    """Says which of the configurations that are left is of the size that the trials so far speak for.

    Only the sign of b is used: it is fitted to the last loss of each trial, a(D) being whatever suits each level of D.
    """

    def __init__(self, curves: Sequence[Curve]) -> None:
        self._sizes = [math.log(curve.parameters + 1) for curve in curves]
        self._last: dict[int, tuple[int, float]] = {}

    def tell(self, index: int, steps: float, loss: float) -> None:
        """A loss that a curve had after so many steps; one that is not finite teaches nothing."""
        if math.isfinite(loss):
            self._last[index] = math.floor(math.log2(steps)), loss

    def choose(self, left: Sequence[int]) -> int:
        """One of the largest curves that are left or of the smallest, the first where too little was measured."""
        slope = self._slope() if len(self._last) >= ENOUGH_RESULTS else 0.0
        return min(left, key=lambda index: slope * self._sizes[index])

    def _slope(self) -> float:
        """b, times a positive number."""
        levels: dict[int, list[tuple[float, float]]] = {}
        for index, (level, loss) in self._last.items():
            levels.setdefault(level, []).append((self._sizes[index], loss))
        return sum(
            (len(points) - 1) * covariance(*zip(*points, strict=True)) for points in levels.values() if len(points) > 1
        )
