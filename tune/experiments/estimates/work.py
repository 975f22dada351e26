"""What the estimates experiment measures: the report's model on paper, and what torch and the device count of it."""

import time
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any

import torch

from model.account import counted_flops, kept_bytes, most_bytes, profiled_flops
from model.config import Config
from model.estimates import TRAINING
from model.experiments import word_estimates as paper
from model.experiments.intervals import interval
from model.experiments.nsight import counted_on_gpu
from model.experiments.word_model import Training, WordConfig, WordModel, block_training, model_training
from model.memory import available_bytes
from model.precision import prepare
from tune.distributed import Place, Said
from tune.errors import UserError
from tune.experiments.experiment import Row
from tune.sizes import bytes_text

MOST_STEPS, LEAST_STEPS = 20, 3
"""That are timed, after one that is not."""
MARGIN = 1.5
"""No step begins unless so many times the longest is left."""
ROOM = 1.2
"""Times the memory on paper must be there before a step begins."""


def work(place: Place, asked: dict[str, Any]) -> Iterator[Said]:
    """Do what was asked for and say what came of it."""
    return MEASURES[asked["measure"]](place, asked)


def word_config(config: Config) -> WordConfig:
    """The report's model in the shape of a trial."""
    return WordConfig(
        d_model=config.d_model, heads=config.heads, layers=config.layers, feed_forward=config.d_model,
        dropout=config.dropout,
    )  # fmt: skip


def measure_parameters(place: Place, asked: dict[str, Any]) -> Iterator[Said]:
    """Of the whole model by parts; `layered`: those that a tool sees which asks each layer for weight and bias."""
    config = word_config(place.config)
    named = {name: weights.numel() for name, weights in WordModel(config).named_parameters()}
    layered = sum(count for name, count in named.items() if name.rpartition(".")[2] in ("weight", "bias"))
    yield Said(what="steps", row={
        "parameters": sum(named.values()), "on_paper": paper.parts(config), "layered": layered,
        "left_out": [name for name in named if name.rpartition(".")[2] not in ("weight", "bias")],
    })  # fmt: skip


def measure_block(place: Place, asked: dict[str, Any]) -> Iterator[Said]:
    """A training step of the encoder block alone."""
    config, batch = word_config(place.config), asked["batch"]
    on_paper = {
        "reported_flops": paper.reported_flops(config, batch), "forward_flops": paper.block_flops(config, batch),
        "step_flops": TRAINING * paper.block_flops(config, batch), "kept_bytes": paper.block_kept_bytes(config, batch),
    }  # fmt: skip
    return measured(place, asked, lambda: block_training(config, batch, place.device), on_paper)


def measure_model(place: Place, asked: dict[str, Any]) -> Iterator[Said]:
    """An optimizer step of the whole model. UserError: it would not fit."""
    config, batch = word_config(place.config), asked["batch"]
    on_paper = {
        "forward_flops": paper.model_flops(config, batch), "step_flops": TRAINING * paper.model_flops(config, batch),
        "kept_bytes": paper.model_kept_bytes(config, batch), "step_bytes": paper.step_bytes(config, batch),
    }  # fmt: skip
    room = min(available_bytes(place.device), asked.get("memory_limit", float("inf")))
    if ROOM * on_paper["step_bytes"] > room:
        needed = bytes_text(ROOM * on_paper["step_bytes"])
        raise UserError(f"memory: a step of {batch} rows needs about {needed}, and there are {bytes_text(room)}")
    return measured(place, asked, lambda: model_training(config, batch, place.device), on_paper)


def measured(place: Place, asked: dict[str, Any], build: Callable[[], Training], on_paper: Row) -> Iterator[Said]:
    """What torch counts of a step that `build` makes, beside what is on paper, and the seconds that it takes."""
    prepare("fp32", place.device)
    training = build()
    training()
    yield Said(what="start")
    row = {f"paper_{name}": value for name, value in on_paper.items()} | counted(training, place.device)
    yield Said(what="steps")
    seconds = timed(training, place)
    yield Said(what="steps", row=row | {
        "tokens": asked["batch"] * WordConfig().length, "rounds": seconds,
        "step_seconds": interval(itemgetter("step"), {"step": seconds}),
    })  # fmt: skip


def counted(training: Training, device: torch.device) -> Row:
    """Of FLOPs the forward's and the step's; of memory what forward keeps, and the most that a step holds."""
    return {
        "forward_flops": counted_flops(training.forward),
        "step_flops": counted_flops(training),
        "profiled_flops": profiled_flops(training),
        "kept_bytes": kept_bytes(training.model, training.forward),
        "step_bytes": training.held_bytes() + most_bytes(training, device),
    }  # fmt: skip


def timed(training: Training, place: Place) -> list[float]:
    """Seconds of each step, as many as there is time for. UserError: there is time for too few."""
    seconds: list[float] = []
    while len(seconds) < MOST_STEPS and place.left() > MARGIN * max(seconds, default=0.0):
        began = time.perf_counter()
        training()
        if place.device.type == "cuda":
            torch.cuda.synchronize(place.device)
        seconds.append(time.perf_counter() - began)
    if len(seconds) < LEAST_STEPS:
        longest = max(seconds, default=0.0)
        raise UserError(f"{LEAST_STEPS} steps, of {longest:.1f} s each, did not fit: give a larger --budget")
    return seconds


def measure_nsight(place: Place, asked: dict[str, Any]) -> Iterator[Said]:
    """A training step of the block at each batch, by the GPU's own counters. UserError: they cannot be read here."""
    found = []
    for batch in asked["batches"]:
        gpu = counted_on_gpu(batch, place.device, place.left())
        found.append([batch, gpu.flops, gpu.dram_bytes])
        yield Said(what="steps")
    yield Said(what="steps", row={"nsight": found})


MEASURES = {
    "parameters": measure_parameters, "block": measure_block, "model": measure_model, "nsight": measure_nsight,
}  # fmt: skip
