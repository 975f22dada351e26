"""What the seconds of a training go to, as upstream trains nanoGPT (eager, plain AdamW, each batch from a memory map
that is opened anew, evaluations on random batches of both splits) and as this project does.
"""

import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model.config import Config, Data, build_model, pad_of
from model.data.batches import Batch
from model.data.dataset import TextData
from model.training.learner import Learner, Step
from model.training.time_budget import Segment
from model.training.train import train
from tune.backend.worker_group import Place, Said
from tune.devices import Devices
from tune.errors import UserError
from tune.experiments.base import Experiment, ExperimentSettings, Point, Row, Table
from tune.experiments.methods_tables import REPORT
from tune.experiments.tables import figure, published

STAGES = ("data", "forward", "loss and backward", "optimizer", "evaluation", "rest")


class StageClock:
    """Notes when each stage begins; the one before ends there.

    On a GPU the notes are events in its stream, and only their sum waits for it: a stage has the seconds that the GPU
    was at it, or waited for it.
    """

    def __init__(self, device: torch.device):
        self._on_gpu = device.type == "cuda"
        self._begun: list[tuple[str, Any]] = []

    def enter(self, stage: str) -> None:
        """From now on the time is this stage's."""
        self._begun.append((stage, self._now()))

    def seconds(self) -> dict[str, float]:
        """Of each stage, from the first one's begin until now."""
        self.enter("rest")
        if self._on_gpu:
            torch.cuda.synchronize()
        found = dict.fromkeys(STAGES, 0.0)
        for (stage, begin), (_, end) in pairwise(self._begun):
            found[stage] += begin.elapsed_time(end) / 1e3 if self._on_gpu else end - begin
        return found

    def _now(self) -> Any:
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


class StagedLearner(Learner):
    """A Learner that tells a clock where it is; never compiled, as forward and loss are one then."""

    def __init__(self, config: Config, data: Data, device: torch.device, micro_batches: int = 1, *, clock: StageClock):
        self.clock = clock
        super().__init__(config, data, device, micro_batches)
        tell_stages(self.model, clock)

    def can_compile(self) -> bool:
        return False

    def step(self, factor: float) -> Step:
        self.clock.enter("data")
        made = super().step(factor)
        self.clock.enter("rest")
        return made

    def _gradients(self, batch: Batch) -> Tensor:
        loss = super()._gradients(batch)
        self.clock.enter("optimizer")
        return loss

    def _backward(self, batch: Batch, share: Tensor | None = None) -> Tensor:
        self.clock.enter("forward")
        return super()._backward(batch, share)


def tell_stages(model: nn.Module, clock: StageClock) -> None:
    """Let a model tell where its forward ends, in training, and where an evaluation begins and ends."""

    def ended(model: nn.Module, *_: object) -> None:
        if model.training:
            clock.enter("loss and backward")

    def switched(mode: bool = True) -> nn.Module:
        clock.enter("rest" if mode else "evaluation")
        return switch(mode)

    switch = model.train
    model.train = switched  # type: ignore[method-assign]
    model.register_forward_hook(ended)


PEAK_RATE, LAST_RATE, WARM_UP_STEPS = 1e-3, 1e-4, 100
EVALUATION_EVERY, EVALUATION_BATCHES = 250, 20
"""Steps between evaluations, and batches of each split; all as its README gives them for a CPU."""


class UpstreamTraining:
    """The model of a config, trained on a text whose tokens lie in a folder; `clock` is told the stages."""

    def __init__(self, config: Config, data: TextData, device: torch.device, folder: Path, clock: StageClock):
        torch.backends.cuda.matmul.fp32_precision = "tf32"  # torch's switches as upstream sets them, or finds them
        torch.backends.mkldnn.matmul.fp32_precision = "ieee"  # type: ignore[attr-defined]
        torch.manual_seed(config.seed)
        self.config, self.device, self.clock = config, device, clock
        self.rows = max(1, round(config.batch_tokens / config.context))
        self.files = {split: folder / f"{split}.bin" for split in ("train", "valid")}
        for split, file in self.files.items():
            getattr(data, split).astype(np.uint16).tofile(file)
        self.model = build_model(config, vocabulary=data.vocabulary, pad=pad_of(data)).to(device)
        tell_stages(self.model, clock)
        weights = list(self.model.parameters())
        groups = [{"params": [each for each in weights if each.dim() >= 2], "weight_decay": 0.1},
                  {"params": [each for each in weights if each.dim() < 2], "weight_decay": 0.0}]  # fmt: skip
        self.optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.99), fused=device.type == "cuda")

    def steps(self, count: int) -> Iterator[float]:
        """The loss of each step in nats a token, read at once as upstream logs it."""
        for step in range(count):
            if step % EVALUATION_EVERY == 0:
                self.evaluate()
            self.clock.enter("data")
            batch = self.batch("train")
            self.clock.enter("forward")
            for group in self.optimizer.param_groups:
                group["lr"] = upstream_rate(step, count)
            loss = self.loss(*batch)  # the clock enters "loss and backward" at the end of the model
            loss.backward()
            self.clock.enter("optimizer")
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            self.clock.enter("rest")
            yield loss.item()

    @torch.no_grad()
    def evaluate(self) -> None:
        """The loss of some batches of each split; they share the training's random stream."""
        self.model.eval()
        for split in self.files:
            for _ in range(EVALUATION_BATCHES):
                self.loss(*self.batch(split)).item()
        self.model.train()

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """In the arithmetic of the precision."""
        small = self.config.precision == "bf16"
        with torch.autocast(self.device.type, torch.bfloat16) if small else nullcontext():
            return F.cross_entropy(self.model(tokens).flatten(0, 1), targets.flatten())

    def batch(self, split: str) -> tuple[Tensor, Tensor]:
        """Tokens and what follows each, both (B, T)."""
        data, length = np.memmap(self.files[split], dtype=np.uint16, mode="r"), self.config.context
        begins = torch.randint(len(data) - length, (self.rows,)).tolist()
        tokens, targets = (
            torch.stack([torch.from_numpy(data[begin + later :][:length].astype(np.int64)) for begin in begins])
            for later in (0, 1)
        )
        if self.device.type == "cuda":
            tokens, targets = (each.pin_memory().to(self.device, non_blocking=True) for each in (tokens, targets))
        return tokens, targets


def upstream_rate(step: int, steps: int) -> float:
    """A cosine from the peak, after the warm-up, to a tenth of it at the end."""
    if step < WARM_UP_STEPS:
        return PEAK_RATE * (step + 1) / (WARM_UP_STEPS + 1)
    share = (step - WARM_UP_STEPS) / (steps - WARM_UP_STEPS)
    return LAST_RATE + 0.5 * (PEAK_RATE - LAST_RATE) * (1 + math.cos(math.pi * share))


THEIRS = {"data loading": "data", "other": "rest"}
"""The report's names, where they are others; it has the optimizer under other."""


def tables(rows: Sequence[Row]) -> list[Table]:
    """Seconds and shares, the median over the seeds; ours and the report's."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if "stages" in row:
            found.setdefault(f"{row['asked']['way']}, {row['config']['precision']}", []).append(row["stages"])
    if not found:
        return []
    ways = {way: {stage: median(each[stage] for each in some) for stage in STAGES} for way, some in found.items()}
    ways["published"] = {THEIRS.get(row["stage"], row["stage"]): row["seconds"] for row in published("stages")}
    sums = [sum(seconds.values()) for seconds in ways.values()]

    def cells(stage: str) -> Iterator[str]:
        for seconds, whole in zip(ways.values(), sums, strict=True):
            yield figure(seconds.get(stage), "{:.2f}")
            yield figure(seconds.get(stage), "{:.1%}", 1 / whole)

    columns = ["stage", *(each for way in ways for each in (f"{way}, s", "share"))]
    lines = [[stage, *cells(stage)] for stage in STAGES]
    lines.append(["all", *(cell for whole in sums for cell in (f"{whole:.2f}", ""))])
    note = (
        "of nanoGPT, as many steps each way; before: upstream's loop, eager, plain AdamW, batches from a memory map "
        "opened anew, an evaluation each 250 steps; after: a segment of a search's trial. Published: RoBERTa-base."
    )
    return [Table(title="Stages of a training", columns=columns, rows=lines, note=note)]


BEFORE, AFTER = "before", "after"
EVALUATION_TOKENS = 16_384
RESERVE_SECONDS = 2.0


def work(place: Place, asked: dict[str, Any]) -> Iterator[Said]:
    """Train, and say what each stage took. UserError: the seconds were too few."""
    clock, steps, done = StageClock(place.device), asked["steps"], 0
    clock.enter("rest")
    for done in (upstream if asked["way"] == BEFORE else own)(place, steps, clock):
        if done % EVALUATION_EVERY == 0:
            yield Said(what="steps")
    stages = clock.seconds()
    if done < steps:
        raise UserError(f"{done:,} of {steps:,} steps were done when the seconds were over; give more --budget")
    yield Said(what="steps", row={"steps": done, "stages": stages})


def upstream(place: Place, steps: int, clock: StageClock) -> Iterator[int]:
    """After each step how many were taken upstream's way."""
    assert isinstance(place.data, TextData), "the experiment is of nanoGPT alone"
    with tempfile.TemporaryDirectory(prefix="ration-") as folder:
        training = UpstreamTraining(place.config, place.data, place.device, Path(folder), clock)
        for done, _ in enumerate(training.steps(steps), start=1):
            yield done
            if place.left() < RESERVE_SECONDS:
                return


def own(place: Place, steps: int, clock: StageClock) -> Iterator[int]:
    """How many steps a segment of the search's took, to a rung."""
    segment = Segment(device_seconds=place.left() - RESERVE_SECONDS, steps=steps)
    for progress in train(
        place.config, place.data, segment, folder=place.folder, evaluation_tokens=EVALUATION_TOKENS,
        device=place.device, make=partial(StagedLearner, clock=clock),
    ):  # fmt: skip
        yield progress.steps


STEPS = 1_000
SECONDS_A_STEP = {"cpu": 0.12, "cuda": 0.03}
"""On a slow machine."""
FIXED_SECONDS = 10.0


def points(devices: Devices, settings: ExperimentSettings) -> list[Point]:
    """Upstream's way first, in whose process nothing of ours is set yet; then ours, in the device's precisions."""
    steps = max(1, round(settings.scale * STEPS))
    seconds = FIXED_SECONDS + steps * SECONDS_A_STEP[devices.kind]
    shape = {**REPORT, **{name: value for name, value in settings.fix.items() if name in REPORT}}
    plain = "tf32" if "tf32" in devices.precisions else "fp32"
    small = [(AFTER, "bf16")] if "bf16" in devices.precisions else []
    ways = [(BEFORE, "bf16" if small and devices.kind == "cuda" else "fp32"), (AFTER, plain), *small]
    return [
        Point(devices=1, asked={"way": way, "steps": steps}, seconds=seconds, least=seconds,
              config={**shape, "precision": precision} | ({"seed": settings.seed + number} if number else {}))
        for number in range(settings.seeds) for way, precision in ways
    ]  # fmt: skip


def line(row: Row) -> str:
    """What came out, in short."""
    stage, whole = max(STAGES, key=lambda each: row["stages"][each]), sum(row["stages"].values())
    return f"{row['steps']:,} steps in {whole:.1f} s, {row['stages'][stage] / whole:.0%} of them {stage}"


STAGES_OF_A_TRAINING = Experiment(
    name="stages", about="what the seconds of a training go to, as upstream trains nanoGPT and as this project does",
    points=points, work=work, line=line, tables=tables, families=("nanogpt",), sets=("precision",),
)  # fmt: skip
