"""What each rank does for the scaling experiment, on one device or on several alike."""

import dataclasses
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any

from model.batches import batch_shape
from model.config import Config, Data
from model.evaluation import evaluate
from model.experiments.intervals import interval
from model.experiments.parallel_timing import Rounds, accumulations, all_reduces, gradient_bytes, in_turns, steps
from model.experiments.parallel_training import train_together
from model.experiments.step_model import ring
from model.learner import Learner
from model.parallel import ParallelLearner, agreement, make_learner, ranks
from model.schedule import warm_up
from tune.distributed import Place, Said
from tune.experiments.experiment import Row

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
    rounds = in_turns(steps(learner), learner, place.left)
    yield Said(what="steps", row=step_row(learner, rounds))


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
    rounds = in_turns(all_reduces(learner, sizes), learner, place.left)
    alone = [(each, interval(itemgetter(f"all_reduce {each}"), rounds)) for each in sizes]
    row = {"parameters": learner.parameters, "bytes": size, "alone": alone, "rounds": rounds}
    yield Said(what="steps", row=row | {
        "bit_equal": found.across_ranks, "against_whole_batch": found.whole_batch,
        "accumulated": list(found.accumulated.items()),
    })  # fmt: skip


def measure_accumulation(place: Place, asked: dict[str, Any]) -> Iterator[Said]:
    """The recipe's batch, one or several of them a step: seconds of a row, and what of it is communication."""
    learner = make_learner(place.config, place.data, place.device)
    yield Said(what="start")
    rounds = in_turns(accumulations(learner, COUNTS), learner, place.left)
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
    yield Said(what="steps", row={"parameters": learner.parameters, "rows": rows, "rounds": rounds} | row)


def measure_training(place: Place, asked: dict[str, Any]) -> Iterator[Said]:
    """Some steps with checkpoints: the same batches on any number of devices and no dropout, so the same loss."""
    config = dataclasses.replace(place.config, dropout=0.0)
    learner = make_learner(config, place.data, place.device)
    yield Said(what="start")

    def factor(step: int) -> float:
        return warm_up(step, config.warm_up_steps)

    seconds, loss = 0.0, None
    for trained in train_together(
        learner, steps=asked["steps"], every=asked["every"], factor=factor, left=place.left,
        folder=place.folder,
    ):  # fmt: skip
        seconds, loss = seconds + trained.seconds, trained.loss
        yield Said(what="steps")
    valid = evaluate(learner.model, config, place.data, "valid", tokens=EVALUATION_TOKENS, device=place.device)
    assert valid is not None, "nothing refuses it"
    yield Said(what="evaluation", row={
        "parameters": learner.parameters, "rows": recipe_rows(config, place.data), "steps": learner.steps,
        "tokens": learner.tokens, "train_loss": loss, "valid_loss": valid.loss, "accuracy": valid.accuracy,
        "training_seconds": seconds,
    })  # fmt: skip


MEASURES = {
    "steps": measure_steps, "network": measure_network, "accumulation": measure_accumulation,
    "training": measure_training,
}  # fmt: skip
