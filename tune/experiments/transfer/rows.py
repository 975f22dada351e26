"""A shape's losses over rates, as a row of the transfer experiment has them, and what they are against the base's."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Self

from model.experiments.intervals import Interval, interval
from model.experiments.valley import Valley
from tune.experiments.experiment import Row
from tune.experiments.transfer.work import BASE

AXES = {"d_model": "layers", "layers": "d_model"}
"""What varies, and what is the base's meanwhile."""


@dataclass(frozen=True, kw_only=True)
class Descent:
    """Rates are steps of so many octaves from the recipe's learning_rate; mean: of the losses of all seeds.

    ruled: with the scaling rules, or one rate for all tensors; at the base it is the same.
    """

    shape: dict[str, int]
    ruled: bool
    octaves: float
    learning_rate: float
    seeds: Sequence[Valley]
    mean: Valley

    @classmethod
    def of(cls, row: Row) -> Self:
        """That of a row."""
        losses = {rate: [math.nan if loss is None else loss for loss in each] for rate, each in row["losses"]}
        return cls(
            shape={name: row["config"][name] for name in AXES}, ruled=row["config"]["scaling_rules"],
            octaves=row["asked"]["octaves"], learning_rate=row["learning_rate"],
            seeds=[Valley({rate: losses[rate][seed] for rate in losses}) for seed in range(row["asked"]["seeds"])],
            mean=Valley({rate: statistics.fmean(each) for rate, each in losses.items()}),
        )  # fmt: skip

    def rate(self, step: float) -> float:
        """The base rate at this step."""
        return float(self.learning_rate * 2 ** (step * self.octaves))

    def drift(self, base: "Descent") -> Interval:
        """Octaves from the base's best rate to this shape's, the median of the seeds."""
        pairs = zip(self.seeds, base.seeds, strict=True)
        return interval(itemgetter("drift"), {"drift": [self.octaves * (x.optimum - y.optimum) for x, y in pairs]})

    def regret(self, base: "Descent") -> Interval | None:
        """Nats that the base's best rate loses against this shape's, the median of the seeds.

        None: this shape was not trained with that rate; infinite: it diverged there.
        """
        at, best = base.mean.best, self.mean.best
        if at not in self.mean.losses:
            return None
        if math.isinf(self.mean.regret(at)):
            return math.inf, math.inf, math.inf
        lost = [each.losses[at] - each.losses[best] for each in self.seeds]
        return interval(itemgetter("lost"), {"lost": lost})


def base_of(rows: Sequence[Row]) -> Descent | None:
    """The base's, where it is there."""
    found = [each for each in map(Descent.of, measured(rows)) if each.shape == BASE]
    return found[0] if found else None


def along(rows: Sequence[Row], axis: str, *, ruled: bool) -> list[Descent]:
    """Of the shapes that differ from the base on one axis, and of the base, in their order there."""
    other = AXES[axis]
    found = [
        each for each in map(Descent.of, measured(rows))
        if each.shape == BASE or (each.ruled == ruled and each.shape[other] == BASE[other])
    ]  # fmt: skip
    return sorted(found, key=lambda each: each.shape[axis])


def measured(rows: Sequence[Row]) -> list[Row]:
    """Those with losses."""
    return [row for row in rows if "losses" in row]
