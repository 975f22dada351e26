"""One family of models in a study: its share of the cap, who decides about it, and what its trials took of memory."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tune.reports import Report
from tune.search.cost_model import Prices
from tune.search.forecast import Standing
from tune.search.memory_model import Memory
from tune.search.records import Running, TrialRecord
from tune.search.successive_halving import Ladder, Left, Move
from tune.search_space import Config
from tune.store.accounting import Books

MOST_REFUSALS = 50
"""Where so many configurations in a row do not fit in memory, a family has no more of them."""

DECODING_SHARE = 0.01
"""Of a last segment at most: left for its winner to decode with."""
WARM_UPS_BEFORE_A_FALL_TELLS = 2.0
"""A loss falls steeply with the rate's warm-up, for slow trials most of all: until so many of it no fall tells how a
trial will go on. Counted in steps of the family's first trial, so that all at a rung are compared in the same way."""


class Suggestions(Protocol):
    """Where new configurations of a family come from."""

    @property
    def more(self) -> bool:
        """Whether there is a configuration that was not tried yet."""

    def suggest(self, trial: str) -> Config:
        """One of these."""

    def tried(self, trial: str, config: Config) -> None:
        """A configuration was given to a trial by an earlier run."""

    def tell(self, trial: str, rung: int, loss: float | None) -> None:
        """The loss of a trial at a rung; None: it failed on the way there."""


class Policy(Protocol):
    """Which trials of a family its device-seconds go to: successive halving, or in the replay a baseline's rule.

    It follows from its events, and deciding changes nothing. Seconds are those of a slot.
    """

    more: bool
    ladder: Ladder

    @property
    def hopeless(self) -> bool:
        """Whether there is no use in another trial."""

    @property
    def trials(self) -> Mapping[str, Standing]:
        """Where each trial stands."""

    def rung_seconds(self, rung: int) -> float:
        """Training seconds of a trial's life at a rung."""

    def decide(self, left: Left) -> Move:
        """What a free slot should do."""

    def promoted(self, trial: str, rung: int, seconds: float) -> None:
        """A trial, maybe a new one, is on its way to a rung, for so many seconds; told again it changes nothing."""

    def finishing(self, trial: str) -> None:
        """A trial is in its last segment; told again it changes nothing."""

    def reported(self, trial: str, rung: int, loss: float, *, telling: bool = True) -> None:
        """A trial reached a rung; telling: its drop over the last one tells how it will go on."""

    def finished(self, trial: str) -> None:
        """A trial is at its end."""

    def interrupted(self, trial: str) -> None:
        """A segment ended before its goal."""

    def ended(self, trial: str, reason: str) -> None:
        """A trial is over: diverged, price, memory, error."""

    def refitted(self, seconds: float, wall: float = math.inf) -> Ladder:
        """The ladder for another part of the cap, or another deadline."""

    def refit(self, ladder: Ladder) -> None:
        """That is its ladder from now on."""

    def state(self) -> dict[str, object]:
        """All that its events made of it, as plain data."""


@dataclass(kw_only=True)
class Family:
    """One family's part of a study: its share of the cap in device-seconds, and who decides and knows.

    equal_tokens: rungs are equal in tokens, not in device-seconds; step_seconds: the step time that then turns their
    seconds into steps for all trials; life_steps: of a trial's own life (inf: it has none); refusals: configurations in
    a row that do not fit in memory; warm_up_steps: those over which the learning rate of its trials rises;
    decoding(step_seconds): what its winner needs to decode for a start, in seconds of a slot.
    """

    seconds: float
    policy: Policy
    prices: Prices
    suggestions: Suggestions
    memory: Memory = field(default_factory=Memory)
    charged: float = 0.0
    refusals: int = 0
    equal_tokens: bool = False
    step_seconds: float | None = None
    life_steps: float = math.inf
    warm_up_steps: int = 0
    decoding: Callable[[float], float] = lambda step_seconds: 0.0

    def steps_at(self, record: TrialRecord, rung: int) -> int | None:
        """Steps of a trial's life at a rung; None while no step time is known."""
        step_seconds = self.step_seconds if self.equal_tokens else record.step_seconds
        if step_seconds is None:
            return None
        steps = self.policy.rung_seconds(rung) / step_seconds
        return round(min(steps, self.life_steps))

    def goal(self, record: TrialRecord, rung: int | None) -> int | None:
        """Steps of a trial's life at the end of a stretch; None where only seconds count, as on the last one (rung
        None)."""
        steps = None if rung is None else self.steps_at(record, rung)
        return None if steps is None else max(record.steps + 1, steps)

    def price(self, trial: str | None, record: TrialRecord | None, rung: int) -> float:
        """Expected device-seconds to bring a trial (None: a new one) from where it is to a rung."""
        seconds = self.policy.rung_seconds(rung)
        if record is not None and (steps := self.steps_at(record, rung)) is not None:
            seconds = max(1, steps - record.steps) * (record.step_seconds or self.step_seconds or 0.0)
        return self.prices.stretch(trial, max(0.0, seconds))

    def last_segment(self, record: TrialRecord, seconds: float) -> float:
        """How much of so many seconds a last segment gets, so that its trial, should it win, can decode."""
        return seconds - min(DECODING_SHARE * seconds, self.decoding(record.step_seconds or 0.0))

    def reached(self, trial: str, rung: int, loss: float) -> None:
        """A trial waits at a rung: tell the policy and the suggestions."""
        warm_up_seconds = self.warm_up_steps * (self.step_seconds or 0.0)
        telling = self.policy.rung_seconds(rung - 1) >= WARM_UPS_BEFORE_A_FALL_TELLS * warm_up_seconds
        self.policy.reported(trial, rung, loss, telling=telling)
        self.suggestions.tell(trial, rung, loss)

    def decide(self, left: Left) -> Move:
        """What a free slot should do for it. Where no configuration is left, nothing new begins."""
        if self.refusals >= MOST_REFUSALS or not self.suggestions.more:
            self.policy.more = False
        return self.policy.decide(left)

    def state(self) -> dict[str, object]:
        """All that its events made of it, as plain data; what was suggested follows from that."""
        account = [self.charged, self.refusals, self.step_seconds]
        return self.policy.state() | {
            "prices": self.prices.state(), "memory": self.memory.state(), "account": account
        }  # fmt: skip


class Footprints:
    """What each lease tells of memory."""

    def __init__(self, families: Mapping[str, Family], books: Books) -> None:
        self._families, self._books = families, books

    def learn(self, run: Running, report: Report) -> int:
        """In how large parts memory ran out, and at the end of a lease on which it did not what the trial took.

        Returns into how many parts the trial's batches are cut now.
        """
        while run.micro_batches < report.micro_batches:
            self._note(run, run.micro_batches, None)
            run.micro_batches *= 2
        if report.ended and not report.ran_out:
            self._note(run, report.micro_batches, report.limited_bytes)
        return report.micro_batches

    def hopeless(self, run: Running) -> int:
        """A trial ran out of memory, and smaller parts did not help or would not have.

        Returns into how many its batches would have to be cut, more than are of use.
        """
        most = self._families[run.assignment.family].memory.most(run.assignment.config)
        self._note(run, most, None)
        return 2 * most

    def _note(self, run: Running, micro_batches: int, measured: int | None) -> None:
        assignment = run.assignment
        memory = self._families[assignment.family].memory
        predicted = memory.predicted(assignment.config, micro_batches)
        self._books.note_memory(assignment, micro_batches, predicted, measured)
        memory.learn(assignment.config, micro_batches, measured)
