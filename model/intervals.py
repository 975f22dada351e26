"""Figures of several series that were measured in the same rounds, with their 95 % intervals."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

RESAMPLES = 1000

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
