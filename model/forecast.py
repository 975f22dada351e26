"""What the parts of a stretch will take, and what still fits in its lease."""

import statistics

from model.evaluation import Evaluation
from model.learner import Learner
from model.lease import MARGIN, Lease
from model.pace import Pace
from model.stretch import Stretch

WHOLE_MARGIN = 1.3                            # of the time kept for valid and test; each stops in time by itself
WHOLE_SHARE = 0.5                             # of a final stretch for them, at most: else the small subset closes it
# Guesses before anything was measured, on the slow side: a search's trials on an AMD reached 17 to 48 % of its peak
FIRST_SHARE = 0.1                             # of the device's peak
FIRST_FLOPS = {"cpu": 4e10, "cuda": 4e12}     # where no peak is known
FIRST_SECONDS = 0.2
DISK_BYTES = 1e8                              # a second


class Forecast:
    """What is left of a stretch, in steps and seconds, at the longest durations seen so far; whole splits, which are
    many batches, at the median pace.
    """

    def __init__(
        self, stretch: Stretch, lease: Lease, learner: Learner, pace: Pace, *, evaluation_tokens: int,
        whole_tokens: int,
    ):
        self.stretch, self.lease, self.learner, self.pace = stretch, lease, learner, pace
        self.evaluation_tokens, self.whole_tokens = evaluation_tokens, whole_tokens
        self.flops = FIRST_SHARE * stretch.peak_flops if stretch.peak_flops else FIRST_FLOPS[learner.device.type]
        self.paces: list[float] = []    # seconds a token, of each evaluation on this lease
        self.closes_whole = stretch.final and stretch.whole and self._affords_whole()

    def steps_left(self) -> int | None:
        """None where the stretch has no number of steps, or not yet."""
        goal = self.stretch.steps
        if self.stretch.training_seconds is not None:
            goal = self.pace.steps_in(self.stretch.training_seconds)
        return None if goal is None else max(0, goal - self.learner.steps)

    def reached(self) -> bool:
        """Whether the stretch's steps are done, or its seconds while the step time is not settled."""
        steps, seconds = self.steps_left(), self.stretch.training_seconds
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
        """Weights and two moments of 4 bytes each."""
        return self.lease.expected("checkpoint", FIRST_SECONDS + 12 * self.learner.parameters / DISK_BYTES)

    def closing_seconds(self) -> float:
        """What must follow the last step: the evaluations and the checkpoint."""
        whole = WHOLE_MARGIN * self.whole_seconds(self.whole_tokens) if self.closes_whole else 0.0
        return whole + MARGIN * (self.evaluation_seconds(self.evaluation_tokens) + self.checkpoint_seconds())

    def _affords_whole(self) -> bool:
        return WHOLE_MARGIN * self.whole_seconds(self.whole_tokens) <= WHOLE_SHARE * self.stretch.device_seconds
