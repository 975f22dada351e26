"""Which configuration a new trial of a replay gets: in an order, or suggested by what the trials before it taught."""

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tune.virtual.curves import Curve
from tune.virtual.ordering import cheap_and_random, shuffled
from tune.virtual.size_law import SizeLaw

if TYPE_CHECKING:
    from tune.virtual.tpe import Tpe


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
        from tune.virtual.tpe import Tpe

        return Tpe(curves, seed=seed)
    return SizeLaw(curves) if suggest == "size-law" else None
