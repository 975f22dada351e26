"""What each rank does for the experiment large_batch: one training, of so many steps and no fewer."""

import functools
import math
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from model.batches import batch_shape
from model.evaluation import evaluate
from model.experiments.gradient_noise import WatchedLearner, noise_scale, watched_learner
from model.experiments.lars import take_lars
from model.experiments.parallel_training import train_together
from model.experiments.rate_rules import RULES
from model.learner import Learner
from model.parallel import make_learner
from model.sampled import sampled
from tune.distributed import Place, Said
from tune.errors import UserError
from tune.experiments.experiment import Row

EVALUATION_TOKENS = 32_768
SAVES = 8
"""Checkpoints of a training; its last loss is the mean since the one before."""
EPOCHS, EPOCH_BATCHES = 10, 32
"""Of the small set that is gone through again and again."""
COURSE = 5
"""Parts of a training, of each of which the noise scale is told."""


def work(place: Place, asked: dict[str, Any]) -> Iterator[Said]:
    """Do what was asked for and say what came of it."""
    return MEASURES[asked["measure"]](place, asked)


def measure_training(place: Place, asked: dict[str, Any]) -> Iterator[Said]:
    """A batch so many times as large, its rate by a rule; and the noise of its gradients."""
    rule, learner = RULES[asked["rule"]], watched_learner(place.config, place.data, place.device)
    if rule.optimizer == "LARS":
        take_lars(learner, place.config.learning_rate)
    yield Said(what="start")
    row = yield from trained(learner, place, rule.factor, asked, place.folder / asked["rule"])
    yield Said(what="evaluation", row=row | noise(learner))


def measure_epochs(place: Place, asked: dict[str, Any]) -> Iterator[Said]:
    """Several epochs over a small set, mixed anew in each or not."""
    learner = make_learner(place.config, place.data, place.device)
    batches = sampled(learner, EPOCH_BATCHES, set_epoch=asked["set_epoch"])
    yield Said(what="start")
    name = f"set_epoch {asked['set_epoch']}"
    row = yield from trained(learner, place, RULES["unchanged"].factor, asked | {"times": 1}, place.folder / name)
    orders = {batches.order(epoch).tobytes() for epoch in range(asked["epochs"])}
    yield Said(what="evaluation", row=row | {"orders": len(orders), "epoch_samples": batches.order(0).size})


def trained(
    learner: Learner, place: Place, factor: Callable[..., float], asked: dict[str, Any], folder: Path
) -> Generator[Said, None, Row]:
    """The row of a training to its end. UserError: there was less time."""
    config, seconds, loss = place.config, 0.0, math.nan
    schedule = functools.partial(
        factor, steps=asked["steps"], times=asked["times"], warm_up_steps=config.warm_up_steps,
        decay_share=config.decay_share,
    )  # fmt: skip
    for done in train_together(
        learner, steps=asked["steps"], every=math.ceil(asked["steps"] / SAVES), factor=schedule, left=place.left,
        folder=folder,
    ):  # fmt: skip
        seconds, loss = seconds + done.seconds, done.loss
        yield Said(what="steps")
    if learner.steps < asked["steps"]:
        raise UserError(f"steps: there was time for {learner.steps} of {asked['steps']}: go on with --resume, and "
                         "with a larger --budget or a smaller --fix d_model or layers")  # fmt: skip
    valid = evaluate(learner.model, config, place.data, "valid", tokens=EVALUATION_TOKENS, device=place.device)
    assert valid is not None, "nothing refuses it"
    shape = batch_shape(place.data, batch_tokens=config.batch_tokens, context=config.context)
    sound = math.isfinite(valid.loss)
    return {
        "parameters": learner.parameters, "steps": learner.steps, "samples": learner.steps * shape.rows,
        "tokens": learner.tokens, "batch_tokens": learner.tokens / learner.steps,
        "train_loss": loss if math.isfinite(loss) else None, "valid_loss": valid.loss if sound else None,
        "accuracy": valid.accuracy if sound else None, "training_seconds": seconds,
    }  # fmt: skip


def noise(learner: WatchedLearner) -> Row:
    """The noise scale in tokens over the last half of training, and in each part of it."""
    signal, noise = learner.estimates()
    half = len(signal) // 2
    parts = zip(*(np.array_split(each, COURSE) for each in (signal, noise)), strict=True)
    course = [noise_scale(*part) for part in parts]
    return {
        "noise_scale": noise_scale(signal[half:], noise[half:]),
        "noise_course": [None if each is None else each[0] for each in course],
    }


MEASURES = {"training": measure_training, "epochs": measure_epochs}
