"""One family of models in a study: its share of the cap, and who decides about it."""

from dataclasses import dataclass
from typing import Any, Protocol

from tune.prices import Prices
from tune.rungs import Contest


class Suggestions(Protocol):
    """Where new configurations of a family come from."""

    def suggest(self, trial: str) -> dict[str, Any] | None:
        """A configuration that was not tried yet, or None where there are no more."""

    def tried(self, trial: str, config: dict[str, Any]) -> None:
        """A configuration was given to a trial by an earlier run."""

    def tell(self, trial: str, rung: int, loss: float | None) -> None:
        """The loss of a trial at a rung; None: it failed on the way there."""


@dataclass(kw_only=True)
class Family:
    """One family's part of a study: its share of the cap in device-seconds, its contest, prices and suggestions.

    idle: it has nothing more to do, so that others may use what it left over; step_seconds: where rungs are equal in
    tokens, the step time that turns their seconds into steps for all trials.
    """

    seconds: float
    contest: Contest
    prices: Prices
    suggestions: Suggestions
    charged: float = 0.0
    idle: bool = False
    step_seconds: float | None = None
