"""Ways to train nanoGPT, on several shapes: what each takes and what it gains; and shapes of equal cost."""

import gc
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import memray
import torch
from memray._memray import compute_statistics
from torch import nn
from torch.utils.checkpoint import checkpoint

from model.config import OF_ARCHITECTURE, Config, Data
from model.cost.estimates import flops_per_token
from model.families import FAMILIES
from model.nn.gpt import GPT, GPTConfig
from model.nn.precision import native
from model.training.learner import Learner
from model.training.time_budget import Segment
from model.training.train import train
from tune.backend.worker_group import Place, Said
from tune.devices import Devices
from tune.errors import UserError
from tune.experiments.base import Experiment, ExperimentSettings, Point, Row
from tune.experiments.methods_tables import ACCUMULATION, BASELINE, EQUAL, FULL, MIXED, SGD, SMALLER, tables
from tune.experiments.whole_training import Prices
from tune.reports import Report

REPORT: Mapping[str, Any] = {"architecture": "nanogpt", "d_model": 128, "heads": 4, "layers": 4, "dropout": 0.0}
"""The report's, as nanoGPT trains it on a CPU."""
CONTEXT, VOCABULARY = 64, 65
"""Of tiny shakespeare; another text's vocabulary moves the FLOPs by little."""
DOUBLED = ("nothing", "heads", "layers", "d_model")
LAYERS_TIMES = (0.25, 0.5, 2.0)
"""Of shapes that cost what one costs as it is: as many times its layers."""

Shape = Mapping[str, Any]


def doubled(shape: Shape, what: str) -> dict[str, Any]:
    """The shape with this dimension twice as large."""
    return {**shape, what: 2 * shape[what]} if what in shape else dict(shape)


def flops(shape: Shape) -> float:
    """Of a token in training."""
    sizes = {name: shape[name] for name in ("d_model", "heads", "layers")}
    config = GPTConfig(vocabulary=VOCABULARY, context=CONTEXT, architecture=shape["architecture"], **sizes)
    return flops_per_token(config, target=CONTEXT)


def equal_shapes(shape: Shape) -> list[dict[str, Any]]:
    """Others that cost what it costs: fewer layers, and wider; more layers, and narrower."""
    layers = {max(1, round(times * shape["layers"])) for times in LAYERS_TIMES} - {shape["layers"]}
    return [equal_shape(shape, count) for count in sorted(layers)]


def equal_shape(shape: Shape, layers: int) -> dict[str, Any]:
    """With so many layers, and of all widths that its heads divide evenly the one whose FLOPs are the closest."""
    step = 2 * shape["heads"] if shape["architecture"] == "modern" else shape["heads"]
    widths = range(step, 4 * shape["d_model"] + 1, step)
    made = ({**shape, "layers": layers, "d_model": width} for width in widths)
    return min(made, key=lambda each: abs(flops(each) - flops(shape)))


MOMENTUM = 0.9


class MethodLearner(Learner):
    """A Learner of a GPT that is never compiled, so that all methods are compared in one form.

    descends: by SGD with momentum in AdamW's place, with one rate for all parameters and no weight decay;
    checkpointing: as `recompute`.
    """

    def __init__(
        self, config: Config, data: Data, device: torch.device, micro_batches: int = 1, *, descends: bool = False,
        checkpointing: bool = False,
    ):  # fmt: skip
        self._descends = descends
        super().__init__(config, data, device, micro_batches)
        if checkpointing:
            recompute(self.model)

    def make_optimizer(self) -> torch.optim.Optimizer:
        if not self._descends:
            return super().make_optimizer()
        rate = self.config.learning_rate
        group = {"params": list(self.model.parameters()), "peak_rate": rate}
        return torch.optim.SGD([group], lr=rate, momentum=MOMENTUM, fused=True)

    def can_compile(self) -> bool:
        return False


def recompute(model: nn.Module) -> None:
    """Let each block of a GPT keep its input only, and compute the rest again for backward (Chen et al. 2016,
    arXiv:1604.06174). Weights and their names stay as they are.
    """
    assert isinstance(model, GPT), "of no other model the blocks are known"
    for block in model.transformer.h:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)


FIRST_STEPS = 2
"""Until all is there that a step needs."""


@dataclass(frozen=True, kw_only=True)
class Allocations:
    """peak_bytes: the most that was held at once, of all that was allocated from the learner's making on."""

    peak_bytes: int
    a_step: float


@dataclass
class _Counted:
    """Of a piece of code."""

    peak_bytes: int = 0
    count: int = 0


def count_allocations(make: Callable[[], Learner], device: torch.device, steps: int) -> Allocations:
    """Make a learner and let it step; the count is of so many steps after the first ones.

    Another one steps before, and is gone: what a process allocates once for each shape is not the learner's.
    """
    make().step(1.0)
    gc.collect()
    counting = _on_gpu if device.type == "cuda" else _by_memray
    with counting() as first:
        learner = make()
        for _ in range(FIRST_STEPS):
            learner.step(1.0)
    with counting() as rest:
        for _ in range(steps):
            learner.step(1.0)
    return Allocations(peak_bytes=first.peak_bytes, a_step=rest.count / steps)


@contextmanager
def _by_memray() -> Iterator[_Counted]:
    """Every call of the system's allocators, in all threads of this process."""
    found = _Counted()
    with tempfile.TemporaryDirectory(prefix="ration-") as folder:
        file = Path(folder) / "allocations"
        with memray.Tracker(file):
            yield found
        counted = compute_statistics(str(file))
    found.peak_bytes, found.count = counted.peak_memory_allocated, counted.total_num_allocations


@contextmanager
def _on_gpu() -> Iterator[_Counted]:
    """What torch hands out of the GPU's memory."""
    found = _Counted()
    torch.cuda.reset_peak_memory_stats()
    held, counted = torch.cuda.memory_allocated(), _handed_out()
    yield found
    torch.cuda.synchronize()
    found.peak_bytes, found.count = torch.cuda.max_memory_allocated() - held, _handed_out() - counted


def _handed_out() -> int:
    return int(torch.cuda.memory_stats().get("allocation.all.allocated", 0))


PARTS = 4
"""Of a batch whose gradients are accumulated."""
COUNTED_STEPS = 10
EVALUATION_TOKENS = 16_384


def work(place: Place, asked: dict[str, Any]) -> Iterator[Said]:
    """Train as asked. UserError: the device lacks the precision, it diverged, or the seconds were too few."""
    there = native(place.device)
    if place.config.precision not in there:
        raise UserError(f"precision: {place.config.precision!r} is not native to this device: {', '.join(there)} are")
    make = partial(MethodLearner, descends=asked["method"] == SGD, checkpointing=asked["checkpointing"] == "on")
    parts = PARTS if asked["method"] == ACCUMULATION else 1

    def learner() -> MethodLearner:
        return make(place.config, place.data, place.device, parts)

    flops = FAMILIES[place.config.family].flops_per_token(place.config, place.data)
    found = count_allocations(learner, place.device, COUNTED_STEPS)
    yield Said(what="start")
    segment = Segment(device_seconds=place.left(), steps=asked["steps"], micro_batches=parts, final=True)
    for report in train(
        place.config, place.data, segment, folder=place.folder, evaluation_tokens=EVALUATION_TOKENS,
        device=place.device, make=make,
    ):  # fmt: skip
        if report.ended is None:
            yield Said(what="steps")
    yield Said(what="evaluation", row=row_of(report, asked["steps"]) | {
        "flops_per_token": flops, "memory_bytes": found.peak_bytes, "allocations_a_step": found.a_step,
    })  # fmt: skip


def row_of(last: Report, steps: int) -> dict[str, Any]:
    """What the training came to."""
    if last.ended == "diverged":
        raise UserError(f"diverged after {last.steps:,} of {steps:,} steps")
    if last.ended != "final" or last.valid is None:
        raise UserError(f"{last.steps:,} of {steps:,} steps were done when the seconds were over; give more --budget")
    return {
        "parameters": last.parameters, "steps": last.steps, "tokens": last.tokens, "seconds": last.training_seconds,
        "train_loss": last.train_loss, "valid_loss": last.valid.loss, "accuracy": last.valid.accuracy,
    }  # fmt: skip


STEPS = 2_000
BATCH_TOKENS = OF_ARCHITECTURE["nanogpt"]["batch_tokens"]
SGD_RATE = 0.3
"""After 500 steps of the report's shape as good as .1 and far better than 1; with 3 it diverges."""
AGAIN = 1.5
"""Times the seconds of a step, where activations are computed again; where gradients are accumulated too."""
MARGIN = 1.3
"""Times what steps take on paper: other work on the machine must not end a training early."""
FIXED_SECONDS = 20.0
"""Of a point: counting allocations, evaluation, checkpoints."""


def methods(devices: Devices) -> dict[str, dict[str, Any]]:
    """What each changes of the configuration; the baseline has the precision that upstream takes on the device."""
    upstream = {"precision": "tf32" if "tf32" in devices.precisions else "fp32"}
    small = next((each for each in ("bf16", "fp16") if each in devices.precisions), "bf16")
    return {
        BASELINE: upstream, SMALLER: {**upstream, "batch_tokens": BATCH_TOKENS // 2}, ACCUMULATION: upstream,
        SGD: {**upstream, "learning_rate": SGD_RATE}, MIXED: {"precision": small}, FULL: {"precision": "fp32"},
    }  # fmt: skip


def points(devices: Devices, settings: ExperimentSettings) -> list[Point]:
    """Every method on every shape; shapes of equal cost; then all again with activations computed again."""
    return [point for number in range(settings.seeds) for point in points_of(devices, settings, number)]


def points_of(devices: Devices, settings: ExperimentSettings, number: int) -> Iterator[Point]:
    """Those of the n-th seed."""
    steps = max(1, round(settings.scale * STEPS))
    shape = {**REPORT, **{name: value for name, value in settings.fix.items() if name in REPORT}}
    recipe = {"learning_rate": OF_ARCHITECTURE["nanogpt"]["learning_rate"], "warm_up_steps": max(1, steps // 20)}
    seed, prices = {"seed": settings.seed + number} if number else {}, Prices(devices)

    def point(method: str, what: str, of: Shape, checkpointing: str = "off") -> Point:
        asked = {"method": method, "doubled": what, "checkpointing": checkpointing, "steps": steps}
        config = {**of, **recipe, **methods(devices)[method], **seed}
        again = (checkpointing == "on") + (method == ACCUMULATION)
        step = prices.step(Config(family="nanogpt", **config))
        seconds = FIXED_SECONDS + MARGIN * steps * step * AGAIN**again
        return Point(devices=1, asked=asked, seconds=seconds, least=seconds, config=config)

    for checkpointing in ("off", "on"):
        for what in DOUBLED:
            for method in methods(devices):
                yield point(method, what, doubled(shape, what), checkpointing)
        if checkpointing == "off":
            for equal in equal_shapes(shape):
                yield point(BASELINE, EQUAL, equal)


def line(row: Row) -> str:
    """What came out, in short."""
    return (f"{row['seconds']:.1f} s, at most {row['memory_bytes'] / 1e6:.0f} MB, validation loss "
            f"{row['valid_loss']:.4f} after {row['steps']:,} steps")  # fmt: skip


METHODS = Experiment(
    name="methods", about="ways to train nanoGPT, and shapes of equal cost: seconds, memory, allocations, loss",
    points=points, work=work, line=line, tables=tables, families=("nanogpt",), sets=("precision",),
)  # fmt: skip
