"""Where configurations come from: Optuna's sampler over the valid points of a space, and a prior on their sizes."""

import math
import random
import warnings
from collections.abc import Callable
from typing import Any

import optuna

from tune.space import CENTRE, Config, Space

ENOUGH_RESULTS = 6
"""The sampler learns from the highest rung that has at least this many."""
DRAWS = 64
"""Draws for one suggestion before the best of them is taken as it is."""
WORST_LOSS = 1e3

SUSTAINED_FLOPS = {"cpu": 6e10, "cuda": 1e14}
"""A rough speed of one slot, for the prior on sizes only."""
PRIOR_SECONDS = 1800.0
"""On one CPU core the default configuration suits about this many device-seconds a family."""
SIZE_SPREAD = math.log(3)
"""Standard deviation of the prior on log size."""
HEAD_WIDTH_SPREAD = math.log(2.5)
"""The same of log head width."""
SLOWER_PRECISION = 0.3
"""Promise of a precision that is not the fastest."""
PER_LAYER = {"nanogpt": 12, "translation": 28}
"""Weights of a layer over d_model squared."""


class Suggester:
    """Configurations of one family, none twice; the first is the default one.

    search: "tpe" or "random"; prior: how promising a config is before anything is known of it, in (0, 1].
    """

    def __init__(self, space: Space, *, seed: int, search: str, prior: Callable[[Config], float]) -> None:
        self._space, self._prior, self._search = space, prior, search
        self._random = random.Random(seed)
        self._seed = seed
        self._given: dict[str, Config] = {}
        self._keys: set[tuple[Any, ...]] = set()
        self._results: dict[int, dict[str, float]] = {}

    def suggest(self, trial: str) -> Config | None:
        """A config that was not tried yet, or None where there are no more."""
        if len(self._given) >= self._space.count:
            return None
        config = self._space.default() if not self._given else self._draw()
        self.tried(trial, config)
        return config

    def tried(self, trial: str, config: Config) -> None:
        """A config is taken, now or by an earlier run of the study."""
        self._given[trial] = config
        self._keys.add(_key(config))

    def tell(self, trial: str, rung: int, loss: float | None) -> None:
        """The loss of a trial at a rung; None: it failed there."""
        self._results.setdefault(rung, {})[trial] = WORST_LOSS if loss is None or not math.isfinite(loss) else loss

    def _draw(self) -> Config:
        """The first draw that is new and that the prior lets pass, else the most promising of them."""
        study = self._study()
        best: tuple[float, Config] | None = None
        for _ in range(DRAWS):
            config = self._ask(study)
            if not self._space.contains(config) or _key(config) in self._keys:
                continue
            promise = self._prior(config)
            if self._random.random() < promise:
                return config
            if best is None or promise > best[0]:
                best = (promise, config)
        return best[1] if best else next(config for config in self._space.configs() if _key(config) not in self._keys)

    def _ask(self, study: optuna.Study) -> Config:
        trial = study.ask(self._distributions())
        study.tell(trial, state=optuna.trial.TrialState.FAIL)
        return {**trial.params, **self._space.fix}

    def _distributions(self) -> dict[str, optuna.distributions.BaseDistribution]:
        free = {name: values for name, values in self._space.dimensions.items() if name not in self._space.fix}
        return {name: optuna.distributions.CategoricalDistribution(values) for name, values in free.items()}

    def _study(self) -> optuna.Study:
        """An optuna.Study that knows the results of the highest rung with enough of them."""
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        seed = self._seed + len(self._given)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = (
                optuna.samplers.TPESampler(seed=seed, n_startup_trials=ENOUGH_RESULTS, multivariate=True)
                if self._search == "tpe"
                else optuna.samplers.RandomSampler(seed=seed)
            )
        study = optuna.create_study(sampler=sampler)
        enough = [rung for rung, losses in self._results.items() if len(losses) >= ENOUGH_RESULTS]
        distributions = self._distributions()
        for trial, loss in self._results[max(enough)].items() if enough else ():
            params = {name: self._given[trial][name] for name in distributions}
            study.add_trial(optuna.trial.create_trial(params=params, distributions=distributions, value=loss))
        return study


def prior(family: str, *, seconds: float, kind: str, fastest: str) -> Callable[[Config], float]:
    """How promising a config is for a family's device-seconds, before anything is known of it: in (0, 1].

    Its size: compute-optimal size grows with the square root of the compute (Hoffmann et al. 2022, arXiv:2203.15556).
    Its head width, which matters little unless it is extreme. Its precision: where rungs are equal in device-seconds, a
    slow one has fewer steps.
    """
    compute = seconds * SUSTAINED_FLOPS[kind] / (PRIOR_SECONDS * SUSTAINED_FLOPS["cpu"])
    centre = _size(family, CENTRE) * math.sqrt(compute)

    def promise(config: Config) -> float:
        size = math.log(_size(family, config) / centre) / SIZE_SPREAD
        width = math.log(_head_width(config) / _head_width(CENTRE)) / HEAD_WIDTH_SPREAD
        return math.exp(-(size**2 + width**2) / 2) * (1.0 if config["precision"] == fastest else SLOWER_PRECISION)

    return promise


def _size(family: str, config: Config) -> float:
    return PER_LAYER[family] * float(config["d_model"]) ** 2 * float(config["layers"])


def _head_width(config: Config) -> float:
    return float(config["d_model"]) / float(config["heads"])


def _key(config: Config) -> tuple[Any, ...]:
    return tuple(sorted(config.items()))
