"""Recorded learning curves, and the tables that a search may choose from."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One configuration trained to its end: losses in nats, one a report (NaN: not finite), and what a report cost."""

    config: dict[str, Any]
    parameters: int
    seconds_per_report: float
    losses: tuple[float, ...]
    steps_per_report: float = 1.0
    memory_bytes: float | None = None

    @property
    def seconds(self) -> float:
        """Device-seconds to its end."""
        return self.seconds_per_report * len(self.losses)

    @cached_property
    def sound(self) -> int:
        """Reports before the first loss that is not finite."""
        return next((count for count, loss in enumerate(self.losses) if not math.isfinite(loss)), len(self.losses))

    @cached_property
    def best(self) -> tuple[float, ...]:
        """The lowest loss up to each report (inf before the first finite one)."""
        low, best = math.inf, []
        for loss in self.losses:
            low = min(low, loss) if math.isfinite(loss) else low
            best.append(low)
        return tuple(best)


@dataclass(frozen=True, kw_only=True)
class Table:
    """Configurations that a search may choose from; cut_short: how many of the curves could have gone on."""

    name: str
    curves: tuple[Curve, ...]
    cut_short: int = 0

    @property
    def exhaustive(self) -> float:
        """Device-seconds of all configurations to their ends."""
        return sum(curve.seconds for curve in self.curves)

    @property
    def best_loss(self) -> float:
        """The lowest loss of any report."""
        return min(curve.best[-1] for curve in self.curves)
