"""Losses over learning rates, which lie in equal steps of their logarithm: down to the lowest, and a step beyond."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Valley:
    """Losses by rate, in steps from some rate; one that is no number is the worst."""

    losses: Mapping[int, float]

    @property
    def best(self) -> int:
        """The rate with the lowest loss."""
        return min(self.losses, key=self._loss)

    @property
    def bracketed(self) -> bool:
        """Whether both neighbours of the best rate are known."""
        return {self.best - 1, self.best + 1} <= set(self.losses)

    @property
    def optimum(self) -> float:
        """Where between the rates the parabola through the best and its neighbours is lowest.

        The best itself where a neighbour is not known, or diverged.
        """
        below, at, above = (self.losses.get(self.best + step, math.nan) for step in (-1, 0, 1))
        curvature = below - 2 * at + above
        if not math.isfinite(curvature) or curvature <= 0:
            return float(self.best)
        return self.best + (below - above) / (2 * curvature)

    def regret(self, rate: int) -> float:
        """What another rate, which is known, loses against the best; at least so much where that is not bracketed."""
        return self._loss(rate) - self._loss(self.best)

    def _loss(self, rate: int) -> float:
        return math.inf if math.isnan(self.losses[rate]) else self.losses[rate]


def next_rate(losses: Mapping[int, float], begin: Iterable[int], farthest: int) -> int | None:
    """The rate whose loss is to be known next; None: both neighbours of the best one are, or lie too far off.

    begin: rates that are known first; farthest: no rate is farther from 0.
    """
    for rate in begin:
        if rate not in losses:
            return rate
    best = Valley(losses).best
    return next((rate for rate in (best - 1, best + 1) if rate not in losses and abs(rate) <= farthest), None)
