"""The outlook: what untried configurations are expected to have at their ends, as far as their size and speed tell."""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from tune.search.forecast import LEAST_PROMISE, LOSS_PER_LOG_PROMISE, MOST_TRIALS, NEW_SHARE, Favour, Progress
from tune.search.front import Forecast
from tune.search_space import Config

Array = npt.NDArray[np.float64]

POWER = -0.7
"""Power of the size by which a model's tokens a second are expected to go before anything is known: small models waste
more of a device."""
POWER_SPREAD = 0.2
"""Standard deviation of that power, and of the power of each other dimension, which is expected to be 0."""
NOISE = 0.1
"""Standard deviation of the log of a measured speed."""
EARLIER_SPREAD = 0.3
"""Standard deviation of the log of how much faster everything was in earlier studies: with another recipe, beside other
work on the machine."""
VAGUE = 1e-6
"""Weight of the prior on the mean speed: next to none, as nothing is known of it before."""


@dataclass(frozen=True, kw_only=True)
class Speeds:
    """Tokens a second, fitted as a product of powers of the size and of each dimension that is a whole number.

    centre: means of their logs; coefficients: the log of the mean speed, and the powers.
    """

    dimensions: tuple[str, ...]
    centre: Array
    coefficients: Array

    @classmethod
    def fit(cls, seen: Sequence[tuple[Config, Progress]], earlier: Sequence[tuple[Config, Progress]] = ()) -> Self:
        """Fit it to trials that trained, the powers near the likely ones where these tell little. What `earlier`
        studies tell of the mean speed is corrected by the first trials."""
        every = [*seen, *earlier]
        first, _ = every[0]
        dimensions = tuple(name for name, value in first.items() if isinstance(value, int))
        rows = np.array([_logs(config, at.size, dimensions) for config, at in every])
        centre, likely = rows.mean(axis=0), np.array([0.0, POWER, *([0.0] * len(dimensions)), 0.0])
        before = np.repeat([[0.0], [1.0]], [len(seen), len(earlier)], axis=0)
        columns = np.hstack([np.ones((len(rows), 1)), rows - centre, before])
        speeds = np.array([math.log(at.tokens / at.seconds) for _, at in every])
        trust = [VAGUE, *([(NOISE / POWER_SPREAD) ** 2] * (1 + len(dimensions))), (NOISE / EARLIER_SPREAD) ** 2]
        found = likely + np.linalg.solve(columns.T @ columns + np.diag(trust), columns.T @ (speeds - columns @ likely))
        return cls(dimensions=dimensions, centre=centre, coefficients=found[:-1])

    def tokens_per_second(self, config: Config, size: float) -> float:
        """Return the tokens a second of a model with so many weights."""
        off = np.array(_logs(config, size, self.dimensions)) - self.centre
        return math.exp(self.coefficients[0] + float(off @ self.coefficients[1:]))


def _logs(config: Config, size: float, dimensions: Sequence[str]) -> list[float]:
    return [math.log(size), *(math.log(max(1.0, float(config[name]))) for name in dimensions)]


class Outlook:
    """What untried configurations of one family are expected to have at their ends.

    size(config): weights of its model (0: not known); forecast(size, speed): of a new trial that trains on so many
    tokens a second, None: too little is known of the others; earlier: how far configurations came in earlier studies;
    additions(sizes, forecasts): what each is expected to add to the front, None: there is none, or losses are compared.
    """

    def __init__(
        self, size: Callable[[Config], float] = lambda config: 0.0,
        forecast: Callable[[float, float], Forecast | None] = lambda size, speed: None,
        earlier: Sequence[tuple[Config, Progress]] = (),
        additions: Callable[[Sequence[float], Sequence[Forecast]], list[float] | None] = lambda sizes, forecasts: None,
    ) -> None:  # fmt: skip
        self._forecast, self._earlier, self._additions = forecast, earlier, additions
        self._size_at = functools.cache(lambda key: size(dict(key)))
        self._seen: dict[str, tuple[Config, Progress]] = {}
        self._observed, self._fitted_to = 0, 0
        self._speeds = Speeds.fit([], earlier) if earlier else None

    def _size(self, config: Config) -> float:
        """Return the size from a cache: it is asked for thousands of draws from a space that is smaller."""
        return self._size_at(tuple(config.items()))

    def tell(self, trial: str, config: Config, progress: Progress) -> None:
        """Learn how far a trial came in what time. Speeds are fitted again, as a law is, at NEW_SHARE more
        observations."""
        if min(progress.size, progress.tokens, progress.seconds) > 0:
            self._seen[trial], self._observed = (config, progress), self._observed + 1
            if self._observed > (1 + NEW_SHARE) * self._fitted_to:
                self._speeds = Speeds.fit(list(self._seen.values())[-MOST_TRIALS:], self._earlier)
                self._fitted_to = self._observed

    def forecasts(self, configs: Sequence[Config]) -> list[Forecast] | None:
        """Return the forecast of each of these; None: too little is known."""
        sizes, found = list(map(self._size, configs)), list[Forecast]()
        if self._speeds is None or min(sizes, default=0.0) <= 0:
            return None
        for config, size in zip(configs, sizes, strict=True):
            forecast = self._forecast(size, self._speeds.tokens_per_second(config, size))
            if forecast is None:
                return None
            found.append(forecast)
        return found

    def promises(self, configs: Sequence[Config]) -> list[float] | None:
        """Return the logs of how promising each of these is: how near it comes to the lowest loss, or how much it adds
        to the front; None: too little is known."""
        forecasts = self.forecasts(configs)
        if forecasts is None:
            return None
        added = self._additions(list(map(self._size, configs)), forecasts)
        if added and (most := max(added)) > 0:
            return [math.log(max(each / most, LEAST_PROMISE)) for each in added]
        lowest, _ = min(forecasts)
        return [-math.log(loss / lowest) / LOSS_PER_LOG_PROMISE for loss, _ in forecasts]


def most_promising(configs: Sequence[Config], prior: Callable[[Config], Favour], outlook: Outlook) -> int:
    """Return the index of the configuration that prior and outlook together favour most, the first of equal ones."""
    logs = [math.log(max(prior(config).promise, LEAST_PROMISE)) for config in configs]
    promises = outlook.promises(configs)
    if promises is not None:
        logs = [log + promise for log, promise in zip(logs, promises, strict=True)]
    return max(range(len(configs)), key=logs.__getitem__)
