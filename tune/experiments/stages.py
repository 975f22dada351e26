"""What the seconds of a training go to, as upstream trains nanoGPT (eager, plain AdamW, each batch from a memory map
that is opened anew, evaluations on random batches of both splits) and as this project does.
"""

import math
import tempfile
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
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
from model.nn.precision import native
from model.training.learner import Learner, Step
from model.training.time_budget import Segment
from model.training.train import train
from tune.backend.worker_group import Place, Said
from tune.devices import Devices
from tune.errors import UserError
from tune.experiments.base import Experiment, ExperimentSettings, Point, Row, Table
from tune.experiments.methods_tables import REPORT
from tune.experiments.tables import figure, published_by

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
        allow_fast_products()
        torch.manual_seed(config.seed)
        self.config, self.device, self.clock = config, device, clock
        self.rows = max(1, round(config.batch_tokens / config.context))
        self.files = {split: folder / f"{split}.bin" for split in ("train", "valid")}
        for split, file in self.files.items():
            getattr(data, split).astype(np.uint16).tofile(file)
        self.model = build_model(config, vocabulary=data.vocabulary, pad=pad_of(data)).to(device)
        tell_stages(self.model, clock)
        matrices = [weight for weight in self.model.parameters() if weight.dim() >= 2]
        rest = [weight for weight in self.model.parameters() if weight.dim() < 2]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=PEAK_RATE, betas=(0.9, 0.99), fused=device.type == "cuda")

    def steps(self, count: int) -> Iterator[float]:
        """The loss of each step."""
        for step in range(count):
            if step % EVALUATION_EVERY == 0:
                self.evaluate()
            yield self.step(upstream_rate(step, count))

    def step(self, rate: float) -> float:
        """One step; its loss in nats a token is read at once, as upstream logs it."""
        self.clock.enter("data")
        tokens, targets = self.batch("train")
        self.clock.enter("forward")
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        with self.products():
            logits = self.model(tokens)  # the clock enters "loss and backward" at its end
            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        self.clock.enter("optimizer")
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.clock.enter("rest")
        return loss.item()

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Mean loss on some batches of each split; they share the training's random stream."""
        self.model.eval()
        found = {}
        for split in self.files:
            losses = []
            for _ in range(EVALUATION_BATCHES):
                tokens, targets = self.batch(split)
                with self.products():
                    losses.append(F.cross_entropy(self.model(tokens).flatten(0, 1), targets.flatten()).item())
            found[split] = sum(losses) / len(losses)
        self.model.train()
        return found

    def batch(self, split: str) -> tuple[Tensor, Tensor]:
        """Tokens and what follows each, both (B, T)."""
        data, length = np.memmap(self.files[split], dtype=np.uint16, mode="r"), self.config.context
        begins = torch.randint(len(data) - length, (self.rows,)).tolist()
        pair = (
            torch.stack([torch.from_numpy(data[begin : begin + length].astype(np.int64)) for begin in places])
            for places in (begins, [begin + 1 for begin in begins])
        )
        if self.device.type == "cuda":
            pair = (each.pin_memory().to(self.device, non_blocking=True) for each in pair)
        tokens, targets = pair
        return tokens, targets

    def products(self) -> AbstractContextManager[object]:
        """Their arithmetic."""
        small = self.config.precision == "bf16"
        return torch.autocast(self.device.type, torch.bfloat16) if small else nullcontext()


def allow_fast_products() -> None:
    """Torch's switches as upstream sets them, or finds them."""
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    torch.backends.mkldnn.matmul.fp32_precision = "ieee"  # type: ignore[attr-defined]


def upstream_rate(step: int, steps: int) -> float:
    """A cosine from the peak, after the warm-up, to a tenth of it at the end."""
    if step < WARM_UP_STEPS:
        return PEAK_RATE * (step + 1) / (WARM_UP_STEPS + 1)
    share = (step - WARM_UP_STEPS) / (steps - WARM_UP_STEPS)
    return LAST_RATE + 0.5 * (PEAK_RATE - LAST_RATE) * (1 + math.cos(math.pi * share))


THEIR_NAMES = {"data": "data loading", "rest": "other"}


def ways(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of each way, by what it is called."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if "stages" in row:
            found.setdefault(f"{row['asked']['way']}, {row['config']['precision']}", []).append(row)
    return found


def stage_seconds(rows: Sequence[Row]) -> dict[str, float]:
    """Of each stage, the median over the seeds."""
    return {stage: median(row["stages"][stage] for row in rows) for stage in STAGES}


def tables(rows: Sequence[Row]) -> list[Table]:
    """Seconds and shares, ours and the report's."""
    found = ways(rows)
    if not found:
        return []
    theirs = published_seconds()
    columns = ["stage", *(each for way in found for each in (f"{way}, s", "share")), "published, s", "share"]
    lines = [[stage, *_cells(found.values(), stage), *_theirs(theirs, stage)] for stage in STAGES]
    total = [cell for some in found.values() for cell in (f"{sum(stage_seconds(some).values()):.2f}", "")]
    lines.append(["all", *total, f"{sum(theirs.values()):.1f}", ""])
    note = (
        "of nanoGPT, as many steps each way; before: upstream's loop, eager, plain AdamW, batches from a memory map "
        "opened anew, an evaluation each 250 steps; after: a segment of a search's trial. Published: RoBERTa-base."
    )
    return [Table(title="Stages of a training", columns=columns, rows=lines, note=note)]


def published_seconds() -> dict[str, float]:
    """Of the report's stages."""
    return {stage: row["seconds"] or 0.0 for (stage,), row in published_by("stages", "stage").items()}


def _cells(ways: Iterable[Sequence[Row]], stage: str) -> Iterator[str]:
    """Seconds and share of a stage, way by way."""
    for rows in ways:
        seconds = stage_seconds(rows)
        yield from (f"{seconds[stage]:.2f}", f"{seconds[stage] / sum(seconds.values()):.1%}")


def _theirs(seconds: Mapping[str, float], stage: str) -> tuple[str, str]:
    """The report has the optimizer under other."""
    found = seconds.get(THEIR_NAMES.get(stage, stage))
    return figure(found), figure(None if found is None else found / sum(seconds.values()), "{:.1%}")


BEFORE, AFTER = "before", "after"
EVALUATION_TOKENS = 16_384
TELL_SECONDS = 1.0
RESERVE_SECONDS = 2.0


def work(place: Place, asked: dict[str, Any]) -> Iterator[Said]:
    """Train, and say what each stage took. UserError: the device lacks the precision, or the seconds were too few."""
    there = native(place.device)
    if place.config.precision not in there:
        raise UserError(f"precision: {place.config.precision!r} is not native to this device: {', '.join(there)} are")
    clock = StageClock(place.device)
    clock.enter("rest")
    done = yield from (upstream if asked["way"] == BEFORE else own)(place, asked["steps"], clock)
    stages = clock.seconds()
    if done < (steps := asked["steps"]):
        raise UserError(f"{done:,} of {steps:,} steps were done when the seconds were over; give more --budget")
    yield Said(what="steps", row={"steps": done, "stages": stages})


def upstream(place: Place, steps: int, clock: StageClock) -> Generator[Said, None, int]:
    """How many steps were taken upstream's way."""
    assert isinstance(place.data, TextData), "the experiment is of nanoGPT alone"
    done, told = 0, time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ration-") as folder:
        training = UpstreamTraining(place.config, place.data, place.device, Path(folder), clock)
        for _ in training.steps(steps):
            done += 1
            if place.left() < RESERVE_SECONDS:
                break
            if time.monotonic() - told >= TELL_SECONDS:
                yield Said(what="steps")
                told = time.monotonic()
    return done


def own(place: Place, steps: int, clock: StageClock) -> Generator[Said, None, int]:
    """How many steps a segment of the search's took, to a rung."""
    segment = Segment(device_seconds=place.left() - RESERVE_SECONDS, steps=steps)
    done = 0
    for progress in train(
        place.config, place.data, segment, folder=place.folder, evaluation_tokens=EVALUATION_TOKENS,
        device=place.device, make=partial(StagedLearner, clock=clock),
    ):  # fmt: skip
        done = progress.steps
        yield Said(what="steps")
    return done


STEPS = 1_000
SECONDS_A_STEP = {"cpu": 0.12, "cuda": 0.03}
"""On a slow machine."""
FIXED_SECONDS = 10.0


def points(devices: Devices, settings: ExperimentSettings) -> list[Point]:
    """Upstream's way first, in whose process nothing of ours is set yet; then ours, in two precisions."""
    steps = max(1, round(settings.scale * STEPS))
    seconds = FIXED_SECONDS + steps * SECONDS_A_STEP[devices.kind]
    shape = {**REPORT, **{name: value for name, value in settings.fix.items() if name in REPORT}}
    upstream = "bf16" if devices.kind == "cuda" else "fp32"
    plain = "tf32" if "tf32" in devices.precisions else "fp32"
    found = []
    for number in range(settings.seeds):
        seed = {"seed": settings.seed + number} if number else {}
        for way, precision in ((BEFORE, upstream), (AFTER, plain), (AFTER, "bf16")):
            config = {**shape, "precision": precision, **seed}
            asked = {"way": way, "steps": steps}
            found.append(Point(devices=1, asked=asked, seconds=seconds, least=seconds, config=config))
    return found


def line(row: Row) -> str:
    """What came out, in short."""
    stage, whole = max(STAGES, key=lambda each: row["stages"][each]), sum(row["stages"].values())
    return f"{row['steps']:,} steps in {whole:.1f} s, {row['stages'][stage] / whole:.0%} of them {stage}"


STAGES_OF_A_TRAINING = Experiment(
    name="stages", about="what the seconds of a training go to, as upstream trains nanoGPT and as this project does",
    points=points, work=work, line=line, tables=tables, families=("nanogpt",), sets=("precision",),
)  # fmt: skip
