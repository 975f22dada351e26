"""The loss that a trial of any size is expected to have after any training: a scaling law of all trials, and how each
differs from it.

Pure: it follows from the observations, in their order.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

POWERS = np.geomspace(0.1, 1.6, 13)
"""Powers of size and of tokens that are tried."""
LIKELY_POWER, POWER_SPREAD = 0.4, math.log(2)
"""Likely value of either power, before anything is known; standard deviation of its log."""
NOISE = 0.02
"""Noise of a loss about the law, as a share of it; what is further off counts in proportion, not by its square."""
FAR = 2.0
"""The noise grows with this power of the loss over the lowest loss: early losses tell little of the ends."""
ROUNDS = 3
"""Rounds of weighing anew what is far off."""
TERMS = ((0, 1, 2), (0, 2), (1, 2), (2,), (0, 1), (0,))
"""Sets of the terms floor (0), size (1) and tokens (2) that may stand alone, where another would be negative."""
LIKELY_TERMS, TERM_SPREADS = np.array([0.7, 0.1, 0.2]), np.array([0.3, 0.1, 1.0])
"""Likely values of floor, size and tokens at the units, before anything is known, as shares of the lowest loss;
standard deviations. In equal seconds large models have seen few tokens: losses alone hardly tell which of the two they
lack."""
LEVELS, SLOPES, ERRORS = np.geomspace(0.003, 0.2, 7), np.geomspace(0.001, 0.2, 8), np.geomspace(0.001, 0.02, 5)
"""Standard deviations that are tried, in logs of the loss: of how far a trial as a whole is off the law; of how that
changes where its tokens grow by a factor of e; and of single losses about both."""
LIKELY_DEVIATIONS, DEVIATION_SPREAD = (0.02, 0.02, 0.004), math.log(3)
"""Likely values of the three, before anything is known; standard deviation of their logs."""

UNCORRECTED = 4
"""Number of falls that came true as predicted which are counted beside those that were seen."""
LIKELY_STRAY, AS_MANY, LEAST_FALL = 2.0, 0.35, 0.01
"""Likely standard deviation, before anything is known, of a fall of the log loss about the predicted one, as a share of
that; the number of seen falls that this counts as; the least size of these."""


@dataclass(frozen=True, kw_only=True)
class Observation:
    """A loss in nats of a model of so many weights after so many target tokens."""

    size: float
    tokens: float
    loss: float


@dataclass(frozen=True, kw_only=True)
class ScalingLaw:
    """loss = floor + of_size size^-size_power + of_tokens tokens^-token_power (Hoffmann et al. 2022, arXiv:2203.15556).

    Sizes and tokens are in multiples of size_unit and token_unit.
    """

    floor: float
    of_size: float
    size_power: float
    of_tokens: float
    token_power: float
    size_unit: float = 1.0
    token_unit: float = 1.0

    def loss(self, size: float, tokens: float) -> float:
        """Return the loss in nats."""
        of_size = self.of_size * math.pow(size / self.size_unit, -self.size_power)
        return self.floor + of_size + self.of_tokens * math.pow(tokens / self.token_unit, -self.token_power)

    @classmethod
    def fit(cls, observations: Sequence[Observation]) -> Self:
        """Fit the law to these by a robust loss, its powers near the likely ones where these tell little.

        Powers are searched on a grid; for each pair of them the rest is linear, and none of it below zero.
        """
        size, tokens, loss = (
            np.array([getattr(each, name) for each in observations]) for name in ("size", "tokens", "loss")
        )
        size_unit, token_unit = np.exp(np.log(size).mean()), np.exp(np.log(tokens).mean())
        a, b = (each.ravel() for each in np.meshgrid(POWERS, POWERS, indexing="ij"))
        terms = [np.ones((len(a), len(loss))), (size / size_unit) ** -a[:, None], (tokens / token_unit) ** -b[:, None]]
        columns = np.stack(terms, axis=-1) / loss[:, None]  # (pairs of powers, observations, terms)
        doubt = sum((np.log(power / LIKELY_POWER) / POWER_SPREAD) ** 2 for power in (a, b))
        likely, spread = LIKELY_TERMS * loss.min(), TERM_SPREADS * loss.min()
        near = (loss.min() / loss) ** FAR
        weights = np.tile(near**2, (len(a), 1))
        for _ in range(ROUNDS):
            found = _not_negative(columns, weights, likely, (NOISE / spread) ** 2)
            off = near * np.abs(np.einsum("pot,pt->po", columns, found) - 1) / NOISE
            weights = near**2 / np.maximum(1.0, off)
        lost = np.where(off < 1, off**2, 2 * off - 1).sum(-1) + doubt + (((found - likely) / spread) ** 2).sum(-1)
        best = int(np.argmin(lost))
        floor, of_size, of_tokens = (float(each) for each in found[best])
        return cls(
            floor=floor, of_size=of_size, size_power=float(a[best]), of_tokens=of_tokens, token_power=float(b[best]),
            size_unit=float(size_unit), token_unit=float(token_unit),
        )  # fmt: skip


def _not_negative(columns: Array, weights: Array, likely: Array, trust: Array) -> Array:
    """Return, for each of many matrices (observations, terms), the coefficients by which the terms come nearest to 1,
    none below zero: (.., terms).

    likely, trust: likely coefficients, and their weights.
    """
    best, lowest = np.zeros((len(columns), columns.shape[-1])), np.full(len(columns), np.inf)
    products = np.einsum("pot,po,pou->ptu", columns, weights, columns) + np.diag(trust)
    sides = np.einsum("pot,po->pt", columns, weights) + trust * likely
    for terms in map(list, TERMS):
        found = np.zeros_like(best)
        found[:, terms] = np.linalg.solve(products[:, terms][:, :, terms], sides[:, terms, None])[..., 0]
        # the sum of squares, less a constant that all have in common
        error = np.einsum("pt,ptu,pu->p", found, products, found) - 2 * (found * sides).sum(-1)
        better = (error < lowest) & (found >= 0).all(-1)
        best[better], lowest[better] = found[better], error[better]
    return best


def _sums(law: ScalingLaw, observations: Sequence[Observation]) -> tuple[float, ...]:
    """Return the sums of 1, x, x^2, off, x off and off^2 over the observations of one trial; off: log of the loss over
    the law's; x: log of tokens in units of the law."""
    xs = [math.log(each.tokens / law.token_unit) for each in observations]
    offs = [math.log(each.loss / law.loss(each.size, each.tokens)) for each in observations]
    x_offs = (x * off for x, off in zip(xs, offs, strict=True))
    return len(xs), sum(xs), sum(x * x for x in xs), sum(offs), sum(x_offs), sum(off * off for off in offs)


@dataclass(frozen=True, kw_only=True)
class Forecaster:
    """A law of all trials, from which each differs by a level and a slope of its own, normal about zero.

    Of a trial's level and slope the posterior means are taken, so that what is known of it counts as much as it tells.
    level, slope, error: standard deviations, as in LEVELS, SLOPES and ERRORS; came_true: how much of the falls of log
    losses that are so predicted came true in all trials, by which those to come are corrected; stray: as in
    LIKELY_STRAY.
    """

    law: ScalingLaw
    level: float
    slope: float
    error: float
    came_true: float = 1.0
    stray: float = LIKELY_STRAY

    @classmethod
    def fit(cls, trials: Sequence[Sequence[Observation]]) -> Self:
        """Fit it to the observations of each trial; the deviations are the likeliest."""
        law = ScalingLaw.fit([each for trial in trials for each in trial])
        n, x, xx, off, x_off, off_off = np.array([_sums(law, trial) for trial in trials]).T
        grid = [each.ravel()[:, None] for each in np.meshgrid(LEVELS, SLOPES, ERRORS, indexing="ij")]
        level, slope, error = grid
        a, d = n + (error / level) ** 2, xx + (error / slope) ** 2
        determinant = a * d - x**2
        explained = (d * off**2 - 2 * x * off * x_off + a * x_off**2) / determinant
        unlikely = (off_off - explained) / error**2 + 2 * (n - 2) * np.log(error) + np.log(determinant)
        lost = (unlikely + 2 * np.log(level * slope)).sum(1)
        for deviation, likely in zip(grid, LIKELY_DEVIATIONS, strict=True):
            lost += (np.log(deviation[:, 0] / likely) / DEVIATION_SPREAD) ** 2
        best = int(np.argmin(lost))
        found = cls(law=law, level=float(level[best, 0]), slope=float(slope[best, 0]), error=float(error[best, 0]))
        return found._corrected(trials)

    def _corrected(self, trials: Sequence[Sequence[Observation]]) -> Self:
        """Return it corrected by each fall that could be predicted from what was known before it."""
        falls = []
        for observed in trials:
            for count, (before, after) in enumerate(itertools.pairwise(observed), 1):
                known = observed[:count]
                now, then = (self._uncorrected(each.size, known, each.tokens)[0] for each in (before, after))
                falls.append((math.log(now / then), math.log(now / after.loss)))
        square = sum(predicted**2 for predicted, _ in falls)
        slope = sum(predicted * came for predicted, came in falls) / square if square else 1.0
        true = max(0.0, (UNCORRECTED + len(falls) * slope) / (UNCORRECTED + len(falls)))
        likely = AS_MANY * max(LEAST_FALL**2, true**2 * square / max(1, len(falls)))
        strayed = LIKELY_STRAY**2 * likely + sum((came - true * predicted) ** 2 for predicted, came in falls)
        return replace(self, came_true=true, stray=math.sqrt(strayed / (likely + true**2 * square)))

    def loss(self, size: float, observations: Sequence[Observation], tokens: float) -> tuple[float, float]:
        """Return what a trial with these observations is expected to have after so many tokens, in nats, and the
        standard deviation of its log."""
        loss, doubt = self._uncorrected(size, observations, tokens)
        if not observations:
            return loss, doubt
        now, _ = self._uncorrected(size, observations, observations[-1].tokens)
        return now * math.pow(loss / now, self.came_true), doubt

    def _uncorrected(self, size: float, observations: Sequence[Observation], tokens: float) -> tuple[float, float]:
        """Return the same, not corrected by `came_true`."""
        (n, x, xx, off, x_off, _), end = _sums(self.law, observations), math.log(tokens / self.law.token_unit)
        a, d = n + (self.error / self.level) ** 2, xx + (self.error / self.slope) ** 2
        determinant = a * d - x**2
        level = (d * off - x * x_off) / determinant
        slope = (a * x_off - x * off) / determinant
        doubt = self.error * math.sqrt(1 + (d - 2 * end * x + a * end**2) / determinant)
        return self.law.loss(size, tokens) * math.exp(level + slope * end), doubt

    def interval(self, size: float, observations: Sequence[Observation], tokens: float) -> tuple[float, float]:
        """Return the same of a trial that was seen, with the whole doubt: also how far a fall strays from the predicted
        one, the further the larger that is.

        Comparisons leave this out: all trials have it, and those with the most training to come would wait for it.
        """
        loss, doubt = self.loss(size, observations, tokens)
        now, _ = self._uncorrected(size, observations, observations[-1].tokens)
        return loss, math.hypot(doubt, self.stray * math.log(now / loss))
