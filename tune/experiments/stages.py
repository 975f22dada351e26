"""How many seconds each stage of a training takes, upstream's way and this project's."""

import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model.config import Config, Data, build_model, pad_of
from model.data.batches import Batch
from model.data.dataset import TextData
from model.nn.precision import upstream_precision
from model.training.learner import Learner, Step
from model.training.time_budget import Segment
from model.training.train import train
from tune.backend.worker_group import Message, TaskContext
from tune.devices import Devices
from tune.errors import UserError
from tune.experiments.base import Experiment, ExperimentSettings, Point, Row, Table
from tune.experiments.methods import REPORT
from tune.experiments.prices import EVALUATION_TOKENS, step_price
from tune.experiments.tables import figure
from tune.published import OUR_STAGES, published
from tune.rows import stage_seconds

STAGES = ("data", "forward", "loss and backward", "optimizer", "evaluation", "rest")


class StageClock:
    """Clock that notes when each stage begins; the stage before ends there.

    On a GPU the notes are events in its stream, and only `seconds` waits for it: a stage has the seconds in which the
    GPU worked on it, or waited for it.
    """

    def __init__(self, device: torch.device):
        self._on_gpu = device.type == "cuda"
        self._begun: list[tuple[str, Any]] = []

    def enter(self, stage: str) -> None:
        """Begin a stage: from now on the time is its own."""
        now: Any = torch.cuda.Event(enable_timing=True) if self._on_gpu else time.perf_counter()
        if self._on_gpu:
            now.record()
        self._begun.append((stage, now))

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each stage, from the beginning of the first one until now."""
        self.enter("rest")
        if self._on_gpu:
            torch.cuda.synchronize()
        found = dict.fromkeys(STAGES, 0.0)
        for (stage, begin), (_, end) in pairwise(self._begun):
            found[stage] += begin.elapsed_time(end) / 1e3 if self._on_gpu else end - begin
        return found


def tell_stages(model: nn.Module, clock: StageClock) -> nn.Module:
    """Make a model tell the clock where its forward ends, in training, and where an evaluation begins and ends; return
    the model."""

    def ended(model: nn.Module, *_: object) -> None:
        if model.training:
            clock.enter("loss and backward")

    def switched(mode: bool = True) -> nn.Module:
        clock.enter("rest" if mode else "evaluation")
        return switch(mode)

    switch = model.train
    model.train = switched  # type: ignore[method-assign]
    model.register_forward_hook(ended)
    return model


class StagedLearner(Learner):
    """Learner that tells a clock which stage begins; never compiled, as forward and loss would then be one, nor a graph
    on a GPU, where a whole step would be."""

    may_compile = False

    def __init__(self, config: Config, data: Data, device: torch.device, micro_batches: int = 1, *, clock: StageClock):
        self.clock = clock
        super().__init__(config, data, device, micro_batches)
        tell_stages(self.model, clock)

    def step(self, factor: float) -> Step:
        self.clock.enter("data")
        made = super().step(factor)
        self.clock.enter("rest")
        return made

    def _backward(self, batch: Batch, share: Tensor | None = None) -> Tensor:
        self.clock.enter("forward")
        return super()._backward(batch, share)

    def _update(self) -> Tensor:
        self.clock.enter("optimizer")
        return super()._update()


PEAK_RATE, LAST_RATE, WARM_UP_STEPS = 1e-3, 1e-4, 100
EVALUATION_EVERY, EVALUATION_BATCHES = 250, 20
"""Learning rates, warm-up, steps between evaluations, and batches of each split in one: as in nanoGPT's README for a
CPU."""


class UpstreamTraining:
    """Upstream's own way to train nanoGPT: eager, plain AdamW, each batch from a memory map that is opened anew, and
    evaluations on random batches of both splits; the benchmarks compare ours with it too.

    It trains any model on a text whose tokens it writes into a folder, and reads only context, batch and precision of
    the config.

    enter: is called with each stage that begins, except "loss and backward", which begins where the model's forward
    ends.
    """

    def __init__(
        self, model: nn.Module, config: Config, data: TextData, device: torch.device, folder: Path,
        enter: Callable[[str], None] = lambda stage: None,
    ):  # fmt: skip
        torch.backends.cuda.matmul.fp32_precision = "tf32"  # torch's switches as upstream sets or finds them
        torch.backends.mkldnn.matmul.fp32_precision = "ieee"  # type: ignore[attr-defined]
        self.model, self.config, self.device, self.enter = model.to(device), config, device, enter
        self.files = {split: folder / f"{split}.bin" for split in ("train", "valid")}
        for split, file in self.files.items():
            getattr(data, split).astype(np.uint16).tofile(file)
        weights = list(self.model.parameters())
        groups = [{"params": [each for each in weights if each.dim() >= 2], "weight_decay": 0.1},
                  {"params": [each for each in weights if each.dim() < 2], "weight_decay": 0.0}]  # fmt: skip
        self.optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.99), fused=device.type == "cuda")

    def steps(self, count: int) -> Iterator[float]:
        """Train for so many steps; yield the loss of each."""
        for step in range(count):
            if step % EVALUATION_EVERY == 0:
                self.evaluate()
            yield self.step(upstream_rate(step, count))

    def step(self, rate: float) -> float:
        """Take a step; return its loss in nats a token, which is read at once, as upstream logs it."""
        self.enter("data")
        batch = self.batch("train")
        self.enter("forward")
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        loss = self.loss(*batch)
        loss.backward()
        self.enter("optimizer")
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.enter("rest")
        return loss.item()

    @torch.no_grad()
    def evaluate(self) -> None:
        """Compute the loss of some batches of each split; they are drawn from the training's random stream."""
        self.model.eval()
        for split in self.files:
            for _ in range(EVALUATION_BATCHES):
                self.loss(*self.batch(split)).item()
        self.model.train()

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the loss, computed in the config's precision."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.precision == "bf16"):
            return F.cross_entropy(self.model(tokens).flatten(0, 1), targets.flatten())

    def batch(self, split: str) -> tuple[Tensor, Tensor]:
        """Return random sequences of tokens and the token that follows each, both (B, T)."""
        data, length = np.memmap(self.files[split], dtype=np.uint16, mode="r"), self.config.context
        begins = torch.randint(len(data) - length, (max(1, round(self.config.batch_tokens / length)),)).tolist()
        tokens, targets = (
            torch.stack([torch.from_numpy(data[begin + later :][:length].astype(np.int64)) for begin in begins])
            for later in (0, 1)
        )
        if self.device.type == "cuda":
            tokens, targets = (each.pin_memory().to(self.device, non_blocking=True) for each in (tokens, targets))
        return tokens, targets


def upstream_rate(step: int, steps: int) -> float:
    """Return the learning rate at a step: a linear warm-up, then a cosine from the peak to a tenth of it at the end."""
    if step < WARM_UP_STEPS:
        return PEAK_RATE * (step + 1) / (WARM_UP_STEPS + 1)
    share = (step - WARM_UP_STEPS) / (steps - WARM_UP_STEPS)
    return LAST_RATE + 0.5 * (PEAK_RATE - LAST_RATE) * (1 + math.cos(math.pi * share))


BEFORE, AFTER, RESERVE_SECONDS = "before", "after", 2.0


def work(context: TaskContext, asked: dict[str, Any]) -> Iterator[Message]:
    """Train in the way that is asked for, and yield what each stage took. UserError: the seconds were too few."""
    clock, steps, done = StageClock(context.device), asked["steps"], 0
    clock.enter("rest")
    for done in (upstream if asked["way"] == BEFORE else own)(context, steps, clock):
        if done % EVALUATION_EVERY == 0:
            yield Message(kind="steps")
    if done < steps:
        raise UserError(f"{done:,} of {steps:,} steps were done in time: give a larger --budget with --resume")
    yield Message(kind="steps", row={"steps": done, "stages": clock.seconds()})


def upstream(context: TaskContext, steps: int, clock: StageClock) -> Iterator[int]:
    """Train upstream's way; yield after each step how many were taken."""
    config, data = context.config, context.data
    assert isinstance(data, TextData), "the experiment is of nanoGPT alone"
    torch.manual_seed(config.seed)
    model = tell_stages(build_model(config, vocabulary=data.vocabulary, pad=pad_of(data)), clock)
    with tempfile.TemporaryDirectory(prefix="ration-") as folder:
        training = UpstreamTraining(model, config, data, context.device, Path(folder), clock.enter)
        for done, _ in enumerate(training.steps(steps), start=1):
            yield done
            if context.seconds_left() < RESERVE_SECONDS:
                return


def own(context: TaskContext, steps: int, clock: StageClock) -> Iterator[int]:
    """Train one segment as a search does, to a rung; yield how many steps were taken so far."""
    segment = Segment(device_seconds=context.seconds_left() - RESERVE_SECONDS, steps=steps)
    for progress in train(
        context.config, context.data, segment, folder=context.folder, evaluation_tokens=EVALUATION_TOKENS,
        device=context.device, make=partial(StagedLearner, clock=clock),
    ):  # fmt: skip
        yield progress.steps


def tables(rows: Sequence[Row]) -> list[Table]:
    """Return the table of each stage's seconds and share, means over the seeds; ours and the report's."""
    ways = stage_seconds(row for row in rows if "stages" in row)
    if not ways:
        return []
    ways["published"] = {OUR_STAGES.get(row["stage"], row["stage"]): row["seconds"] for row in published("stages")}
    columns, lines = ["stage"], [[stage] for stage in (*STAGES, "all")]
    for way, seconds in ways.items():
        columns, whole = [*columns, f"{way}, s", "share"], sum(seconds.values())
        for cells in lines:
            value = whole if cells[0] == "all" else seconds.get(cells[0])
            cells += [figure(value, "{:.2f}"), figure(value, "{:.1%}", 1 / whole)]
    note = (
        "of nanoGPT, as many steps each way; before: upstream's loop, eager, plain AdamW, batches from a memory map "
        "opened each time, an evaluation each 250 steps; after: a segment of a search's trial, on a GPU kernel by "
        "kernel. Published: RoBERTa-base."
    )
    return [Table(title="Stages of a training", columns=columns, rows=lines, note=note)]


STEPS, FIXED_SECONDS = 1_000, 10.0
SECONDS_A_STEP = {"cpu": 0.12, "cuda": 0.03}
"""Seconds of a step of the report's shape on a slow machine: the least that a step is given."""
MARGINS = {BEFORE: 1.4, AFTER: 1.1}
"""By way, times the price of a step of ours, for evaluations and a busy machine; upstream's takes longer."""


def points(devices: Devices, settings: ExperimentSettings) -> list[Point]:
    """Return a point for each seed and way: upstream's first, in whose process nothing of ours is set yet at the first
    seed; then ours, in upstream's precision and, where the device has it, in bf16."""
    steps, recipe = max(1, round(settings.scale * STEPS)), Config.at(settings.set, family=settings.family)
    small = [(AFTER, "bf16")] if "bf16" in devices.precisions else []
    before = BEFORE, "bf16" if small and devices.kind == "cuda" else "fp32"
    ways = [before, (AFTER, upstream_precision(devices.precisions)), *small]
    found = []
    for seed in ({}, *({"seed": settings.seed + number} for number in range(1, settings.seeds))):
        for way, precision in ways:
            config = {**REPORT, **settings.fix, "precision": precision, **seed}
            step = max(SECONDS_A_STEP[devices.kind], MARGINS[way] * step_price(replace(recipe, **config), devices))
            seconds = FIXED_SECONDS + steps * step
            asked = {"way": way, "steps": steps}
            found.append(Point(devices=1, asked=asked, seconds=seconds, least_seconds=seconds, config=config))
    return found


def line(row: Row) -> str:
    """Return the result of a row in short."""
    stage, whole = max(STAGES, key=lambda each: row["stages"][each]), sum(row["stages"].values())
    return f"{row['steps']:,} steps in {whole:.1f} s, {row['stages'][stage] / whole:.0%} of them {stage}"


STAGES_OF_A_TRAINING = Experiment(
    name="stages", about="what the seconds of a training go to, as upstream trains nanoGPT and as this project does",
    points=points, work=work, line=line, tables=tables, families=("nanogpt",), sets=("precision", "architecture"),
    reads=("scale", "seeds"),
)  # fmt: skip
