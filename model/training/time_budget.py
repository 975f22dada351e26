"""What train() is asked for, and its time budget: what used the device-seconds, how long steps take, and what still
fits in the lease; and the learning rate over a life, as a share of its peak: warm-up, constant, then linear decay to
zero.
"""

import statistics
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from model.training.learner import Learner
from tune.reports import Evaluation

CHECKPOINT_BYTES = 16
"""Bytes of a checkpoint for each parameter: its value, two moments and the average, of 4 bytes each; the best so far,
which a watched trial has too, is not counted."""
DISK_BYTES = 1e8
"""Bytes a second that a disk is assumed to write before a checkpoint was written to it: few are slower."""


@dataclass(frozen=True, kw_only=True)
class Segment:
    """How far to train on one lease; with neither `steps` nor `training_seconds`, to the lease's end."""

    device_seconds: float  # the lease: everything from the call of train() on ends inside it
    steps: int | None = None  # to train to, counted over the trial's life
    training_seconds: float | None = None  # the same in seconds spent in steps; a number of steps once these are timed
    micro_batches: int = 1  # parts of a batch at first; doubled where memory runs out
    dry_step: bool = False  # memory is scarce: try a batch before the first step
    final: bool = False  # decay to zero; then evaluate the subset of valid, and all of valid and test
    whole: bool = True  # evaluate all of valid and test where they fit; else the subset only
    watched: bool = False  # end where the validation loss has turned, and keep the best weights
    curve: bool = False  # with `steps`: evaluate at equal distances, and on the training split too
    peak_flops: float | None = None  # FLOP/s of the device where known, to estimate the first step
    disk_bytes: float = DISK_BYTES  # a second, to estimate the first checkpoint

    def __post_init__(self) -> None:
        assert not (self.final and self.training_seconds is not None), "a final segment fills its lease"


PHASES = ("start", "compile", "steps", "evaluation", "checkpoint", "idle")
MARGIN = 1.5  # nothing begins unless this many times its longest duration so far is left
HINT_SHARE = 1 / 6
"""Largest share of a lease that is kept for a step, an evaluation or a checkpoint because one took long on an earlier
lease, where no step would fit otherwise: it may have been held up there, as by a machine that slept."""


class PhaseTimer:
    """Charges the clock to one phase at a time, so that the phases always add up to the time that passed."""

    def __init__(self, seconds: float, clock: Callable[[], float]):
        self.clock = clock
        self.began = self.mark = clock()
        self.ends = self.mark + seconds
        self.phase = PHASES[0]
        self.used = dict.fromkeys(PHASES, 0.0)
        self.earlier: dict[str, float] = {}  # longest durations on earlier leases, as `measured` returned them
        self.hints: Mapping[str, float] = {}  # the same, capped where need be, until this one has its own
        self.longest: dict[str, float] = {}

    def enter(self, phase: str) -> None:
        """Charge the time from now on to this phase."""
        now = self.clock()
        self.used[self.phase] += now - self.mark
        self.mark, self.phase = now, phase

    def take(self) -> dict[str, float]:
        """Return the seconds by phase since they were last taken."""
        self.enter(self.phase)
        taken, self.used = self.used, dict.fromkeys(PHASES, 0.0)
        return taken

    def seconds_left(self) -> float:
        return self.ends - self.clock()

    def observe(self, kind: str, seconds: float) -> None:
        self.longest[kind] = max(seconds, self.longest.get(kind, 0.0))

    def expected(self, kind: str, guess: float) -> float:
        """Return the longest duration of a kind on this lease, else on an earlier one, else the guess."""
        return self.longest.get(kind, self.hints.get(kind, guess))

    def measured(self) -> dict[str, float]:
        """Return the hints for the next lease."""
        return self.earlier | self.longest

    def cap_hints(self, evaluation_tokens: int) -> None:
        """Believe no hint that keeps more than HINT_SHARE of this lease."""
        most = HINT_SHARE * (self.ends - self.began)
        per_token = {"evaluation token": most / evaluation_tokens}
        self.hints = {kind: min(seconds, per_token.get(kind, most)) for kind, seconds in self.hints.items()}

    @contextmanager
    def charging(self, phase: str) -> Iterator[None]:
        """Charge the time inside to `phase`; afterwards the phase is the one before."""
        before = self.phase
        self.enter(phase)
        try:
            yield
        finally:
            self.enter(before)


SETTLED, WARM = 20, 5  # steps after which a trial's step time, and so its rungs in steps, are settled; slow first ones
SETTLED_SECONDS = 1.0  # least duration of these steps: a neighbour's burst may last as long as twenty small ones


class StepTimer:
    """The training seconds of a life, and its step time, which the first steps settle for good."""

    def __init__(self, *, training_seconds: float = 0.0, settled: float | None = None, early: Iterable[float] = ()):
        """Take what `state` returned, from the checkpoint that the segment goes on from."""
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
        """Return the present seconds a step; None before the first."""
        return statistics.median(self.recent) if self.recent else self.settled

    @property
    def is_warm(self) -> bool:
        """Whether more steps were taken than the first few, which say little of those to come."""
        return self.settled is not None or len(self.early) > WARM

    def steps_in(self, training_seconds: float) -> int | None:
        """Return the step of a life at which it has trained so many seconds; None until the step time is settled."""
        return None if self.settled is None else max(1, round(training_seconds / self.settled))

    def state(self) -> dict[str, Any]:
        early = self.early if self.settled is None else []
        return {"training_seconds": self.training_seconds, "settled": self.settled, "early": early}


WHOLE_MARGIN = 1.3  # on the time kept for all of valid and test; small, as these stop in time by themselves
WHOLE_SHARE = 0.5  # of a final segment that these may take; where they need more, the subset alone is evaluated
# Guesses before anything was measured, on the slow side: trials of a search on an AMD CPU had 17 to 48 % of its peak
FIRST_SHARE = 0.1  # of the device's peak
FIRST_FLOPS = {"cpu": 4e10, "cuda": 4e12}  # FLOP/s where no peak is known
FIRST_SECONDS = 0.2


@dataclass
class TimeBudget:
    """What is left of a segment, in steps and seconds, at the longest durations seen so far; whole splits, which are
    many batches, at the median.
    """

    segment: Segment
    phase_timer: PhaseTimer
    learner: Learner
    step_timer: StepTimer
    evaluation_tokens: int
    whole_tokens: int

    def __post_init__(self) -> None:
        peak = self.segment.peak_flops
        self.flops = FIRST_SHARE * peak if peak else FIRST_FLOPS[self.learner.device.type]
        self.token_seconds: list[float] = []  # seconds a token, of each evaluation on this lease
        self.closes_whole = self.segment.final and self.segment.whole and self._affords_whole()
        self.looks = 1 + self.segment.curve  # evaluations of a subset in the closing, each by weights and average

    def steps_left(self) -> int | None:
        """Return the steps left in the segment; None where it has no number of steps, or not yet."""
        goal = self.segment.steps
        if self.segment.training_seconds is not None:
            goal = self.step_timer.steps_in(self.segment.training_seconds)
        return None if goal is None else max(0, goal - self.learner.steps)

    def is_reached(self) -> bool:
        """Whether the segment's steps are done, or its seconds while the step time is not settled."""
        steps, seconds = self.steps_left(), self.segment.training_seconds
        return steps == 0 or (steps is None and seconds is not None and self.step_timer.training_seconds >= seconds)

    def step_fits(self) -> bool:
        return self.phase_timer.seconds_left() >= MARGIN * self.step_seconds() + self.closing_seconds()

    def seconds_for_steps(self) -> float:
        """Return the seconds until no further step fits, when a decay is to reach zero: by steps of this lease,
        as after an earlier one that was held up the rate would rise again with the first."""
        step = self.phase_timer.longest.get("step", self.step_timer.median() or 0.0)
        return self.phase_timer.seconds_left() - self.closing_seconds() - MARGIN * step

    def training_left(self) -> float:
        """Return the most seconds of training that are left before the closing."""
        left = self.phase_timer.seconds_left() - self.closing_seconds()
        steps, step_seconds = self.steps_left(), self.step_timer.median()
        if steps is not None and step_seconds is not None:
            left = min(left, steps * step_seconds)
        return max(0.0, left)

    def step_seconds(self) -> float:
        guess = FIRST_SECONDS + 6 * self.learner.parameters * self.learner.config.batch_tokens / self.flops
        return self.phase_timer.expected("step", guess)

    def evaluation_seconds(self, tokens: int) -> float:
        """Return the expected seconds of evaluating so many tokens, at a guess half of those of training on them."""
        guess = FIRST_SECONDS / self.evaluation_tokens + 2 * self.learner.parameters / self.flops
        if self.step_timer.settled is not None:
            guess = (self.step_timer.median() or 0.0) / 2 / self.learner.config.batch_tokens
        return tokens * self.phase_timer.expected("evaluation token", guess)

    def learn_evaluation(self, evaluation: Evaluation) -> None:
        """Learn from an evaluation that was completed."""
        self.token_seconds.append(evaluation.seconds / evaluation.tokens)
        self.phase_timer.observe("evaluation token", self.token_seconds[-1])
        self.closes_whole = self.closes_whole and self._affords_whole()

    def whole_seconds(self, tokens: int) -> float:
        """Return the expected seconds of evaluating whole splits with so many tokens together."""
        return tokens * statistics.median(self.token_seconds) if self.token_seconds else self.evaluation_seconds(tokens)

    def checkpoint_seconds(self) -> float:
        written = CHECKPOINT_BYTES * self.learner.parameters
        return self.phase_timer.expected("checkpoint", FIRST_SECONDS + written / self.segment.disk_bytes)

    def closing_seconds(self) -> float:
        """Return the seconds to keep for what follows the last step: evaluations, by the average too, and
        checkpoint."""
        whole = WHOLE_MARGIN * self.whole_seconds(self.whole_tokens) if self.closes_whole else 0.0
        averaged = 0.0 if self.learner.average is None else self.whole_seconds(self.evaluation_tokens)
        first = self.evaluation_seconds(self.evaluation_tokens)
        return whole + self.looks * averaged + MARGIN * (self.looks * first + self.checkpoint_seconds())

    def _affords_whole(self) -> bool:
        return WHOLE_MARGIN * self.whole_seconds(self.whole_tokens) <= WHOLE_SHARE * self.segment.device_seconds


def warm_up(step: int, steps: int) -> float:
    """Return the share of the peak rate at this step, counted from 0, of a warm-up over so many steps."""
    return min(1.0, (step + 1) / max(steps, 1))


SHORTEST = 1e-9
"""Length of a decay for which nothing is left, in steps or seconds."""


class Decay:
    """The decay to zero over the last `share` of a life; it begins at most once, and goes on after a resume.

    The end is unknown until the final segment is given out (Hagele et al. 2024, arXiv:2405.18392): only that one
    decays.
    """

    def __init__(self, share: float, fraction: float = 1.0, length: float | None = None):
        """fraction, length: what `state` returned, from the checkpoint that the segment goes on from"""
        self.share = share
        self.fraction = fraction or 1.0  # one that had ended starts anew
        self.length = length if 0 < fraction < 1 else None
        self.has_begun = False

    def is_due(self, done: float, left: float) -> bool:
        """Whether the decay is due; done, left: training behind and ahead, both in steps or both in seconds."""
        return not self.has_begun and (self.fraction < 1 or self.left_before(done, left) <= 0)

    def left_before(self, done: float, left: float) -> float:
        """Return the training before the decay is due, in the unit of both."""
        return left - self.share * (done + left)

    def begin(self, left: float) -> None:
        """Start from the present fraction; where the end did not move the length stays, so that no bit changes."""
        self.has_begun = True
        if self.length is None or left / self.length != self.fraction:
            self.length = max(left, SHORTEST) / self.fraction

    def factor(self, left: float) -> float:
        """Return the share of the peak rate with this much training ahead."""
        if self.has_begun and self.length:
            self.fraction = min(1.0, max(0.0, left / self.length))
        return self.fraction if self.has_begun else 1.0

    def state(self, left: float) -> dict[str, Any]:
        """Return what __init__ takes, JSON-able; left: training ahead of the next step"""
        return {"fraction": self.factor(left), "length": self.length}
