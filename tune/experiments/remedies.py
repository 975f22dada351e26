"""What else than a larger cap would pay for an experiment: less training, or a dimension that is fixed."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, islice

from tune.dimensions import Dimensions, Value, fix_text
from tune.errors import UserError
from tune.experiments.settings import ExperimentSettings

SCALES = tuple(float(f"{digit}e-{power}") for power in range(1, 5) for digit in (5, 2, 1))
"""Shares of a training that are proposed to whom the whole is too dear."""


def remedies(settings: ExperimentSettings, free: Dimensions, least: Callable[[ExperimentSettings], float]) -> list[str]:
    """As flags: the largest share of the training, and one of the free dimensions fixed; if neither will do, both.

    least: device-seconds that all points must have under some settings. UserError: there is none.
    """
    dear = _TooDear(settings, free, least)
    shorter = [scale for scale in SCALES if scale < settings.scale]
    alone = [*islice(dear.scaled(shorter), 1), *dear.narrowed(settings.scale, "--fix")]
    both = chain.from_iterable(dear.narrowed(scale, f"--scale {scale:g} --fix") for scale in shorter)
    return alone or list(islice(both, 1))


@dataclass(frozen=True)
class _TooDear:
    settings: ExperimentSettings
    free: Dimensions
    least: Callable[[ExperimentSettings], float]

    def scaled(self, scales: list[float]) -> Iterator[str]:
        """Those of the shares that the cap pays for."""
        fix = self.settings.fix
        return (f"--scale {scale:g}" for scale in scales if self._cost(scale, fix) <= self.settings.budget)

    def narrowed(self, scale: float, flags: str) -> Iterator[str]:
        """One dimension more fixed: of those values that the cap pays for the one that leaves the most to do."""
        fixes = [{**self.settings.fix, name: value} for name, values in self.free.items() for value in values]
        costs = {fix_text(fix): self._cost(scale, fix) for fix in fixes}
        paid = {text: cost for text, cost in costs.items() if cost <= self.settings.budget}
        if paid:
            yield f"{flags} {max(paid, key=paid.__getitem__)}"

    def _cost(self, scale: float, fix: Mapping[str, Value]) -> float:
        """Infinite where no point is left."""
        try:
            return self.least(replace(self.settings, scale=scale, fix=fix))
        except UserError:
            return math.inf
