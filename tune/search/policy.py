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
class Left:
    """What a free slot finds: device-seconds neither spent nor reserved, slots, trials, seconds to the deadline or in
    which the cap should be used, those that trials on their way to a rung have reserved; binding: it is a deadline."""

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
    """The last segment of a trial, its decay and all overhead included, in up to `seconds` of a slot.

    training: the seconds of training in all at which it ends; None: as far as that leads.
    """

    trial: str
    seconds: float
    reason: str
    training: float | None = None


@dataclass(frozen=True)
class Confirm:
    """Train the configuration of a trial anew, to an end of its own, in up to `seconds` of a slot, beside that of
    another one; number: of its seeds after the study's."""

    of: str
    other: str
    number: int
    seconds: float
    reason: str


@dataclass(frozen=True)
class Train:
    """Train a configuration whole, to so many steps of its life with its decay, in about `seconds` of a slot; trial:
    that began it, None: a new one."""

    config: Config
    steps: int
    seconds: float
    reason: str
    trial: str | None = None


@dataclass(frozen=True)
class HandBack:
    """Nothing worthwhile for this slot, now or later."""

    reason: str


@dataclass(frozen=True)
class Wait:
    """Keep the slot: a running trial must report first."""

    reason: str


Move = Start | Promote | Finish | Confirm | Train | HandBack | Wait


class Policy(Protocol):
    """Which trials of a family its device-seconds go to: successive halving, or in the replay a baseline's rule.

    It follows from its events, and deciding changes nothing. Seconds are those of a slot. more: whether there are
    configurations left to start; trials: where each stands.
    """

    more: bool
    ladder: Ladder
    trials: Mapping[str, Standing]

    @property
    def hopeless(self) -> bool:
        """Whether there is no use in another trial."""

    def rung_seconds(self, rung: int) -> float:
        """Training seconds of a trial's life at a rung."""

    def decide(self, left: Left) -> Move:
        """What a free slot should do."""

    def promoted(self, trial: str, rung: int, seconds: float) -> None:
        """A trial, maybe a new one, is on its way to a rung, for so many seconds; told again it changes nothing."""

    def finishing(self, trial: str) -> None:
        """A trial is in its last segment; told again it changes nothing."""

    def confirming(self, trial: str, of: str) -> None:
        """A trial trains the configuration of another one anew; told again it changes nothing."""

    def reported(
        self, trial: str, rung: int, loss: float, *, telling: bool = True, progress: Progress = NO_PROGRESS
    ) -> None:
        """A trial reached a rung, with so much behind it, and waits there, or is at its end; telling: its drop over the
        last one tells how it goes on; not so within a warm-up of the learning rate."""

    def finished(self, trial: str, training: float = 0.0, beside: float = 0.0) -> None:
        """A trial is at its end, after so many seconds of training; beside: what its last segment took that was none,
        on a slot that was there."""

    def turned(self, trial: str, loss: float, training: float) -> None:
        """A trial is past its best, which is kept, with this loss, after so many seconds of training: it is at its end,
        and the search goes on."""

    def returned(self, trial: str, *, trained: bool = True) -> None:
        """A trial ended by itself, for good, and the search goes on. trained: on this lease, if only for a step."""

    def known(self, life: float, gap: float) -> None:
        """How long a trial's own life lasts in training seconds (inf: it has none), and in how many it reports."""

    def interrupted(self, trial: str) -> None:
        """A segment ended before its goal: the trial waits where it was."""

    def ended(self, trial: str, reason: str) -> None:
        """A trial is over: diverged, price, memory, error."""

    def enough(self, trial: str) -> float | None:
        """Training in all at which a trial's last segment should end, in seconds; None: as far as its lease leads."""

    def resumed(self, begin: Mapping[str, float]) -> None:
        """A run of the study begins: what failed in earlier ones says nothing of it. begin: seconds of training from
        which trials go on that were at their ends."""

    def refitted(self, seconds: float, within: float = math.inf, deadline: float = math.inf) -> Ladder:
        """The ladder for another part of the cap, or another deadline."""

    def refit(self, ladder: Ladder) -> None:
        """That is its ladder from now on."""

    def state(self) -> dict[str, object]:
        """All that its events made of it, as plain data."""
