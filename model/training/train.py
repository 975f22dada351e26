"""The training loop of all families: one segment of a trial's life inside one lease."""

import math
import time
from collections.abc import Callable, Generator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from model.config import OLD_DEFAULTS, Config, Data
from model.training import checkpoint as checkpoints
from model.training.graph import make_learner
from model.training.learner import MakeLearner
from model.training.memory import PeakMemory
from model.training.monitor import RecentSteps, SegmentEvaluations
from model.training.time_budget import MARGIN, Decay, PhaseTimer, Segment, StepTimer, TimeBudget, warm_up
from tune.errors import UserError
from tune.reports import Ended, Evaluation, LossTracker, Report

YIELD_SECONDS = 1.0
CHECKPOINT_SECONDS, CHECKPOINT_SHARE = 60.0, 0.01  # between checkpoints in a long segment; their largest share of it
COMPILE_REPAYS = {"cpu": 200.0, "cuda": 90.0}
"""Seconds of training ahead that make torch.compile worth its time: where it takes c seconds and makes steps r times as
fast, it is repaid after c r / (r - 1). Measured, as c, r and when it is repaid:

On one core: nanogpt of context 256 d128 l4 27, 1.28, 123; d256 l3 21, 1.15, 161; translation l2 d128 37, 1.43, 123;
d256 35, 1.21, 202. The first one on a machine takes 10 s more.

On an H200 with six processes compiling, and gradients compared: nanogpt d128 l4 38, 1.49, 116; d512 l4 in steps of
16,384 tokens 34, 2.0, 67; translation d128 l4 61, 1.48, 188; d512 l4 54, 1.78, 123; upstream's nanogpt d768 l12 37,
1.30, 160; d384 l6 32, 1.09, 390. One process alone takes two thirds of c; the first three are then repaid after 80, 45,
125."""
QUEUED_SECONDS = 0.1  # of work that is queued on a GPU before the host waits for it


def train(
    config: Config,
    data: Data,
    segment: Segment,
    *,
    folder: Path,
    checkpoint: Path | None = None,
    evaluation_tokens: int,
    device: torch.device | str = "cpu",
    threads: int = 1,
    clock: Callable[[], float] = time.monotonic,
    stop: Callable[[], bool] = lambda: False,
    make: MakeLearner = make_learner,
) -> Generator[Report, None, None]:
    """Train one segment, from `checkpoint` if given, and leave checkpoints in `folder`.

    The lease runs from this call on; nothing (step, evaluation, checkpoint) begins that might not fit in it. A damaged
    checkpoint falls back to the newest sound one beside it, else to the beginning; another config is a UserError.
    `stop` is asked before each step: where it says yes, the segment ends with a checkpoint. `make` makes the learner.
    """
    phase_timer = PhaseTimer(segment.device_seconds, clock)
    torch.set_num_threads(threads)
    place = torch.device(device)
    return _Training(config, data, segment, phase_timer, folder, checkpoint, evaluation_tokens, place, stop, make).run()


@dataclass
class _Training:
    """The state of one call of train(); written: the newest checkpoint, of so many steps (`saved_steps`)."""

    config: Config
    data: Data
    segment: Segment
    phase_timer: PhaseTimer
    folder: Path
    written: Path | None
    evaluation_tokens: int
    device: torch.device
    stop: Callable[[], bool]
    make: MakeLearner

    def __post_init__(self) -> None:
        self.step_timer, self.decay, self.recent = StepTimer(), Decay(self.config.decay_share), RecentSteps()
        self.lowest, self.stopped, self.saved_steps = LossTracker(), False, 0
        self.compile_settled: float | None = None  # the dropout rate for which it was decided
        self.next_yield = self.phase_timer.clock() + YIELD_SECONDS
        self.next_save = self.phase_timer.clock() + CHECKPOINT_SECONDS

    def run(self) -> Generator[Report, None, None]:
        self._start()
        while not self.time_budget.is_reached() and self.time_budget.step_fits():
            self.stopped = self.stop()
            if self.stopped:
                break
            self._take_steps()
            point = self.looks.evaluate_if_due()
            if self.phase_timer.clock() >= self.next_yield or point:
                self._read()
                if self.recent.diverged or self.looks.lowest.has_turned:
                    break
                self._keep_safe()
                yield self._report(None, **point)
                self.phase_timer.enter("steps")
                self.next_yield = self.phase_timer.clock() + YIELD_SECONDS
        yield self._close()

    def _start(self) -> None:
        self.memory = PeakMemory(self.device)
        self.learner = self.make(self.config, self.data, self.device, self.segment.micro_batches)
        if self.segment.dry_step or self.device.type == "cuda":
            self.learner.dry_step()
        self._restore()
        self.micro_batches = self.segment.micro_batches
        sizes = {
            split: self.learner.family.span(self.config, self.data, split, None).tokens for split in ("valid", "test")
        }
        self.time_budget = TimeBudget(
            self.segment, self.phase_timer, self.learner, self.step_timer,
            evaluation_tokens=min(self.evaluation_tokens, sizes["valid"]), whole_tokens=sum(sizes.values()),
        )  # fmt: skip
        self.looks = SegmentEvaluations(
            self.time_budget, self.data, self.evaluation_tokens, sizes, self.recent, self.lowest
        )
        if not self.time_budget.step_fits():
            self.phase_timer.cap_hints(self.time_budget.evaluation_tokens)
        self.phase_timer.enter("steps")

    def _restore(self) -> None:
        if self.written is None:
            return
        self.written, saved = checkpoints.load_or_older(self.written)
        if saved is None:
            return
        if Config(**{**OLD_DEFAULTS, **saved.state["config"]}) != self.config:
            raise UserError(f"checkpoint: {self.written} holds another configuration; start the trial without it")
        self.learner.restore(saved)
        self.saved_steps = self.learner.steps
        self.step_timer = StepTimer(**saved.state["pace"])
        self.recent = RecentSteps(first_loss=saved.state["first_loss"])
        self.lowest = LossTracker(**saved.state.get("lowest", {}))  # an older checkpoint has none
        self.phase_timer.earlier = self.phase_timer.hints = saved.state["measured"]
        self.decay = Decay(self.config.decay_share, **saved.state["decay"])

    # Steps

    def _take_steps(self) -> None:
        """Take a step; on a GPU, as many as are queued at once."""
        self._begin_decay_when_due()
        if self._compiles_now():
            with self.phase_timer.charging("compile"):
                with self.memory.excluding():  # it loads the compiler
                    self.learner.compile()
                self._steps(1)
                self.learner.synchronize()
            self.recent.forget_speed()
            self.step_timer.recent.clear()
            self.phase_timer.longest.pop("step", None)
            return
        count = self._count()
        began = self.phase_timer.clock()
        self._steps(count)
        self.learner.synchronize()
        seconds = self.phase_timer.clock() - began
        self.phase_timer.observe("step", seconds)
        self.step_timer.add(seconds, count)
        self.recent.add_seconds(seconds)

    def _steps(self, count: int) -> None:
        self.recent.add(self.learner.take_steps([self._factor(later) for later in range(count)]))

    def _compiles_now(self) -> bool:
        """Whether to compile now: decided once a segment, when the step time is known, and again where dropout
        begins."""
        if self.compile_settled == self.learner.dropout or self.step_timer.settled is None:
            return False
        self.compile_settled = self.learner.dropout
        return self.learner.can_compile() and self.time_budget.training_left() >= COMPILE_REPAYS[self.device.type]

    def _count(self) -> int:
        step_seconds = self.step_timer.median()
        if self.device.type == "cpu" or self.step_timer.settled is None or step_seconds is None:
            return 1
        count = max(1, int(QUEUED_SECONDS / max(step_seconds, 1e-6)))
        if self.segment.curve:
            count = min(count, self.looks.listed_every - self.learner.steps % self.looks.listed_every)
        if self.segment.final and not self.decay.has_begun:
            unit = step_seconds if self.segment.steps is None else 1
            count = min(
                count, max(1, math.ceil(self.decay.left_before(self._training_done(), self._training_left()) / unit))
            )
        steps = self.time_budget.steps_left()
        return count if steps is None else min(count, steps)

    def _training_done(self) -> float:
        """Return the training so far, in the unit of `_training_left`."""
        return self.step_timer.training_seconds if self.segment.steps is None else self.learner.steps

    def _training_left(self, later: int = 0) -> float:
        """Return the training left in a final segment after so many more steps: in steps where it has a number of them,
        else in seconds."""
        steps = self.time_budget.steps_left()
        if steps is not None:
            return steps - later
        return self.time_budget.seconds_for_steps() - later * (self.step_timer.median() or 0.0)

    def _factor(self, later: int = 0) -> float:
        warm = warm_up(self.learner.steps + later, self.config.warm_up_steps)
        return warm * self.decay.factor(self._training_left(later))

    def _begin_decay_when_due(self) -> None:
        if self.segment.final and self.decay.is_due(self._training_done(), self._training_left()):
            if self.decay.fraction == 1.0:
                self._save(checkpoints.BEFORE_DECAY, after=self.time_budget.closing_seconds())
            self.decay.begin(self._training_left())

    def _read(self) -> None:
        """Read the steps since the last time; where a batch had to be cut, the peak of memory begins anew."""
        if self.learner.micro_batches > self.micro_batches:
            self.micro_batches = self.learner.micro_batches
            self.memory.reset()
        self.recent.read()

    # Checkpoints

    def _keep_safe(self) -> None:
        """Write a checkpoint now and then in a long segment: a kill costs no more than what came after it."""
        if self.phase_timer.clock() >= self.next_save:
            self._save(after=self.time_budget.closing_seconds())
            seconds = max(CHECKPOINT_SECONDS, self.time_budget.checkpoint_seconds() / CHECKPOINT_SHARE)
            self.next_save = self.phase_timer.clock() + seconds

    def _save(self, name: str = "", after: float = 0.0) -> bool:
        """Write a checkpoint if it fits before what must follow; return whether it did."""
        if self.phase_timer.seconds_left() < MARGIN * self.time_budget.checkpoint_seconds() + after:
            return False
        with self.phase_timer.charging("checkpoint"):
            began = self.phase_timer.clock()

            def measured() -> dict[str, Any]:
                self.phase_timer.observe("checkpoint", self.phase_timer.clock() - began)
                return {"measured": self.phase_timer.measured()}

            model, tensors = self.learner.model, self.learner.tensors()
            path = checkpoints.save(self.folder, model, tensors, self._state(), name, measured)
            measured()
        if name != checkpoints.BEFORE_DECAY:
            self.written, self.saved_steps = path, self.learner.steps
        return True

    def _state(self) -> dict[str, Any]:
        return self.learner.state() | {
            "config": asdict(self.config),
            "pace": self.step_timer.state(),
            "first_loss": self.recent.first_loss,
            "lowest": asdict(self.lowest),
            "decay": self.decay.state(self._training_left()),
        }

    # The end

    def _close(self) -> Report:
        self._read()
        if self.recent.diverged:
            return self._judged("diverged")
        took_steps, reached = self.learner.steps > self.looks.began, self.time_budget.is_reached()
        if self.stopped:
            self._save()
            return self._report("stopped")
        looks, seen = self.looks, dict[str, Evaluation | None]()
        at_end = self.segment.final and (reached or (self.segment.steps is None and took_steps))
        if not looks.lowest.has_turned and (looks.watching or not at_end):
            seen = looks.evaluate_subset(after=MARGIN * self.time_budget.checkpoint_seconds())
        if at_end or looks.lowest.has_turned:
            best, self.learner.best = self.learner.best, {}  # nothing goes on from the end
            if looks.lowest.has_turned or (
                seen and looks.lowest.is_above_lowest
            ):  # an end that was not evaluated may be the best
                looks.go_back(best)
                seen = {}
            if not self._save(f"{checkpoints.AFTER_DECAY}-{self.learner.steps:06d}"):
                return self._judged("lease", **seen)
            valid, averaged = (seen["valid"], seen["averaged"]) if seen else looks.evaluate_both()
            trained = seen["trained"] if seen else looks.trained()
            average = self.learner.average if averaged and valid and averaged.loss < valid.loss else None
            splits = ("valid", "test") if self.segment.whole else ()
            with nullcontext() if average is None else average.applied():
                of_all = {split: looks.evaluate(split, None) for split in splits}
            whole, test = of_all.get("valid"), of_all.get("test")
            ended: Ended = "turned" if looks.lowest.has_turned else "final"
            return self._judged(ended, valid=valid, averaged=averaged, whole=whole, test=test, trained=trained)
        if took_steps:
            self._save()
        return self._judged("rung" if reached else "lease", **seen)

    def _judged(self, ended: Ended, **evaluations: Evaluation | None) -> Report:
        valid = evaluations.get("valid")
        if ended == "diverged" or (valid is not None and not math.isfinite(valid.loss)):
            self.written, ended = None, "diverged"
        elif valid is None and ("valid", self.evaluation_tokens) in self.looks.too_large:
            ended = "unmeasured"
        return self._report(ended, **evaluations)

    def _report(self, ended: Ended | None, **evaluations: Any) -> Report:
        """Return a report; what follows until the generator goes on is idle time."""
        self.phase_timer.enter("idle")
        learner, checkpoint = self.learner, str(self.written) if ended and self.written else None
        return Report(
            steps=learner.steps,
            tokens=learner.tokens,
            parameters=learner.parameters,
            train_loss=self.recent.train_loss,
            learning_rate=self.config.learning_rate * self._factor(),
            gradient_norm=self.recent.gradient_norm,
            tokens_per_second=self.recent.tokens_per_second,
            step_seconds=(self.step_timer.median() or None) if ended != "stopped" or self.step_timer.is_warm else None,
            training_seconds=self.step_timer.training_seconds,
            memory_bytes=self.memory.bytes(),
            seconds=self.phase_timer.take(),
            micro_batches=learner.micro_batches,
            ran_out=learner.is_out_of_memory,
            valid_subset=self.evaluation_tokens,
            ended=ended,
            checkpoint=checkpoint,
            lost=learner.steps - self.saved_steps if ended else 0,
            **evaluations,
        )
