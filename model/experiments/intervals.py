"""Figures of several series that were measured in the same rounds, with their 95 % intervals."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

RESAMPLES = 1000
STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
"""The 97.5 % quantile of Student's t with 1, 2, 3 ... degrees of freedom; with more of them nearly the last."""

Interval = tuple[float, float, float]
"""The figure, and between which two it lies."""


def interval(figure: Callable[[Mapping[str, Any]], Any], rounds: Mapping[str, Sequence[float]]) -> Interval:
    """A figure of the medians; its interval by the bootstrap over the rounds, which keeps what was measured together.

    figure: from the median of each series, a number or an array of them.
    """
    series = {name: np.asarray(values) for name, values in rounds.items()}
    count = len(next(iter(series.values())))
    drawn = np.random.default_rng(0).integers(count, size=(RESAMPLES, count))
    low, high = np.percentile(figure({name: np.median(x[drawn], axis=1) for name, x in series.items()}), (2.5, 97.5))
    return float(figure({name: np.median(x) for name, x in series.items()})), float(low), float(high)


def ratio(above: Sequence[float], below: Sequence[float]) -> Interval:
    """The median of one series over that of another, which were measured apart."""
    generator = np.random.default_rng(0)
    medians = []
    for values in (np.asarray(above), np.asarray(below)):
        drawn = generator.integers(len(values), size=(RESAMPLES, len(values)))
        medians.append(np.median(values[drawn], axis=1))
    low, high = np.percentile(medians[0] / medians[1], (2.5, 97.5))
    return float(np.median(above) / np.median(below)), float(low), float(high)


def mean_interval(values: Sequence[float]) -> Interval | None:
    """The mean of a few values, such as one a seed, with Student's interval; None of fewer than two."""
    if len(values) < 2:
        return None
    mean, quantile = float(np.mean(values)), STUDENT[min(len(values) - 2, len(STUDENT) - 1)]
    half = quantile * float(np.std(values, ddof=1)) / len(values) ** 0.5
    return mean, mean - half, mean + half
