"""What train() is asked for, and the device-seconds of it: what used them, how long steps take, and what still fits in
the lease; and the learning rate over a life, as a share of its peak: warm-up, constant, then a linear decay to zero.
"""

import statistics
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from model.training.learner import Learner
from tune.errors import UserError
from tune.reports import Evaluation

CHECKPOINT_BYTES = 16
"""Of a parameter: itself, two moments and the average, of 4 bytes each."""
DISK_BYTES = 1e8
"""That a disk takes in a second, where no checkpoint was written to it yet: few take less."""


@dataclass(frozen=True, kw_only=True)
class Segment:
    """How far to train on one lease; with neither `steps` nor `training_seconds`, to the lease's end."""

    device_seconds: float  # the lease: everything from the call of train() on ends inside it
    steps: int | None = None  # of the trial's life
    training_seconds: float | None = None  # of the trial's life, spent in steps; a fixed number of steps once measured
    micro_batches: int = 1  # parts of a batch, to begin with; doubled where memory runs out
    rehearse: bool = False  # memory is scarce: try a batch before the first step
    final: bool = False  # decay to zero; then the subset of valid, and all of valid and test
    whole: bool = True  # those two where they fit; without it the subset alone
    watched: bool = False  # it ends where its loss has turned, and what is kept is its best
    curve: bool = False  # of one with steps: looked at at equal distances, and on the training split too
    peak_flops: float | None = None  # of the device a second, where known: the price of a first step
    disk_bytes: float = DISK_BYTES  # a second: the price of a first checkpoint

    def __post_init__(self) -> None:
        if self.final and self.training_seconds is not None:
            raise UserError(
                f"training_seconds: {self.training_seconds} with final: a final segment fills its lease; "
                "give steps or nothing"
            )


PHASES = ("start", "compile", "steps", "evaluation", "checkpoint", "idle")
MARGIN = 1.5  # nothing begins unless this many times its longest duration so far is left


class Lease:
    """Charges the clock to one phase at a time, so that the phases always add up to the clock's difference."""

    def __init__(self, seconds: float, clock: Callable[[], float]):
        self.clock = clock
        self.mark = clock()
        self.ends = self.mark + seconds
        self.phase = PHASES[0]
        self.used = dict.fromkeys(PHASES, 0.0)
        self.hints: dict[str, float] = {}  # longest, on earlier leases: until this one has measured its own
        self.longest: dict[str, float] = {}

    def enter(self, phase: str) -> None:
        """From now on the time is this phase's."""
        now = self.clock()
        self.used[self.phase] += now - self.mark
        self.mark, self.phase = now, phase

    def take(self) -> dict[str, float]:
        """Seconds by phase since they were last taken."""
        self.enter(self.phase)
        taken, self.used = self.used, dict.fromkeys(PHASES, 0.0)
        return taken

    def left(self) -> float:
        return self.ends - self.clock()

    def observe(self, kind: str, seconds: float) -> None:
        self.longest[kind] = max(seconds, self.longest.get(kind, 0.0))

    def expected(self, kind: str, guess: float) -> float:
        """The longest so far on this lease, else on an earlier one, else the guess."""
        return self.longest.get(kind, self.hints.get(kind, guess))

    def measured(self) -> dict[str, float]:
        """The hints for the next lease."""
        return self.hints | self.longest

    @contextmanager
    def spent_on(self, phase: str) -> Iterator[None]:
        """The time inside is `phase`'s; afterwards the phase is what it was."""
        before = self.phase
        self.enter(phase)
        try:
            yield
        finally:
            self.enter(before)


SETTLED, WARM = 20, 5  # after so many steps a trial's rungs are fixed numbers of steps; the first few are slow
SETTLED_SECONDS = 1.0  # of steps at least: a neighbour's burst may last as long as twenty small ones


class Pace:
    """The training seconds of a life, and the step time that its first steps settled for good."""

    def __init__(self, *, training_seconds: float = 0.0, settled: float | None = None, early: Iterable[float] = ()):
        """What `state` gave in the checkpoint that the segment goes on from."""
        self.training_seconds = training_seconds
        self.settled = settled
        self.early = list(early)
        self.recent: deque[float] = deque(maxlen=101)

    def add(self, seconds: float, steps: int = 1) -> None:
        """Account for `steps` steps that took `seconds` together."""
        self.training_seconds += seconds
        self.recent.append(seconds / steps)
        if self.settled is None:
            self.early += [seconds / steps] * steps
            if len(self.early) >= SETTLED and sum(self.early) >= SETTLED_SECONDS:
                self.settled = statistics.median(self.early[WARM:])

    def median(self) -> float | None:
        """Seconds a step now; None before the first."""
        return statistics.median(self.recent) if self.recent else self.settled

    @property
    def warm(self) -> bool:
        """Whether more than the first few steps were made, which say little of those to come."""
        return self.settled is not None or len(self.early) > WARM

    def steps_in(self, training_seconds: float) -> int | None:
        """The step of a life at which so many seconds are trained; None until the step time is settled."""
        return None if self.settled is None else max(1, round(training_seconds / self.settled))

    def state(self) -> dict[str, Any]:
        early = self.early if self.settled is None else []
        return {"training_seconds": self.training_seconds, "settled": self.settled, "early": early}


WHOLE_MARGIN = 1.3  # of the time kept for valid and test; each stops in time by itself
WHOLE_SHARE = 0.5  # of a final segment for them, at most: else the small subset closes it
# Guesses before anything was measured, on the slow side: a search's trials on an AMD reached 17 to 48 % of its peak
FIRST_SHARE = 0.1  # of the device's peak
FIRST_FLOPS = {"cpu": 4e10, "cuda": 4e12}  # where no peak is known
FIRST_SECONDS = 0.2


@dataclass
class Forecast:
    """What is left of a segment, in steps and seconds, at the longest durations seen so far; whole splits, which are
    many batches, at the median pace.
    """

    segment: Segment
    lease: Lease
    learner: Learner
    pace: Pace
    evaluation_tokens: int
    whole_tokens: int

    def __post_init__(self) -> None:
        peak = self.segment.peak_flops
        self.flops = FIRST_SHARE * peak if peak else FIRST_FLOPS[self.learner.device.type]
        self.paces: list[float] = []  # seconds a token, of each evaluation on this lease
        self.closes_whole = self.segment.final and self.segment.whole and self._affords_whole()
        self.looks = 1 + self.segment.curve  # at the subset, by both weights, before all is closed

    def steps_left(self) -> int | None:
        """None where the segment has no number of steps, or not yet."""
        goal = self.segment.steps
        if self.segment.training_seconds is not None:
            goal = self.pace.steps_in(self.segment.training_seconds)
        return None if goal is None else max(0, goal - self.learner.steps)

    def reached(self) -> bool:
        """Whether the segment's steps are done, or its seconds while the step time is not settled."""
        steps, seconds = self.steps_left(), self.segment.training_seconds
        return steps == 0 or (steps is None and seconds is not None and self.pace.training_seconds >= seconds)

    def step_fits(self) -> bool:
        return self.lease.left() >= MARGIN * self.step_seconds() + self.closing_seconds()

    def training_left(self) -> float:
        """Seconds of training before the closing, at most."""
        left = self.lease.left() - self.closing_seconds()
        steps, step_seconds = self.steps_left(), self.pace.median()
        if steps is not None and step_seconds is not None:
            left = min(left, steps * step_seconds)
        return max(0.0, left)

    def step_seconds(self) -> float:
        guess = FIRST_SECONDS + 6 * self.learner.parameters * self.learner.config.batch_tokens / self.flops
        return self.lease.expected("step", guess)

    def evaluation_seconds(self, tokens: int) -> float:
        """A forward pass has a third of a step's operations and takes a third of its time or less."""
        guess = FIRST_SECONDS / self.evaluation_tokens + 2 * self.learner.parameters / self.flops
        if self.pace.settled is not None:
            guess = (self.pace.median() or 0.0) / 2 / self.learner.config.batch_tokens
        return tokens * self.lease.expected("evaluation token", guess)

    def evaluated(self, evaluation: Evaluation) -> None:
        """Learn from one that came to its end."""
        self.paces.append(evaluation.seconds / evaluation.tokens)
        self.lease.observe("evaluation token", self.paces[-1])
        self.closes_whole = self.closes_whole and self._affords_whole()

    def whole_seconds(self, tokens: int) -> float:
        """Of evaluations of whole splits with so many tokens together."""
        return tokens * statistics.median(self.paces) if self.paces else self.evaluation_seconds(tokens)

    def checkpoint_seconds(self) -> float:
        written = CHECKPOINT_BYTES * self.learner.parameters
        return self.lease.expected("checkpoint", FIRST_SECONDS + written / self.segment.disk_bytes)

    def closing_seconds(self) -> float:
        """What must follow the last step: the evaluations, the last by the averaged weights, and the checkpoint."""
        whole = WHOLE_MARGIN * self.whole_seconds(self.whole_tokens) if self.closes_whole else 0.0
        averaged = 0.0 if self.learner.average is None else self.whole_seconds(self.evaluation_tokens)
        first = self.evaluation_seconds(self.evaluation_tokens)
        return whole + self.looks * averaged + MARGIN * (self.looks * first + self.checkpoint_seconds())

    def _affords_whole(self) -> bool:
        return WHOLE_MARGIN * self.whole_seconds(self.whole_tokens) <= WHOLE_SHARE * self.segment.device_seconds


def warm_up(step: int, steps: int) -> float:
    """Share of the peak at the step with this number, counted from 0."""
    return min(1.0, (step + 1) / max(steps, 1))


class Decay:
    """The fall to zero over the last `share` of a life; it begins at most once, and a resumed one goes on falling.

    The end is unknown until the last segment is given out (Hagele et al. 2024, arXiv:2405.18392): only that one decays.
    """

    def __init__(self, share: float, fraction: float = 1.0, length: float | None = None):
        """fraction, length: what `state` gave in the checkpoint that the segment goes on from"""
        self.share = share
        self.fraction = fraction or 1.0  # one that had ended starts anew
        self.length = length if 0 < fraction < 1 else None
        self.begun = False

    def begins(self, done: float, left: float) -> bool:
        """Whether the fall is due; done, left: training behind and ahead, both in steps or both in seconds."""
        return not self.begun and (self.fraction < 1 or left <= self.share * (done + left))

    def begin(self, left: float) -> None:
        """Start from the present fraction; the same length again where the end did not move, so that no bit changes."""
        self.begun = True
        if self.length is None or left / self.length != self.fraction:
            self.length = left / self.fraction

    def factor(self, left: float) -> float:
        """Share of the peak with this much training ahead."""
        if self.begun and self.length:
            self.fraction = min(1.0, max(0.0, left / self.length))
        return self.fraction if self.begun else 1.0

    def state(self, left: float) -> dict[str, Any]:
        """JSON-able; left: training ahead of the next step"""
        return {"fraction": self.factor(left), "length": self.length}
