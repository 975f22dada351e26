"""Does one learning rate serve all shapes? Losses after 200 steps by width, depth and rate, with the rules and without.

The base's rate is the best one at the base shape; what another shape loses by it, against the best rate of its own, is
its regret.
"""

import math
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path

from model.config import Config, Data
from model.nn.mup import BASE_D_MODEL, BASE_LAYERS
from model.training.memory import prepare_process
from tests.bench.contenders import best_precision, pairs, text
from tests.bench.quality import last_report, life
from tests.bench.table import Row
from tune.experiments.transfer import Valley

WIDTHS, DEPTHS = (32, 64, 128, 256, 512), (2, 4, 8, 16)
BASE = BASE_D_MODEL, BASE_LAYERS
STEPS, WARM_UP_SHARE = 200, 0.2
EVALUATION_TOKENS = 16_384
SEEDS = {"nanogpt": 2, "translation": 5}
"""A translator's loss still falls steeply at its last step, and its seeds lie up to .25 nats apart."""
FARTHEST = 8
"""Steps of sqrt 2 from the recipe's rate."""
REGRET = 0.03
"""Asked: nats, at most."""


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
            bracketed = all(valley.bracketed for valley in valleys.values())
            rules = "with the rules" if ruled else "one rate for all tensors"
            yield Row(
                what=f"regret of the base's rate, {family}, {rules}",
                against="; ".join(
                    f"d{d} l{layers}: {regrets[d, layers]:.3f}, best {rate(family, valley.best):.1e}"
                    for (d, layers), valley in valleys.items()
                ),
                asked=f"<= {REGRET} nats at every shape, no best rate the last tried" if ruled else "shows the drift",
                measured=f"at most {regrets[worst]:.3f}, at d{worst[0]} l{worst[1]}; base's {rate(family, base):.1e}",
                reached=bracketed and regrets[worst] <= REGRET if ruled and not short else None,
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


def valley(loss_at: Callable[[float], float], start: float) -> Valley:
    """Go down from `start` until both neighbours of the best rate are known, or lie too far off."""
    losses, rate = dict[float, float](), start
    while rate is not None:
        losses[rate] = loss_at(rate)
        best = Valley(losses).best
        rate = next((each for each in (best - 1, best + 1) if each not in losses and abs(each) <= FARTHEST), None)
    return Valley(losses)


def rate(family: str, steps: float) -> float:
    """So many steps of sqrt 2 from the recipe's."""
    return float(Config(family=family).learning_rate * 2 ** (steps / 2))


def loss(family: str, data: Data, shape: tuple[int, int], steps: float, ruled: bool, short: bool) -> float:
    """Mean over seeds after a short life at a rate, its decay included; infinite where one diverged."""
    d_model, layers = shape
    count, seeds = (20, range(1)) if short else (STEPS, range(SEEDS[family]))
    config = {
        "family": family, "d_model": d_model, "layers": layers, "dropout": 0.0, "learning_rate": rate(family, steps),
        "precision": best_precision(), "scaling_rules": ruled, "average": 0.0,
        "warm_up_steps": min(Config(family=family).warm_up_steps, round(WARM_UP_SHARE * count)),
    }  # fmt: skip
    return statistics.mean(loss_after(Config(**config, seed=seed), data, count) for seed in seeds)


def loss_after(config: Config, data: Data, steps: int) -> float:
    """The loss at the end of a life of so many steps."""
    last = last_report(config, data, life(steps, whole=False), evaluation_tokens=EVALUATION_TOKENS)
    return last.valid.loss if last.valid else math.inf
