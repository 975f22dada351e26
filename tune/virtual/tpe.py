"""Optuna's TPE over the configurations of a table."""

import math
from collections.abc import Sequence

import optuna

from tune.virtual.curves import Curve

ENOUGH_RESULTS = 6
"""TPE learns from the highest level of training at which at least this many trials were measured."""


class Tpe:
    """Says which of the configurations that are left is nearest to what TPE asks for."""

    def __init__(self, curves: Sequence[Curve], *, seed: int) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._curves, self._seed = curves, seed
        self._levels: dict[int, dict[int, float]] = {}
        self._distributions: dict[str, optuna.distributions.BaseDistribution] = {
            name: optuna.distributions.CategoricalDistribution(sorted({curve.config[name] for curve in curves}))
            for name in curves[0].config
        }

    def tell(self, index: int, steps: float, loss: float) -> None:
        """A loss that a curve had after so many steps; one that is not finite teaches nothing."""
        if math.isfinite(loss):
            self._levels.setdefault(math.floor(math.log2(steps)), {})[index] = loss

    def choose(self, left: Sequence[int]) -> int:
        """One of the curves that are left, the first where too little was measured."""
        enough = [level for level, losses in self._levels.items() if len(losses) >= ENOUGH_RESULTS]
        if not enough:
            return left[0]
        seed = self._seed * 1000 + len(left)
        study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=ENOUGH_RESULTS))
        study.add_trials([self._trial(index, loss) for index, loss in self._levels[max(enough)].items()])
        wanted = study.ask(self._distributions).params

        def distance(index: int) -> int:
            config = self._curves[index].config
            return sum(config[name] != value for name, value in wanted.items())

        return min(left, key=distance)

    def _trial(self, index: int, loss: float) -> optuna.trial.FrozenTrial:
        params = dict(self._curves[index].config)
        return optuna.trial.create_trial(params=params, distributions=self._distributions, value=loss)
