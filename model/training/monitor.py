"""What a segment looks at while it trains: the losses of its steps, and evaluations where they are due and fit."""

import math
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor

from model.config import Data
from model.training.evaluation import evaluate
from model.training.learner import Step
from model.training.memory import give_back_freed, ran_out
from model.training.time_budget import MARGIN, WARM, TimeBudget
from tune.reports import EPOCHS_AS_NEW, WATCH_POINTS, WATCH_SHARE, Evaluation, LossTracker

CURVE_POINTS, CURVE_SHARE = 10, 0.02  # evaluations in a final segment; the largest share of its time for them
LISTED_POINTS = 20  # evaluations in a segment with `curve`, at equal distances in steps
WARM_UPS_BEFORE_AN_AVERAGE = 2  # before so many the average is not evaluated: it lags while the loss falls steeply

EXPLODED = 3.0
"""Nats above the first loss at which a trial has diverged, where it is so in two reads in a row."""


@dataclass
class RecentSteps:
    """What the latest steps gave: noted at once, and read now and then, which waits for the device."""

    first_loss: float | None = None
    """The first that was read in a life."""
    train_loss: float = math.nan
    """Mean over the steps between the last two reads."""
    gradient_norm: float = math.nan
    tokens_per_second: float = 0.0
    diverged: bool = False
    _exploding: bool = False
    _since: tuple[float, int] = 0.0, 0
    _losses: list[Tensor] = field(default_factory=list)
    _norm: Tensor | None = None
    _tokens: int = 0
    _seconds: float = 0.0

    def add(self, step: Step) -> None:
        """Take note of a step, without waiting for it."""
        self._losses.append(step.loss.view(-1))
        self._norm = step.gradient_norm
        self._tokens += step.tokens

    def add_seconds(self, seconds: float) -> None:
        """Take note of how long steps took."""
        self._seconds += seconds

    def forget_speed(self) -> None:
        """Forget tokens and seconds, as the latest step says nothing about the speed."""
        self._tokens, self._seconds = 0, 0.0

    def read(self) -> None:
        """Wait for the steps since the last read, and see whether the trial diverged; without steps, do nothing."""
        if not self._losses:
            return
        assert self._norm is not None, "each step has one"
        values = torch.stack([torch.cat(self._losses).mean(), self._norm]).tolist()  # one wait for both
        self.train_loss, self.gradient_norm = values
        total, steps = self._since
        count = sum(map(len, self._losses))
        self._since = total + self.train_loss * count, steps + count
        if self._seconds:
            self.tokens_per_second = self._tokens / self._seconds
        self._losses.clear()
        self._tokens, self._seconds = 0, 0.0
        if self.first_loss is None:
            self.first_loss = self.train_loss
        exploding = self.train_loss > self.first_loss + EXPLODED
        self.diverged = not math.isfinite(self.train_loss) or (exploding and self._exploding)
        self._exploding = exploding

    def take_mean_loss(self) -> float:
        """Wait for all steps since this was asked last, and return their mean loss; NaN where there were none."""
        self.read()
        (total, steps), self._since = self._since, (0.0, 0)
        return total / steps if steps else math.nan


class SegmentEvaluations:
    """The evaluations of one segment: which are due, and fit into its lease and the memory; where the loss may turn,
    also the lowest loss and the weights that had it.

    tokens: of the subset of a split; sizes: tokens of the whole splits. A look that does not fit is left out.
    """

    def __init__(
        self, time_budget: TimeBudget, data: Data, tokens: int, sizes: Mapping[str, int], recent: RecentSteps,
        lowest: LossTracker,
    ):  # fmt: skip
        self.time_budget, self.data, self.tokens, self.sizes, self.recent = time_budget, data, tokens, sizes, recent
        self.segment, self.phase_timer = time_budget.segment, time_budget.phase_timer
        self.learner, self.step_timer = time_budget.learner, time_budget.step_timer
        self.began = self.learner.steps
        self.listed_every = max(WARM, (self.segment.steps or 0) // LISTED_POINTS)
        self.listed = self.learner.steps // self.listed_every
        self.next_point, self.points = math.inf, CURVE_POINTS
        self.watching, self.lowest = self.segment.watched and bool(self.learner.best), lowest
        if self.watching:
            time_budget.looks = 2
        self.too_large: set[tuple[str, int | None]] = set()  # evaluations for which memory did not suffice

    def evaluate_if_due(self) -> dict[str, Evaluation | None]:
        """Return the evaluations that are due now in a final, a watched or a `curve` segment. The first comes early
        where none was timed yet in this life, to learn how long they take."""
        if self.segment.curve:
            before, self.listed = self.listed, self.learner.steps // self.listed_every
            due = self.listed > before and not self.time_budget.is_reached()
            return self.evaluate_subset(after=self.time_budget.closing_seconds()) if due else {}
        if self.learner.steps < self.began + WARM or not (self._watches() or self.segment.final):
            return {}
        found: dict[str, Evaluation | None] = {}
        known = "evaluation token" in self.phase_timer.measured()
        if self.phase_timer.clock() >= self.next_point or not known:
            found = self.evaluate_subset(after=self.time_budget.closing_seconds(), both=self.watching)
            self.points -= known
        elif self.next_point < math.inf:
            return found
        cost = self.time_budget.whole_seconds(self.time_budget.evaluation_tokens)
        interval = self.time_budget.training_left() / max(1, self.points)
        if self.watching:
            at_most = self.segment.device_seconds / WATCH_POINTS
            cost, interval = 2 * cost, min(at_most, WATCH_SHARE * self.step_timer.training_seconds)
        self.next_point = self.phase_timer.clock() + max(interval, cost / CURVE_SHARE)
        return found

    def _watches(self) -> bool:
        """Whether the text was seen so often that the loss may turn."""
        unseen = self.segment.watched and not self.watching
        if unseen and self.learner.tokens > EPOCHS_AS_NEW * self.data.training_tokens:
            self.watching, self.time_budget.looks, self.next_point = True, 2, self.phase_timer.clock()
        return self.watching

    def evaluate_subset(self, after: float = 0.0, *, both: bool = True) -> dict[str, Evaluation | None]:
        """Evaluate the subset, by the average too; return nothing where it does not fit. Where the loss may turn, the
        better of both weights are kept if they are the best so far."""
        valid, averaged = self.evaluate_both(after) if both else (self.evaluate("valid", self.tokens, after), None)
        if valid is None:
            return {}
        by_average = averaged is not None and averaged.loss < valid.loss
        kept, training = averaged if averaged and by_average else valid, self.recent.take_mean_loss()
        if self.watching and self.lowest.add(kept.loss, training):
            self._keep(by_average)
        if self.learner.dropout_is_new:
            self.lowest.reset()
        return {"valid": valid, "averaged": averaged, "trained": self.trained(after)}

    def trained(self, after: float = 0.0) -> Evaluation | None:
        """Evaluate as much of the training split, where the segment asks for it."""
        return self.evaluate("train", self.tokens, after) if self.segment.curve else None

    def _keep(self, by_average: bool) -> None:
        """Copy the weights, or their average, and what else the model keeps."""
        average = self.learner.average
        with average.applied() if average and by_average else nullcontext():
            weights = {name: parameter.detach().clone() for parameter, name in self.learner.parameter_names.items()}
        self.learner.best = weights | self.learner.buffers()

    def go_back(self, best: dict[str, Tensor]) -> None:
        """Restore the best weights that were seen, as the end is worse, without an average beside them."""
        for parameter, name in self.learner.parameter_names.items():
            parameter.detach().copy_(best.pop(name))
        self.learner.set_buffers(best)
        self.learner.average = None

    def evaluate_both(self, after: float = 0.0) -> tuple[Evaluation | None, Evaluation | None]:
        """Evaluate the subset by the weights as they are, and by their average where there is one."""
        valid = self.evaluate("valid", self.tokens, after)
        early = self.learner.steps < WARM_UPS_BEFORE_AN_AVERAGE * self.learner.config.warm_up_steps
        if self.learner.average is None or valid is None or early:
            return valid, None
        with self.learner.average.applied():
            return valid, self.evaluate("valid", self.tokens, after)

    def evaluate(self, split: str, tokens: int | None, after: float = 0.0) -> Evaluation | None:
        """Evaluate a split; None where that does not fit, or not to its end, before the `after` seconds of what must
        follow, or not into memory, now or before.

        A whole split needs no margin to begin: each of its batches has one, so only the evaluation itself is at risk.
        """
        if (split, tokens) in self.too_large:
            return None
        expected = (
            self.time_budget.whole_seconds(self.sizes[split])
            if tokens is None
            else MARGIN * self.time_budget.evaluation_seconds(min(tokens, self.sizes.get(split, tokens)))
        )
        if self.phase_timer.seconds_left() < expected + after:
            return None
        before = self.phase_timer.clock()

        def go_on() -> bool:
            nonlocal before
            now = self.phase_timer.clock()
            self.phase_timer.observe("evaluation batch", now - before)
            before = now
            expected = self.phase_timer.expected("evaluation batch", 0.0)
            return self.phase_timer.seconds_left() >= MARGIN * expected + after

        evaluation = None
        with self.phase_timer.charging("evaluation"):
            try:
                evaluation = evaluate(
                    self.learner.model,
                    self.learner.config,
                    self.data,
                    split,
                    tokens=tokens,
                    device=self.learner.device,
                    go_on=go_on,
                    clock=self.phase_timer.clock,
                )
            except Exception as error:
                if not ran_out(error):
                    raise
                self.too_large.add((split, tokens))
            go_on()  # takes note of the last batch
            if (split, tokens) in self.too_large:
                give_back_freed()
        if evaluation is not None:
            self.time_budget.learn_evaluation(evaluation)
        return evaluation
