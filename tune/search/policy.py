"""What a policy is asked and told: what a free slot finds, the moves that it may make, and the events of a family's
trials.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from tune.search.forecast import NO_PROGRESS, Progress, Standing
from tune.search.ladder import Ladder
from tune.search_space import Config


@dataclass(frozen=True, kw_only=True)
class BudgetLeft:
    """What a free slot finds. seconds: of a slot, neither spent nor reserved, that the family may use; slots: that are
    free; running: trials of the family; wall: seconds to the deadline, or in which the cap should be used; reserved:
    seconds that trials on their way to a rung still have; binding: whether `wall` is to the deadline."""

    seconds: float
    slots: int
    running: int
    wall: float = math.inf
    reserved: float = 0.0
    binding: bool = False


@dataclass(frozen=True)
class Start:
    """Begin a new trial and train it to rung 0."""

    reason: str


@dataclass(frozen=True)
class Promote:
    """Take a paused trial, however long it has waited, up to `rung`."""

    trial: str
    rung: int
    reason: str


@dataclass(frozen=True)
class Finish:
    """Train the last segment of a trial, its decay and all overhead included, in up to `seconds` of a slot.

    training: the seconds of training in all at which it ends; None: as far as the lease lasts.
    """

    trial: str
    seconds: float
    reason: str
    training: float | None = None


@dataclass(frozen=True)
class Confirm:
    """Train the configuration of a trial anew, to an end of its own, in up to `seconds` of a slot, to compare it with
    that of another; number: of the seed, counted from the study's own."""

    of: str
    other: str
    number: int
    seconds: float
    reason: str


@dataclass(frozen=True)
class Train:
    """Train a configuration whole, to so many steps of its life with its decay, in about `seconds` of a slot; trial:
    the one that began it, None: a new one."""

    config: Config
    steps: int
    seconds: float
    reason: str
    trial: str | None = None


@dataclass(frozen=True)
class HandBack:
    """Give the slot up: there is nothing worthwhile for it, now or later."""

    reason: str


@dataclass(frozen=True)
class Wait:
    """Keep the slot: a running trial must report first."""

    reason: str


Move = Start | Promote | Finish | Confirm | Train | HandBack | Wait


class Policy(Protocol):
    """The rule by which a family's device-seconds go to its trials: successive halving, or in the replay a baseline's.

    It follows from its events, and deciding changes nothing. Seconds are those of a slot. has_more: whether
    configurations are left to start; trials: where each stands.
    """

    has_more: bool
    ladder: Ladder
    trials: Mapping[str, Standing]

    @property
    def is_hopeless(self) -> bool:
        """Whether there is no use in another trial."""

    @property
    def last_segment(self) -> float | None:
        """Seconds that are kept for a last segment; None: it knows of none, and trials train to the deadline."""

    def rung_seconds(self, rung: int) -> float:
        """Return the seconds that a trial has trained in all at a rung."""

    def decide(self, left: BudgetLeft) -> Move:
        """Return what a free slot should do."""

    def on_promoted(self, trial: str, rung: int, seconds: float) -> None:
        """A trial, maybe a new one, is on its way to a rung, for so many seconds; told again it changes nothing."""

    def on_finishing(self, trial: str) -> None:
        """A trial is in its last segment; told again it changes nothing."""

    def on_confirming(self, trial: str, of: str) -> None:
        """A trial trains the configuration of another one anew; told again it changes nothing."""

    def on_reported(
        self, trial: str, rung: int, loss: float, *, telling: bool = True, progress: Progress = NO_PROGRESS
    ) -> None:
        """A trial reached a rung, with this progress, and waits there, or is at its end; telling: whether its drop over
        the last rung tells how it goes on, which it does not within a warm-up of the learning rate."""

    def on_finished(self, trial: str, training: float = 0.0, beside: float = 0.0) -> None:
        """A trial is at its end, after so many seconds of training; beside: seconds that its last segment took beside
        training, the start of a slot not counted."""

    def on_turned(self, trial: str, loss: float, training: float) -> None:
        """A trial is past its best, which is kept and has this loss, after so many seconds of training: it is at its
        end, and the search goes on."""

    def on_returned(self, trial: str, *, trained: bool = True) -> None:
        """A trial ended by itself, for good, and the search goes on. trained: whether it trained on this lease, if only
        for a step."""

    def on_life_known(self, life: float, gap: float) -> None:
        """It is known how many seconds of training a trial's own life takes (inf: it has none), and in how many it
        reports."""

    def on_interrupted(self, trial: str) -> None:
        """A segment ended before its goal: the trial waits where it was."""

    def on_ended(self, trial: str, reason: str) -> None:
        """A trial is over: diverged, price, memory, error."""

    def enough_seconds(self, trial: str) -> float | None:
        """Return the seconds of training in all at which a trial's last segment should end; None: as far as its lease
        lasts."""

    def on_resumed(self, begin: Mapping[str, float]) -> None:
        """A run of the study begins: what failed in earlier ones says nothing of it. begin: by trial, the seconds of
        training from which it goes on."""

    def make_ladder(self, seconds: float, within: float = math.inf, deadline: float = math.inf) -> Ladder:
        """Return the ladder for another part of the cap, or another deadline."""

    def refit(self, ladder: Ladder) -> None:
        """Take this ladder from now on."""

    def state(self) -> dict[str, object]:
        """Return all that its events made of it, as plain data."""
