"""Which configuration a new trial of a replay gets: in an order, or suggested by what the trials before it taught."""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from statistics import covariance
from typing import TypeVar

import optuna

from tune.curves.recorded import Curve

Config = TypeVar("Config")


def shuffled(configs: Sequence[Config], rng: random.Random) -> Iterator[Config]:
    """All configs in random order."""
    return iter(rng.sample(configs, len(configs)))


def cheap_and_random(
    configs: Sequence[Config], price: Callable[[Config], float], rng: random.Random
) -> Iterator[Config]:
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


ENOUGH_FOR_LAW = 6
"""Nothing is favoured before that many trials were measured."""


class SizeLaw:
    """Says which of the configurations that are left is of the size that the trials so far speak for.

    Only the sign of b is used: it is fitted to the last loss of each trial, a(D) being whatever suits each level of D.
    """

    def __init__(self, curves: Sequence[Curve]) -> None:
        self._sizes = [math.log(curve.parameters + 1) for curve in curves]
        self._last: dict[int, tuple[int, float]] = {}

    def tell(self, index: int, steps: float, loss: float) -> None:
        """A loss that a curve had after so many steps; one that is not finite teaches nothing."""
        if math.isfinite(loss):
            self._last[index] = math.floor(math.log2(steps)), loss

    def choose(self, left: Sequence[int]) -> int:
        """One of the largest curves that are left or of the smallest, the first where too little was measured."""
        slope = self._slope() if len(self._last) >= ENOUGH_FOR_LAW else 0.0
        return min(left, key=lambda index: slope * self._sizes[index])

    def _slope(self) -> float:
        """b, times a positive number."""
        levels: dict[int, list[tuple[float, float]]] = {}
        for index, (level, loss) in self._last.items():
            levels.setdefault(level, []).append((self._sizes[index], loss))
        return sum(
            (len(points) - 1) * covariance(*zip(*points, strict=True)) for points in levels.values() if len(points) > 1
        )


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
    """Hands out each curve of a table once: in a seeded order, the cheapest and a random one in turn, or by a model."""

    def __init__(self, curves: Sequence[Curve], *, suggest: str, seed: int) -> None:
        self._curves, self._suggest, self._seed = curves, suggest, seed
        self._model = _model(curves, suggest, seed)
        self._round = -1
        self.begin_again()

    def begin_again(self) -> None:
        """Every curve may be handed out once more."""
        self._round += 1
        rng = random.Random(f"{self._seed} {self._round}")
        indices = range(len(self._curves))
        order = (
            cheap_and_random(indices, lambda index: self._curves[index].parameters, rng)
            if self._suggest == "cheap"
            else shuffled(indices, rng)
        )
        self._left = dict.fromkeys(order)
        self._next: int | None = None

    def peek(self) -> int | None:
        """The curve that is handed out next."""
        if self._next is None and self._left:
            self._next = self._model.choose(list(self._left)) if self._model else next(iter(self._left))
        return self._next

    def take(self) -> int | None:
        """The next curve, None where all are handed out."""
        index = self.peek()
        if index is not None:
            del self._left[index]
            self._next = None
        return index

    def tell(self, index: int, steps: float, loss: float) -> None:
        """A loss that a curve had after so many steps."""
        if self._model:
            self._model.tell(index, steps, loss)


def _model(curves: Sequence[Curve], suggest: str, seed: int) -> "Tpe | SizeLaw | None":
    """Optuna comes only with TPE."""
    if suggest == "tpe":
        pass

        return Tpe(curves, seed=seed)
    return SizeLaw(curves) if suggest == "size-law" else None
