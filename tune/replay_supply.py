"""Which configuration a new trial of a replay gets: in an order, or suggested by Optuna's TPE."""

import math
import random
from collections.abc import Sequence

import optuna

from tune.ordering import cheap_and_random, shuffled
from tune.replay_tables import Curve

ENOUGH_RESULTS = 6
"""TPE learns from the highest level of training at which at least this many trials were measured."""


class Supply:
    """Hands out each curve of a table once: in a seeded order, the cheapest and a random one in turn, or by TPE."""

    def __init__(self, curves: Sequence[Curve], *, suggest: str, seed: int) -> None:
        self._curves, self._suggest, self._seed = curves, suggest, seed
        self._levels: dict[int, dict[int, float]] = {}
        self._round = -1
        self.begin_again()

    def begin_again(self) -> None:
        """Every curve may be handed out once more."""
        self._round += 1
        rng = random.Random(f"{self._seed} {self._round}")
        indices = range(len(self._curves))
        by_price = self._suggest == "cheap"
        order = (
            cheap_and_random(indices, lambda index: self._curves[index].parameters, rng)
            if by_price
            else shuffled(indices, rng)
        )
        self._left = list(order)[::-1]
        self._drawn: int | None = None

    def peek(self) -> int | None:
        """The curve that is handed out next."""
        if self._drawn is None and self._left:
            self._drawn = self._by_tpe() if self._suggest == "tpe" else self._left[-1]
        return self._drawn

    def take(self) -> int | None:
        """The next curve, None where all are handed out."""
        index = self.peek()
        if index is not None:
            self._left.remove(index) if self._left[-1] != index else self._left.pop()
            self._drawn = None
        return index

    def tell(self, index: int, steps: float, loss: float) -> None:
        """A loss that a curve had after so many steps."""
        if self._suggest == "tpe" and math.isfinite(loss):
            self._levels.setdefault(math.floor(math.log2(steps)), {})[index] = loss

    def _by_tpe(self) -> int:
        """The curve left that differs least from what TPE asks for."""
        enough = [level for level, losses in self._levels.items() if len(losses) >= ENOUGH_RESULTS]
        if not enough:
            return self._left[-1]
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        names = self._curves[0].config.keys()
        distributions: dict[str, optuna.distributions.BaseDistribution] = {
            name: optuna.distributions.CategoricalDistribution(sorted({curve.config[name] for curve in self._curves}))
            for name in names
        }
        seed = self._seed * 1000 + len(self._left)
        study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=ENOUGH_RESULTS))
        study.add_trials(
            [
                optuna.trial.create_trial(
                    params=dict(self._curves[index].config), distributions=distributions, value=loss
                )
                for index, loss in self._levels[max(enough)].items()
            ]
        )
        wanted = study.ask(distributions).params
        return min(
            self._left[::-1], key=lambda index: sum(self._curves[index].config[name] != wanted[name] for name in names)
        )
