"""What a step of several ranks will take: compute that grows with the rows, communication by latency and bandwidth.

A ring of n ranks passes 2 (n - 1) messages one after the other, of 1/n of the bytes each (Patarasuk and Yuan 2009,
"Bandwidth optimal all-reduce algorithms for clusters of workstations").
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np


@dataclass(frozen=True, kw_only=True)
class StepModel:
    """Seconds: `fixed` a step and `row` for each row; `latency` a message, and bytes a second of one link.

    exposed: the share of its communication that a step waits for.
    """

    fixed: float
    row: float
    latency: float
    bandwidth: float
    exposed: float

    @classmethod
    def fitted(
        cls, *, compute: Mapping[int, float], alone: Mapping[int, float], exposed: Mapping[int, float], size: int,
        ranks: int,
    ) -> Self:
        """From seconds as measured on these ranks.

        compute: of a step without communication, by its rows; alone: of the communication of so many bytes and nothing
        else; exposed: what a step waits for communication, by its rows, with gradients of `size` bytes.
        """
        fixed, row = _line(compute)
        rest, byte = _line(alone)
        messages, passed = ring(ranks)
        made = cls(fixed=fixed, row=row, latency=rest / messages, bandwidth=passed / byte, exposed=1.0)
        share = float(np.median(list(exposed.values()))) / made.communication(size, ranks)
        return cls(fixed=fixed, row=row, latency=made.latency, bandwidth=made.bandwidth, exposed=share)

    def communication(self, size: int, ranks: int) -> float:
        """Seconds in which so many ranks add up so many bytes."""
        messages, passed = ring(ranks)
        return messages * self.latency + passed * size / self.bandwidth

    def step(self, rows: int, size: int, ranks: int) -> float:
        """Seconds of a step with so many rows on each rank."""
        return self.fixed + self.row * rows + self.exposed * self.communication(size, ranks)


def ring(ranks: int) -> tuple[int, float]:
    """Messages one after the other, and the share of the bytes that pass each link: nccl-tests' bus factor."""
    return 2 * (ranks - 1), 2 * (ranks - 1) / ranks


def _line(values: Mapping[int, float]) -> tuple[float, float]:
    """Intercept and slope, neither below zero, by least squares of the relative errors."""
    x, y = np.array(list(values), dtype=float), np.array(list(values.values()))
    columns = np.stack([np.ones_like(x), x], axis=1) / y[:, None]
    intercept, slope = np.linalg.lstsq(columns, np.ones_like(y), rcond=None)[0]
    if intercept < 0:
        return 0.0, float((x / y).sum() / ((x / y) ** 2).sum())
    return float(intercept), float(slope)
