"""What a device does for the stages of a training: some steps, as upstream takes them or as this project does."""

import tempfile
import time
from collections.abc import Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from model.experiments.stages import StageClock, StagedLearner
from model.experiments.upstream_training import UpstreamTraining
from model.precision import native
from model.prepared import TextData
from model.training import Stretch, train
from tune.distributed import Place, Said
from tune.errors import UserError

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
    """How many steps a stretch of the search's took, to a rung."""
    stretch = Stretch(device_seconds=place.left() - RESERVE_SECONDS, steps=steps)
    done = 0
    for progress in train(
        place.config, place.data, stretch, folder=place.folder, evaluation_tokens=EVALUATION_TOKENS,
        device=place.device, make=partial(StagedLearner, clock=clock),
    ):  # fmt: skip
        done = progress.steps
        yield Said(what="steps")
    return done
