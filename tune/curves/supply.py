"""Which configuration a new trial of a replay gets: in an order, or suggested as a search does."""

import random
from collections.abc import Callable, Sequence

from tune.curves.recorded import Curve
from tune.search.forecast import NO_PROGRESS, Progress
from tune.search.outlook import Outlook, most_promising
from tune.search_space import Config, Value


class Supply:
    """Hands out each curve of a table once, as the engine's suggestions: in a seeded order, or as a search suggests
    them. A configuration is the number of its curve.

    only: these curves and no others; prior, outlook: as of a Suggester; without a prior it is the order.
    """

    def __init__(
        self, curves: Sequence[Curve], *, seed: int, only: Sequence[int] | None = None,
        prior: Callable[[Config], float] | None = None,
    ) -> None:  # fmt: skip
        self._curves, self._seed, self._prior = curves, seed, prior
        self.outlook = Outlook()
        self._indices = range(len(curves)) if only is None else only
        self._given: dict[str, int] = {}
        self._round = -1
        self.begin_again()

    def begin_again(self) -> None:
        """Every curve may be handed out once more."""
        self._round += 1
        rng = random.Random(f"{self._seed} {self._round}")
        self._left = dict.fromkeys(rng.sample(self._indices, len(self._indices)))

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
        return 1.0 if self._prior is None else self._prior(self._curves[self._given[trial]].config)

    def tried(self, trial: str, config: dict[str, Value]) -> None:
        """Nothing goes on from an earlier run here."""

    def tell(self, trial: str, rung: int, loss: float | None, progress: Progress = NO_PROGRESS) -> None:
        """The loss of a trial at a rung."""
        self.outlook.tell(trial, self._curves[self._given[trial]].config, progress)

    def _next(self) -> int:
        left = list(self._left)
        if self._prior is None:
            return left[0]
        return left[most_promising([self._curves[index].config for index in left], self._prior, self.outlook)]
