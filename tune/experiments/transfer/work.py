"""What a device does for the transfer experiment: short lives of one shape over learning rates."""

import dataclasses
import math
import statistics
import time
from collections.abc import Iterator
from typing import Any

from model.config import Config
from model.experiments.short_life import ShortLife
from model.experiments.valley import next_rate
from model.scaling_rules import BASE_D_MODEL, BASE_LAYERS
from tune.distributed import Place, Said
from tune.errors import UserError

BASE = {"d_model": BASE_D_MODEL, "layers": BASE_LAYERS}
CORE_OCTAVES, FARTHEST_OCTAVES = 1.5, 6.0
"""From the recipe's rate: so far every shape's losses are known; so far one goes where the best lies at an end."""
FIRST_STEPS = 5
"""After these it is known how long a life takes."""
MARGIN = 1.2
"""No life begins unless so many times the longest is left."""


def work(place: Place, asked: dict[str, Any]) -> Iterator[Said]:
    """Losses over rates until the best one lies between two others, or time is out.

    UserError: not even the rates that all shapes have in common could be had.
    """
    losses: dict[int, list[float]] = {}
    octaves, longest, parameters = asked["octaves"], 0.0, 0
    core, farthest = core_rates(octaves), round(FARTHEST_OCTAVES / octaves)
    while (rate := next_rate(means(losses), core, farthest)) is not None:
        if losses and place.left() < MARGIN * longest * max(1, len(core) - len(losses)):
            if len(losses) >= len(core):
                break
            raise UserError(f"{len(core)} rates need about {len(core) * longest:.0f} s: there was less time")
        began = time.monotonic()
        losses[rate] = []
        for seed in range(asked["seeds"]):
            life = ShortLife(at(place, rate * octaves, seed), place.data, asked["steps"], place.device)
            yield Said(what="start")
            live(life, place)
            yield Said(what="steps")
            losses[rate].append(life.loss())
            yield Said(what="evaluation")
            parameters = life.learner.parameters
        longest = max(longest, time.monotonic() - began)
    yield Said(what="evaluation", row={
        "parameters": parameters, "learning_rate": place.config.learning_rate, "base": BASE,
        "losses": [[rate, [finite(loss) for loss in losses[rate]]] for rate in sorted(losses)],
    })  # fmt: skip


def core_rates(octaves: float) -> list[int]:
    """Those that all shapes have in common, in steps of so many octaves from the recipe's: nearest first."""
    most = math.floor(CORE_OCTAVES / octaves)
    return sorted(range(-most, most + 1), key=lambda step: (abs(step), step))


def means(losses: dict[int, list[float]]) -> dict[int, float]:
    """Of each rate over its seeds."""
    return {rate: statistics.fmean(each) for rate, each in losses.items()}


def at(place: Place, octaves: float, seed: int) -> Config:
    """The point's configuration at so many octaves from the recipe's rate."""
    config = place.config
    return dataclasses.replace(config, learning_rate=config.learning_rate * 2**octaves, seed=config.seed + seed)


def live(life: ShortLife, place: Place) -> None:
    """All steps. UserError as soon as it is clear that there is no time for them."""
    began, steps = time.monotonic(), life.steps_left
    for done in range(1, steps + 1):
        life.step()
        if done == FIRST_STEPS:
            life.learner.wait()
            seconds = (time.monotonic() - began) / done * steps
            if place.left() < seconds - (time.monotonic() - began):
                raise UserError(f"{steps} steps need about {seconds:.0f} s: there was less time")
        if place.left() < 0:
            raise UserError(f"{done} of {steps} steps were done when time was out")
    life.learner.wait()


def finite(loss: float) -> float | None:
    """What JSON can hold; None: diverged."""
    return loss if math.isfinite(loss) else None
