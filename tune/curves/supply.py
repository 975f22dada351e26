"""Which configuration a new trial of a replay gets: in an order, or suggested by what the trials before it taught."""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import optuna

from tune.curves.recorded import Curve
from tune.search.forecast import NO_PROGRESS, Progress
from tune.search.outlook import Outlook, most_promising
from tune.search.suggest import of_training
from tune.search_space import DIMENSIONS, Config, Value

T = TypeVar("T")


def shuffled(configs: Sequence[T], rng: random.Random) -> Iterator[T]:
    """All configs in random order."""
    return iter(rng.sample(configs, len(configs)))


def cheap_and_random(configs: Sequence[T], price: Callable[[T], float], rng: random.Random) -> Iterator[T]:
    """All configs: in turn the cheapest not yet handed out and one at random."""
    cheapest = iter(sorted(range(len(configs)), key=lambda index: price(configs[index])))
    at_random = shuffled(range(len(configs)), rng)
    given: set[int] = set()
    while len(given) < len(configs):
        for source in (cheapest, at_random):
            index = next((index for index in source if index not in given), None)
            if index is not None:
                given.add(index)
                yield configs[index]


ENOUGH_FOR_TPE = 6
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
        enough = [level for level, losses in self._levels.items() if len(losses) >= ENOUGH_FOR_TPE]
        if not enough:
            return left[0]
        seed = self._seed * 1000 + len(left)
        study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=ENOUGH_FOR_TPE))
        study.add_trials([self._trial(index, loss) for index, loss in self._levels[max(enough)].items()])
        wanted = study.ask(self._distributions).params

        def distance(index: int) -> int:
            config = self._curves[index].config
            return sum(config[name] != value for name, value in wanted.items())

        return min(left, key=distance)

    def _trial(self, index: int, loss: float) -> optuna.trial.FrozenTrial:
        params = dict(self._curves[index].config)
        return optuna.trial.create_trial(params=params, distributions=self._distributions, value=loss)


class Supply:
    """Hands out each curve of a table once, as the engine's suggestions: in a seeded order, the cheapest and a random
    one in turn, by a model, or as a search suggests them. A configuration is the number of its curve.

    steps_at(rung): the steps of a trial there; only: these curves and no others; prior, outlook: as of a Suggester.
    """

    def __init__(
        self, curves: Sequence[Curve], *, suggest: str, seed: int, steps_at: Callable[[int], float] = float,
        only: Sequence[int] | None = None, prior: Callable[[Config], float] | None = None,
    ) -> None:  # fmt: skip
        self._curves, self._suggest, self._seed, self.steps_at, self._prior = curves, suggest, seed, steps_at, prior
        self._model = Tpe(curves, seed=seed) if suggest == "tpe" else None
        self.outlook = Outlook()
        self._indices = range(len(curves)) if only is None else only
        self._given: dict[str, int] = {}
        self._round = -1
        self.begin_again()

    def begin_again(self) -> None:
        """Every curve may be handed out once more."""
        self._round += 1
        rng = random.Random(f"{self._seed} {self._round}")
        order = (
            cheap_and_random(self._indices, lambda index: self._curves[index].parameters, rng)
            if self._suggest == "cheap"
            else shuffled(self._indices, rng)
        )
        self._left = dict.fromkeys(order)

    @property
    def count(self) -> int:
        """How many curves there are."""
        return len(self._indices)

    @property
    def more(self) -> bool:
        """Whether there is a curve that was not handed out."""
        return bool(self._left)

    def first(self) -> Curve:
        """The curve that is handed out first."""
        return self._curves[self._next()]

    def suggest(self, trial: str) -> dict[str, Value]:
        """The next curve's number."""
        self._given[trial] = index = self._next()
        del self._left[index]
        return {"curve": index}

    def favour(self, trial: str) -> float:
        """How promising it was before anything was known: all alike without a prior."""
        if self._prior is None:
            return 1.0
        return of_training(self._prior, self._curves[self._given[trial]].config, {"dropout": DIMENSIONS["dropout"]})

    def tried(self, trial: str, config: dict[str, Value]) -> None:
        """Nothing goes on from an earlier run here."""

    def tell(self, trial: str, rung: int, loss: float | None, progress: Progress = NO_PROGRESS) -> None:
        """The loss of a trial at a rung."""
        self.outlook.tell(trial, self._curves[self._given[trial]].config, progress)
        if self._model and loss is not None:
            self._model.tell(self._given[trial], self.steps_at(rung), loss)

    def _next(self) -> int:
        left = list(self._left)
        if self._prior is not None:
            return left[most_promising([self._curves[index].config for index in left], self._prior, self.outlook)]
        return self._model.choose(left) if self._model else left[0]
