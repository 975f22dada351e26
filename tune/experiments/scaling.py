"""One configuration on 1, 2, 4 ... devices: what it gains, what it costs, and where the rest goes."""

import dataclasses
import math
import time
from collections.abc import Callable, Generator, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from kernels.timing import interval
from model.config import Config, Data
from model.data.batches import batch_shape
from model.training import checkpoint as checkpoints
from model.training.ddp import ParallelLearner, agreement, as_first, make_learner, mean_over_ranks, ranks
from model.training.evaluation import evaluate
from model.training.learner import Learner
from model.training.schedule import warm_up
from tune.backend.worker_group import Place, Said
from tune.devices import Devices
from tune.errors import UserError
from tune.experiments.base import Experiment, ExperimentSettings, Point, Row
from tune.experiments.parallel_timing import (
    Rounds,
    accumulations,
    all_reduces,
    gradient_bytes,
    steps,
    undisturbed,
)
from tune.experiments.scaling_tables import ring, tables
from tune.experiments.tables import figure, with_interval

COUNTS = (1, 2, 4, 8)
"""Of the parts in which gradients are accumulated."""
SWEEP = (1 / 64, 1 / 16, 1 / 4, 1, 4)
"""Sizes of the communication that is measured alone, in those of the gradient."""
EVALUATION_TOKENS = 16_384
FIRST_STEPS = 3
"""Before gradients are compared: at first most of them are zero."""


def work(place: Place, asked: dict[str, Any]) -> Iterator[Said]:
    """Do what was asked for and say what came of it."""
    return MEASURES[asked["measure"]](place, asked)


def of_rows(config: Config, data: Data, rows: int) -> Config:
    """The config with batches of so many rows, on all devices together."""
    target = batch_shape(data, batch_tokens=config.batch_tokens, context=config.context).target
    return dataclasses.replace(config, batch_tokens=rows * target)


def recipe_rows(config: Config, data: Data) -> int:
    """Rows of a batch as the family's recipe has it."""
    return batch_shape(data, batch_tokens=config.batch_tokens, context=config.context).rows


def measure_steps(place: Place, asked: dict[str, Any]) -> Iterator[Said]:
    """Steps with and without communication, and the communication alone."""
    learner = make_learner(of_rows(place.config, place.data, asked["rows"]), place.data, place.device)
    yield Said(what="start")
    rounds, others = undisturbed(steps(learner), learner, place.left)
    yield Said(what="steps", row=step_row(learner, rounds) | others)


def step_row(learner: Learner, rounds: Rounds) -> Row:
    """The figures of a step; those of communication where there is any."""
    batch = learner.batches.some()
    row: Row = {
        "parameters": learner.parameters, "tokens": batch.tokens, "epoch_steps": len(learner.batches), "rounds": rounds,
        "step_seconds": interval(itemgetter("step"), rounds),
        "tokens_per_second": interval(lambda median: batch.tokens / median["step"], rounds),
    }  # fmt: skip
    return row | communication(gradient_bytes(learner), rounds) if ranks() > 1 else row


def communication(size: int, rounds: Rounds) -> Row:
    """Of a step, as DistributedDataParallel's logger tells of it; a step should be one without it and what is exposed.

    communication: from the begin of the first bucket's to the end of the last one's.
    """
    whole, hidden, alone = "step communication", "step overlapped", f"all_reduce {size}"
    _, passed = ring(ranks())
    figures: dict[str, Callable[[Any], Any]] = {
        "unsynced_seconds": itemgetter("unsynced"),
        "communication_seconds": itemgetter(whole),
        "overlapped_seconds": itemgetter(hidden),
        "exposed_seconds": lambda median: median[whole] - median[hidden],
        "exposed_share": lambda median: (median[whole] - median[hidden]) / median["step"],
        "identity": lambda median: (median["unsynced"] + median[whole] - median[hidden]) / median["step"],
        "algorithm_bandwidth": lambda median: size / median[whole],
        "bus_bandwidth": lambda median: passed * size / median[whole],
        "alone_seconds": itemgetter(alone),
        "alone_bus_bandwidth": lambda median: passed * size / median[alone],
        "share_of_alone": lambda median: median[alone] / median[whole],
    }
    return {"bytes": size} | {name: interval(figure, rounds) for name, figure in figures.items()}


def measure_network(place: Place, asked: dict[str, Any]) -> Iterator[Said]:
    """Communication alone, of several sizes; and whether gradients agree."""
    learner = make_learner(place.config, place.data, place.device)
    assert isinstance(learner, ParallelLearner), "one device has nobody to talk to"
    yield Said(what="start")
    for _ in range(FIRST_STEPS):
        learner.step(1.0)
    found = agreement(learner)
    size = gradient_bytes(learner)
    sizes = [max(4, int(share * size) // 4 * 4) for share in SWEEP]
    rounds, others = undisturbed(all_reduces(learner, sizes), learner, place.left)
    alone = [(each, interval(itemgetter(f"all_reduce {each}"), rounds)) for each in sizes]
    row = {"parameters": learner.parameters, "bytes": size, "alone": alone, "rounds": rounds}
    yield Said(what="steps", row=row | others | {
        "bit_equal": found.across_ranks, "against_whole_batch": found.whole_batch,
        "accumulated": list(found.accumulated.items()),
    })  # fmt: skip


def measure_accumulation(place: Place, asked: dict[str, Any]) -> Iterator[Said]:
    """The recipe's batch, one or several of them a step: seconds of a row, and what of it is communication."""
    learner = make_learner(place.config, place.data, place.device)
    yield Said(what="start")
    rounds, others = undisturbed(accumulations(learner, COUNTS), learner, place.left)
    rows = recipe_rows(place.config, place.data)

    def row_seconds(count: int) -> Callable[[Any], Any]:
        return lambda median: median[f"accumulate {count}"] / (count * rows)

    def gain(count: int) -> Callable[[Any], Any]:
        return lambda median: row_seconds(1)(median) / row_seconds(count)(median)

    def exposed(count: int) -> Callable[[Any], Any]:
        step = f"accumulate {count}"
        return lambda median: (median[f"{step} communication"] - median[f"{step} overlapped"]) / median[step]

    figures = {"row_seconds": row_seconds, "gain": gain, "exposed_share": exposed}
    row = {name: [(count, interval(each(count), rounds)) for count in COUNTS] for name, each in figures.items()}
    yield Said(what="steps", row={"parameters": learner.parameters, "rows": rows, "rounds": rounds} | row | others)


def measure_training(place: Place, asked: dict[str, Any]) -> Iterator[Said]:
    """Some steps with checkpoints: the same batches on any number of devices and no dropout, so the same loss."""
    config = dataclasses.replace(place.config, dropout=0.0)
    learner = make_learner(config, place.data, place.device)
    yield Said(what="start")
    row = yield from trained(
        learner, place.left, steps=asked["steps"], every=asked["every"], folder=place.folder,
        factor=lambda step: warm_up(step, config.warm_up_steps),
    )  # fmt: skip
    yield Said(what="evaluation", row=row | {"rows": recipe_rows(config, place.data)})


MARGIN = 1.5
"""Nothing begins unless so many times the longest of its kind is left."""


def trained(
    learner: Learner, left: Callable[[], float], *, steps: int, every: int, factor: Callable[[int], float],
    folder: Path, evaluation_tokens: int = EVALUATION_TOKENS,
) -> Generator[Said, None, Row]:  # fmt: skip
    """The row of a training of all ranks from the newest checkpoint in `folder`, if there is one, to so many steps; no
    loss: it diverged. UserError: there was less time.

    every: steps between two checkpoints; factor: the share of the peak rates at a step. All ranks read one folder.
    """
    newest = checkpoints.latest(folder)
    if newest is not None:
        learner.restore(checkpoints.load(newest))
    whole, longest, loss = 0.0, 0.0, math.nan
    while learner.steps < steps and as_first(left(), learner.device) >= MARGIN * longest:
        began = time.perf_counter()
        losses = [learner.step(factor(learner.steps)).loss for _ in range(min(every, steps - learner.steps))]
        loss = mean_over_ranks(torch.stack(losses).mean()).item()
        whole += time.perf_counter() - began
        _save(learner, folder)
        longest = max(longest, time.perf_counter() - began)
        yield Said(what="steps")
    if learner.steps < steps:
        space = learner.family.space or {"d_model": (0,), "layers": (0,)}
        sizes = " or ".join(name for name, values in space.items() if isinstance(values[0], int))
        smaller = f", or begin anew with a smaller --fix {sizes}" if sizes else ""
        told = f"there was time for {learner.steps} of {steps}"
        raise UserError(f"steps: {told}: go on with --resume and a larger --budget{smaller}")
    config, data, device = learner.config, learner.data, learner.device
    valid = evaluate(learner.model, config, data, "valid", tokens=evaluation_tokens, device=device)
    assert valid is not None, "nothing refuses it"
    sound = math.isfinite(valid.loss)
    return {
        "parameters": learner.parameters, "steps": learner.steps, "tokens": learner.tokens,
        "train_loss": loss if math.isfinite(loss) else None, "valid_loss": valid.loss if sound else None,
        "accuracy": valid.accuracy if sound else None, "training_seconds": whole,
    }  # fmt: skip


def _save(learner: Learner, folder: Path) -> None:
    """Written by the first rank; no other goes on before it is there."""
    tensors, state = learner.tensors(), learner.state()
    if learner.rank == 0:
        checkpoints.save(folder, learner.model, tensors, state)
    if ranks() > 1:
        dist.barrier()


MEASURES = {
    "steps": measure_steps, "network": measure_network, "accumulation": measure_accumulation,
    "training": measure_training,
}  # fmt: skip


BATCHES = (32, 128, 512)
"""Rows, as the published report's."""
SECONDS = {"steps": 100.0, "network": 30.0, "accumulation": 60.0, "training": 60.0}
LEAST = {"steps": 10.0, "network": 15.0, "accumulation": 10.0, "training": 10.0}
TRAINING_STEPS, CHECKPOINT_STEPS = 200, 50


def counts(slots: int) -> list[int]:
    """1, 2, 4 ... and all of them."""
    return [*(2**power for power in range(slots.bit_length()) if 2**power < slots), slots]


def points(devices: Devices, settings: ExperimentSettings) -> list[Point]:
    """Each batch on one device; on more of them both that batch on each, and that batch on all of them together."""
    return [point for count in counts(devices.slots) for point in points_of(count)]


def points_of(count: int) -> list[Point]:
    """Those on so many devices."""
    rows = sorted({batch * each for batch in BATCHES for each in (1, count) if batch >= count})
    steps: list[dict[str, Any]] = [{"measure": "steps", "rows": each} for each in rows]
    training: dict[str, Any] = {"measure": "training", "steps": TRAINING_STEPS, "every": CHECKPOINT_STEPS}
    asked = [*steps, training]
    if count > 1:
        asked = [{"measure": "network"}, *steps, {"measure": "accumulation"}, training]
    return [
        Point(devices=count, asked=each, seconds=SECONDS[each["measure"]], least=LEAST[each["measure"]])
        for each in asked
    ]


def line(row: Row) -> str:
    """What came out, in short."""
    if "step_seconds" in row:
        beside = f", with {row['others_cores']:.1f} cores taken by others" if row["disturbed"] else ""
        return f"{with_interval(row['step_seconds'], '{:.1f}', 1e3)} ms a step{beside}"
    if "gain" in row:
        return f"4 at a time take a row {with_interval(dict(row['gain'])[4], '{:.2f}')} times as fast as 1"
    if "valid_loss" in row:
        return f"validation loss {figure(row['valid_loss'], '{:.4f}')} after {row['steps']} steps"
    return "gradients are " + ("bit-equal" if row["bit_equal"] else "NOT equal") + " on all ranks"


SCALING = Experiment(
    name="scaling", about="one configuration on 1, 2, 4 ... devices: speed-up, communication, accumulation",
    points=points, work=work, line=line, tables=tables, any_family=True,
)  # fmt: skip
