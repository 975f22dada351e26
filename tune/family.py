"""One family of models in a study: its share of the cap, and who decides about it."""

from dataclasses import dataclass, field
from typing import Any, Protocol

from tune.memory import Memory
from tune.prices import FixedPrices, Prices
from tune.records import TrialRecord
from tune.rungs import Contest

MOST_REFUSALS = 50
"""Where so many configurations in a row do not fit in memory, a family has no more of them."""

WARM_UPS_BEFORE_A_FALL_TELLS = 2.0
"""A loss falls steeply with the rate's warm-up, for slow trials most of all: until so many of it no fall tells how a
trial will go on. Counted in steps of the family's first trial, so that all at a rung are compared in the same way."""


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
    """One family's part of a study: its share of the cap in device-seconds, and who decides and knows.

    idle: it has nothing more to do, so that others may use what it left over; equal_tokens: rungs are equal in tokens,
    not in device-seconds; step_seconds: the step time that then turns their seconds into steps for all trials; planned:
    at fixed prices, what its leases were to cost; refusals: configurations in a row that do not fit in memory;
    warm_up_steps: those over which the learning rate of its trials rises.
    """

    seconds: float
    contest: Contest
    prices: Prices | FixedPrices
    suggestions: Suggestions
    memory: Memory = field(default_factory=Memory)
    charged: float = 0.0
    idle: bool = False
    refusals: int = 0
    equal_tokens: bool = False
    step_seconds: float | None = None
    planned: float = 0.0
    warm_up_steps: int = 0

    @property
    def fixed(self) -> FixedPrices | None:
        """Its prices where they are fixed: then its share is used up as planned, whatever its leases did cost."""
        return self.prices if isinstance(self.prices, FixedPrices) else None

    def steps_at(self, record: TrialRecord, rung: int) -> int | None:
        """Steps of a trial's life at a rung; None while no step time is known."""
        step_seconds = self.step_seconds if self.equal_tokens else record.step_seconds
        return None if step_seconds is None else round(self.contest.rung_seconds(rung) / step_seconds)

    def goal(self, record: TrialRecord, rung: int | None, price: float) -> tuple[int | None, float | None]:
        """Steps of a trial's life at the end of a stretch where they are known, else training seconds.

        Neither for the last stretch (rung None), which fills its lease, unless prices are fixed.
        """
        if rung is None:
            return (record.steps + self.fixed.steps_in(price) if self.fixed else None), None
        steps = self.steps_at(record, rung)
        return (None, self.contest.rung_seconds(rung)) if steps is None else (max(record.steps + 1, steps), None)

    def price(self, trial: str | None, record: TrialRecord | None, rung: int) -> float:
        """Expected device-seconds to bring a trial (None: a new one) from where it is to a rung."""
        seconds = self.contest.rung_seconds(rung)
        if record is not None and (steps := self.steps_at(record, rung)) is not None:
            of_a_step = self.fixed.step_seconds if self.fixed else record.step_seconds or self.step_seconds or 0.0
            seconds = (steps - record.steps) * of_a_step
        return self.prices.stretch(trial, max(0.0, seconds))

    def reached(self, trial: str, rung: int, loss: float) -> None:
        """A trial waits at a rung: tell the contest and the suggestions."""
        warm_up_seconds = self.warm_up_steps * (self.step_seconds or 0.0)
        telling = self.contest.rung_seconds(rung - 1) >= WARM_UPS_BEFORE_A_FALL_TELLS * warm_up_seconds
        self.contest.reported(trial, rung, loss, telling=telling)
        self.suggestions.tell(trial, rung, loss)

    def refusal(self, config: dict[str, Any]) -> str | None:
        """Why a config is not launched, if it is not: it does not fit in memory."""
        reason = self.memory.refusal(config)
        self.refusals = self.refusals + 1 if reason else 0
        return reason
