"""Short lives of one shape over learning rates, warm-up and decay included: down to the lowest loss, and a step
beyond.
"""

import dataclasses
import math
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from model.config import Config, Data
from model.nn.mup import BASE_D_MODEL, BASE_LAYERS
from model.training.evaluation import evaluate
from model.training.learner import Learner
from model.training.schedule import Decay, warm_up
from tune.backend.worker_group import Place, Said
from tune.errors import UserError

WARM_UP_SHARE = 0.2
"""Of the steps, at most; a longer life has the recipe's own warm-up."""
EVALUATION_TOKENS = 16_384


class ShortLife:
    """A model that learns for so many steps, each one asked for."""

    def __init__(self, config: Config, data: Data, steps: int, device: torch.device) -> None:
        self.learner = Learner(config, data, device)
        self.steps_left = steps
        self._decay = Decay(config.decay_share)
        self._warm_up_steps = min(config.warm_up_steps, round(WARM_UP_SHARE * steps))

    def step(self) -> None:
        """The next optimizer step."""
        done, left = self.learner.steps, self.steps_left
        if self._decay.begins(done, left):
            self._decay.begin(left)
        self.learner.step(warm_up(done, self._warm_up_steps) * self._decay.factor(left))
        self.steps_left -= 1

    def loss(self) -> float:
        """Nats a token on a part of the validation split; infinite or NaN where it diverged."""
        learner = self.learner
        evaluation = evaluate(
            learner.model, learner.config, learner.data, "valid", tokens=EVALUATION_TOKENS, device=learner.device
        )
        assert evaluation is not None, "nothing refuses it"
        return evaluation.loss


def loss_after(config: Config, data: Data, steps: int, device: torch.device) -> float:
    """The loss at the end of a life of so many steps."""
    life = ShortLife(config, data, steps, device)
    while life.steps_left:
        life.step()
    return life.loss()


@dataclass(frozen=True)
class Valley:
    """Losses by rate, in steps from some rate; one that is no number is the worst."""

    losses: Mapping[int, float]

    @property
    def best(self) -> int:
        """The rate with the lowest loss."""
        return min(self.losses, key=self._loss)

    @property
    def bracketed(self) -> bool:
        """Whether both neighbours of the best rate are known."""
        return {self.best - 1, self.best + 1} <= set(self.losses)

    @property
    def optimum(self) -> float:
        """Where between the rates the parabola through the best and its neighbours is lowest.

        The best itself where a neighbour is not known, or diverged.
        """
        below, at, above = (self.losses.get(self.best + step, math.nan) for step in (-1, 0, 1))
        curvature = below - 2 * at + above
        if not math.isfinite(curvature) or curvature <= 0:
            return float(self.best)
        return self.best + (below - above) / (2 * curvature)

    def regret(self, rate: int) -> float:
        """What another rate, which is known, loses against the best; at least so much where that is not bracketed."""
        return self._loss(rate) - self._loss(self.best)

    def _loss(self, rate: int) -> float:
        return math.inf if math.isnan(self.losses[rate]) else self.losses[rate]


def next_rate(losses: Mapping[int, float], begin: Iterable[int], farthest: int) -> int | None:
    """The rate whose loss is to be known next; None: both neighbours of the best one are, or lie too far off.

    begin: rates that are known first; farthest: no rate is farther from 0.
    """
    for rate in begin:
        if rate not in losses:
            return rate
    best = Valley(losses).best
    return next((rate for rate in (best - 1, best + 1) if rate not in losses and abs(rate) <= farthest), None)


BASE = {"d_model": BASE_D_MODEL, "layers": BASE_LAYERS}
CORE_OCTAVES, FARTHEST_OCTAVES = 1.5, 6.0
"""From the recipe's rate: so far every shape's losses are known; so far one goes where the best lies at an end."""
FIRST_STEPS = 5
"""After these it is known how long a life takes."""
MARGIN = 1.2
"""No life begins unless so many times the longest is left."""


def work(place: Place, asked: dict[str, Any]) -> Iterator[Said]:
    """Losses over rates until the best one lies between two others, or time is out; of `known` ones it goes on.

    UserError: not even the rates that all shapes have in common could be had.
    """
    losses = {rate: [math.nan if loss is None else loss for loss in each] for rate, each in asked.get("known", ())}
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
        "losses": [[rate, [finite(loss) for loss in losses[rate]]] for rate in sorted(losses)], "rate_seconds": longest,
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
