"""Does one learning rate serve all shapes? Losses after 200 steps by width, depth and rate, with the rules and without.

The base's rate is the best one at the base shape; what another shape loses by it, against the best rate of its own, is
its regret.
"""

import contextlib
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import torch

from model import scaling_rules
from model.config import Config, Data
from model.evaluation import evaluate
from model.learner import Learner
from model.precision import native
from model.process import prepare_process
from model.scaling_rules import BASE_D_MODEL, BASE_LAYERS
from model.schedule import Decay, warm_up
from tests.bench.contenders import pairs, text
from tests.bench.table import Row

WIDTHS, DEPTHS = (32, 64, 128, 256, 512), (2, 4, 8, 16)
BASE = BASE_D_MODEL, BASE_LAYERS
STEPS, WARM_UP_STEPS = 200, 40
SEEDS = (0, 1)
EVALUATION_TOKENS = 16_384
FARTHEST = 8
"""Steps of sqrt 2 from the recipe's rate."""
REGRET = 0.03
"""Asked: nats, at most."""


@dataclass(frozen=True)
class Valley:
    """Losses by rate, in steps of sqrt 2 from the recipe's, down to the best one and a step beyond on either side."""

    losses: dict[int, float]

    @property
    def best(self) -> int:
        """The rate with the lowest loss."""
        return min(self.losses, key=self.losses.__getitem__)

    def regret(self, rate: int) -> float:
        """Nats lost by another rate."""
        return self.losses[rate] - self.losses[self.best]


def rates(data: Path, *, short: bool) -> Iterator[Row]:
    """Regret of the base's rate over widths and depths: a row for each family and parametrization."""
    prepare_process(1)
    widths, depths = ((64, 128), (2, 4)) if short else (WIDTHS, DEPTHS)
    shapes = sorted({(width, BASE_LAYERS) for width in widths} | {(BASE_D_MODEL, depth) for depth in depths})
    for family, prepared in (("nanogpt", text(data)), ("translation", pairs(data))):
        for ruled in (True, False):
            valleys = descended(family, prepared, shapes, ruled=ruled, short=short)
            base = valleys[BASE].best
            regrets = {shape: valley.regret(base) for shape, valley in valleys.items()}
            worst = max(regrets, key=regrets.__getitem__)
            rules = "with the rules" if ruled else "one rate for all tensors"
            yield Row(
                what=f"regret of the base's rate, {family}, {rules}",
                against="; ".join(
                    f"d{d} l{layers}: {regrets[d, layers]:.3f}, best {rate(family, valley.best):.1e}"
                    for (d, layers), valley in valleys.items()
                ),
                asked=f"<= {REGRET} nats at every shape" if ruled else "shows the drift",
                measured=f"at most {regrets[worst]:.3f}, at d{worst[0]} l{worst[1]}; base's {rate(family, base):.1e}",
                reached=regrets[worst] <= REGRET if ruled and not short else None,
            )  # fmt: skip


def descended(
    family: str, data: Data, shapes: list[tuple[int, int]], *, ruled: bool, short: bool
) -> dict[tuple[int, int], Valley]:
    """The valley of each shape; each has a loss at the base's best rate."""
    found: dict[tuple[int, int], Valley] = {}
    start = 0
    for shape in (BASE, *(each for each in shapes if each != BASE)):
        found[shape] = valley(lambda steps, shape=shape: loss(family, data, shape, steps, ruled, short), start)
        start = found[BASE].best
    return found


def valley(loss_at: Callable[[int], float], start: int) -> Valley:
    """Go down from `start` until both neighbours of the best rate are known."""
    losses = {start: loss_at(start)}
    while True:
        best = min(losses, key=losses.__getitem__)
        ahead = [rate for rate in (best - 1, best + 1) if rate not in losses and abs(rate) <= FARTHEST]
        if not ahead:
            return Valley(losses)
        losses[ahead[0]] = loss_at(ahead[0])


def rate(family: str, steps: int) -> float:
    """So many steps of sqrt 2 from the recipe's."""
    return float(Config(family=family).learning_rate * 2 ** (steps / 2))


def loss(family: str, data: Data, shape: tuple[int, int], steps: int, ruled: bool, short: bool) -> float:
    """Mean over seeds after a short life at a rate, its decay included."""
    d_model, layers = shape
    config = {
        "family": family, "d_model": d_model, "layers": layers, "dropout": 0.0, "learning_rate": rate(family, steps),
        "precision": "bf16" if "bf16" in native("cpu") else "fp32",
    }  # fmt: skip
    with contextlib.nullcontext() if ruled else unruled(d_model, layers):
        return statistics.mean(
            lived(Config(**config, seed=seed), data, 20 if short else STEPS) for seed in (SEEDS[:1] if short else SEEDS)
        )


def unruled(d_model: int, layers: int) -> contextlib.AbstractContextManager[object]:
    """Let each shape be its own base: all tensors learn at one rate, and no branch or logit is scaled."""
    return patch.multiple(scaling_rules, BASE_D_MODEL=d_model, BASE_LAYERS=layers)


def lived(config: Config, data: Data, steps: int) -> float:
    """Validation loss after `steps` steps."""
    learner, decay = Learner(config, data, torch.device("cpu")), Decay(config.decay_share)
    for step in range(steps):
        if decay.begins(step, steps - step):
            decay.begin(steps - step)
        learner.step(warm_up(step, WARM_UP_STEPS) * decay.factor(steps - step))
    evaluation = evaluate(learner.model, config, data, "valid", tokens=EVALUATION_TOKENS)
    assert evaluation is not None
    return evaluation.loss
