"""Train one configuration as a search does: from checkpoint to checkpoint at a constant learning rate, with decays that
begin at some of them; and time its steps."""

import itertools
import json
import math
import shutil
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import torch

from model.config import Config, Data
from model.cost.allocations import AT_ONCE
from model.cost.memory_estimate import most_bytes
from model.training import checkpoint as checkpoints
from model.training.graph import make_learner
from model.training.learner import Learner
from model.training.time_budget import Segment
from model.training.train import train
from tune.backend.worker_group import Message, TaskContext
from tune.errors import UserError
from tune.experiments.base import Row
from tune.experiments.prices import EVALUATION_TOKENS
from tune.machine import write_whole

REPORT_SECONDS = 1.5
"""Most seconds of training between two reports: the first one comes as early as a search's first rung."""
ENDS = (15.0, 60.0, 180.0, 600.0, 1800.0)
"""Seconds of training at which lives with a decay end."""
RATIO = 1.25
"""Ratio between the steps at which the loss is measured and those of the measurement before."""


@dataclass(kw_only=True)
class Life:
    """Life of one configuration, kept in a file beside its checkpoints.

    valid, averaged, decayed: losses by the number of the report; step_seconds: as told when it began; every: steps
    between two reports; diverged: the report before which it diverged.
    """

    step_seconds: float
    every: int
    memory_bytes: int
    valid: dict[int, float | None] = field(default_factory=dict)
    averaged: dict[int, float | None] = field(default_factory=dict)
    decayed: dict[int, float | None] = field(default_factory=dict)
    parameters: int = 0
    tokens: int = 0
    steps: int = 0
    diverged: int | None = None

    @classmethod
    def of(cls, folder: Path) -> Self | None:
        """Return the life in a trial's folder; None: there is none."""
        try:
            kept = json.loads((folder / "life.json").read_text())
        except FileNotFoundError:
            return None
        return cls(**kept | {name: {int(at): loss for at, loss in kept[name].items()} for name in LOSSES})

    def keep(self, folder: Path) -> None:
        """Write the life into a trial's folder, whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / "life.json", json.dumps(asdict(self)))

    def report_at(self, seconds: float) -> int:
        """Return the number of the report nearest to so many seconds of training."""
        return max(1, round(seconds / (self.every * self.step_seconds)))

    def row(self, last: int, context: TaskContext) -> Row:
        """Return the row up to a report; losses that were not measured are None, as are all from a divergence on."""
        losses = {f"{name}_loss": [getattr(self, name).get(at) for at in range(1, last + 1)] for name in LOSSES}
        if not self.averaged:
            del losses["averaged_loss"]
        return {
            "family": context.config.family, "parameters": self.parameters, "steps_per_report": self.every,
            "tokens_per_report": round(self.every * self.tokens / self.steps),
            "text_tokens": context.data.training_tokens, **losses, "decay_share": context.config.decay_share,
            "warm_up_steps": context.config.warm_up_steps, "dropout_after": context.config.dropout_after,
            "memory_mb": self.memory_bytes / 1e6,
        }  # fmt: skip


LOSSES = ("valid", "averaged", "decayed")


def ends_of(seconds: float, report_every: float) -> list[float]:
    """Return the seconds at which lives with a decay end: those that a life of so many seconds at the constant rate
    reaches."""
    ends = (end * report_every / REPORT_SECONDS for end in ENDS)
    return [end for end in ends if end <= seconds * (1 + 1e-9)]


def last_report_before_decay(end: int, decay_share: float) -> int:
    """Return the last report before the decay of a life that ends at a report; 0: the decay begins before the first."""
    return math.floor((1 - decay_share) * end + 1e-9)


def measured_at(ends: Sequence[int], decay_share: float) -> list[int]:
    """Return the reports with a loss: each RATIO times as late as the one before, and those where a decay begins or
    ends."""
    powers = itertools.takewhile(lambda at: at < ends[-1], (math.ceil(RATIO**power) for power in itertools.count()))
    return sorted({*powers, *ends, *(last_report_before_decay(end, decay_share) for end in ends)} - {0})


def work(context: TaskContext, asked: dict[str, Any]) -> Iterator[Message]:
    """Time steps or train a life, as asked, like a search's training: with an average of the weights beside it."""
    config = replace(context.config, average=Config(family=context.config.family).average)
    context = replace(context, config=config)
    return time_steps(context, asked["seconds"]) if asked["measure"] == "step seconds" else train_life(context, asked)


TIMED_STEPS, SLOW_STEPS = 8, 3
"""Least number of timings that count, and of slow first ones that do not."""
CLOCKS = {"cpu": time.process_time, "cuda": time.perf_counter}
"""Clock that times steps, by kind of device: on a CPU core the process's own time, in which others on that core do not
count."""


def time_steps(context: TaskContext, seconds: float) -> Iterator[Message]:
    """Yield the median of the step times in so many seconds, at a rate of zero: nothing is learned.

    UserError: there was less time.
    """
    torch.set_num_threads(1)
    clock, count = CLOCKS[context.device.type], AT_ONCE[context.device.type]
    learner, times = make_learner(context.config, context.data, context.device), list[float]()
    yield Message(kind="start")
    while len(times) < SLOW_STEPS + TIMED_STEPS or count * sum(times) < seconds:
        if context.seconds_left() < 0:
            raise UserError(f"{count * len(times)} steps in the seconds that there were: go on with --resume")
        began = clock()
        learner.take_steps([0.0] * count)
        learner.synchronize()
        times.append((clock() - began) / count)
    yield Message(kind="steps", row={"step_seconds": statistics.median(times[SLOW_STEPS:])})


def make_uncompiled(config: Config, data: Data, device: torch.device, micro_batches: int) -> Learner:
    """Make a search's learner, but one that is never compiled: short segments are not worth it, and a long one would
    then have other step times than those that were measured."""
    learner = make_learner(config, data, device, micro_batches)
    learner.may_compile = False
    return learner


FULL_STEPS = 2
"""Steps to take; the second has all that any step has."""


def step_bytes(config: Config, data: Data, device: torch.device) -> int:
    """Return the most bytes of tensors alive at once while a model, its optimizer and its batches are made and take
    steps.

    Another learner takes steps before and is dropped: what a process allocates once, such as a resident mask, is not
    the training's.
    """

    def run() -> None:
        learner = Learner(config, data, device)
        for _ in range(FULL_STEPS):
            learner.step(1.0)
        learner.synchronize()

    run()
    return most_bytes(run, device)


END_SECONDS = 2.0
"""Seconds of a task that are kept for what follows its segments."""


def train_life(context: TaskContext, asked: dict[str, Any]) -> Iterator[Message]:
    """Train the life of a configuration from where it was left, and yield its row. UserError: its step time is not
    known.

    Its steps follow from the step time that is told when it begins, and so do all losses: a busy machine changes none.
    """
    if "step_seconds" not in asked:
        raise UserError("its step time was not measured: go on with --resume")
    life = Life.of(context.folder)
    if life is None:
        shutil.rmtree(context.folder, ignore_errors=True)
        life = Life(
            step_seconds=asked["step_seconds"], every=max(1, int(asked["report_every"] / asked["step_seconds"])),
            memory_bytes=step_bytes(context.config, context.data, context.device),
        )  # fmt: skip
        life.keep(context.folder)
    yield Message(kind="start")
    share, last = context.config.decay_share, life.report_at(asked["seconds"])
    ends = sorted({*map(life.report_at, ends_of(asked["seconds"], asked["report_every"])), last})
    for at in [0, *measured_at(ends, share)]:
        ways = [
            *([(at, False)] if at else []),
            *((end, True) for end in ends if last_report_before_decay(end, share) == at),
        ]
        for until, final in ways:
            if life.diverged is None and until not in (life.decayed if final else life.valid):
                yield from train_to_report(context, life, until, final=final)
    yield Message(kind="evaluation", row=life.row(last, context))


def train_to_report(context: TaskContext, life: Life, at: int, *, final: bool) -> Iterator[Message]:
    """Train up to a report; final: with a decay, in a folder of its own, from the newest checkpoint without a decay.

    UserError: there was less time.
    """
    folder = context.folder / f"decay-{at}" if final else context.folder
    segment = Segment(
        device_seconds=context.seconds_left() - END_SECONDS, steps=at * life.every, final=final, whole=False
    )
    for report in train(
        context.config, context.data, segment, folder=folder, evaluation_tokens=EVALUATION_TOKENS,
        device=context.device, checkpoint=checkpoints.latest(folder) or checkpoints.latest(context.folder),
        make=make_uncompiled,
    ):  # fmt: skip
        yield Message(kind=max(report.seconds, key=report.seconds.__getitem__))
    if report.ended != "diverged" and (report.valid is None or report.steps < at * life.every):
        raise UserError(f"{report.steps} of {segment.steps} steps in the seconds that there were: go on with --resume")
    loss, averaged = (None if each is None else each.loss for each in (report.valid, report.averaged))
    if final:  # a search keeps the better of the two
        life.decayed[at] = loss if averaged is None or loss is None else min(loss, averaged)
    else:
        life.parameters, life.steps, life.tokens = report.parameters, report.steps, report.tokens
        life.diverged, life.valid[at] = at if loss is None else None, loss
        if averaged is not None:
            life.averaged[at] = averaged
    life.keep(context.folder)
    if final:
        shutil.rmtree(folder, ignore_errors=True)
