"""What a device does for the comparison of methods: a short run whose allocations are counted, then the training."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from model.experiments.allocations import count_allocations
from model.experiments.methods import MethodLearner
from model.families import FAMILIES
from model.precision import native
from model.training import Progress, Stretch, train
from tune.distributed import Place, Said
from tune.errors import UserError
from tune.experiments.methods.runs import ACCUMULATION, SGD

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
    stretch = Stretch(device_seconds=place.left(), steps=asked["steps"], micro_batches=parts, final=True)
    for progress in train(
        place.config, place.data, stretch, folder=place.folder, evaluation_tokens=EVALUATION_TOKENS,
        device=place.device, make=make,
    ):  # fmt: skip
        if progress.ended is None:
            yield Said(what="steps")
    yield Said(what="evaluation", row=row_of(progress, asked["steps"]) | {
        "flops_per_token": flops, "memory_bytes": found.peak_bytes, "allocations_a_step": found.a_step,
    })  # fmt: skip


def row_of(last: Progress, steps: int) -> dict[str, Any]:
    """What the training came to."""
    if last.ended == "diverged":
        raise UserError(f"diverged after {last.steps:,} of {steps:,} steps")
    if last.ended != "final" or last.valid is None:
        raise UserError(f"{last.steps:,} of {steps:,} steps were done when the seconds were over; give more --budget")
    return {
        "parameters": last.parameters, "steps": last.steps, "tokens": last.tokens, "seconds": last.training_seconds,
        "train_loss": last.train_loss, "valid_loss": last.valid.loss, "accuracy": last.valid.accuracy,
    }  # fmt: skip
