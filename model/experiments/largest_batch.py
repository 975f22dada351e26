"""The largest batch that memory holds: foretold from what smaller ones took, and found by trying."""

from collections.abc import Callable, Mapping

import numpy as np

TIMES = 4
"""From one batch to the next, while they fit."""
RESOLUTION = 0.01
"""The share of a batch to within which the largest one is found."""


def next_rows(fits: int, fails: int | None, most: int, first: int) -> int | None:
    """What to try after the largest batch that fits (0: none) and the smallest that does not; None: it is found.

    most: rows that there are.
    """
    if fits >= most:
        return None
    if fails is None:
        return min(most, TIMES * fits or first)
    return None if fails - fits <= max(1, RESOLUTION * fits) else (fits + fails) // 2


def largest(bytes_of: Callable[[int], float], limit: float, most: int) -> int:
    """Of the batches up to `most` rows the largest that takes at most `limit` bytes; 0: none does."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if bytes_of(middle) <= limit else (low, middle - 1)
    return low


def fitted(measured: Mapping[int, float], paper: Callable[[int], float]) -> Callable[[int], float]:
    """Bytes of a batch of so many rows: a line through what batches took, over what they take on paper."""
    x = np.array([paper(rows) for rows in measured], dtype=float)    # of integers a product of bytes would overflow
    y = np.array(list(measured.values()), dtype=float)
    if len(measured) < 2:
        return lambda rows: float(y[0] * paper(rows) / x[0])
    slope, intercept = np.polyfit(x, y, 1)
    return lambda rows: float(intercept + slope * paper(rows))
