"""How good the models get: losses after equal tokens, how soon they are as good as the upstream loop, and whether one
learning rate serves all shapes.
"""

import math
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from model.config import Config, Data
from model.data.dataset import TextData
from model.nn.mup import BASE_D_MODEL, BASE_LAYERS
from model.training.time_budget import Segment
from model.training.train import train
from tests.bench.contenders import ROWS, SMALL, best_precision, gpt_config, pairs, plain_gpt, runs_here, text
from tests.bench.table import Row, not_native
from tune.experiments.stages import upstream_rate
from tune.experiments.transfer import LossesByRate
from tune.reports import Report

STEPS, SEEDS = 2_000, 5
UPSTREAM_LOSS = 1.904
UPSTREAM_TOKENS = ROWS[64] * 64
"""Of a step of upstream's."""
AMPLE_SECONDS = 1e5
UPSTREAM_GPU_LOSS = 1.4697
"""Of 10.7 M parameters, on random crops."""
CORE_MINUTES, CORE_LOSS = 20, 1.41
CORE_SHAPE = {"d_model": 256, "heads": 4, "layers": 4, "context": 256, "dropout": 0.1}
"""How long, the loss that is asked, and a shape."""
EVALUATION_TOKENS = 16_384
DEFAULT_MINUTES, TIMED_STEPS = (10, 60), 200
"""Of a core: what searches of 20 min and of 2 h give a family."""


def loss_at_equal_tokens(data: Path, *, short: bool) -> Iterator[Row]:
    """Loss on the last 10 % of tiny shakespeare after 1.536 M tokens, by seed, and what bf16 costs."""
    steps, seeds = (40, range(2)) if short else (STEPS, range(SEEDS))
    for architecture, asked in (("nanogpt", 1.755), ("modern", 1.63)):
        losses = {
            precision: [
                trained(recipe_config(architecture, precision, seed), text(data), steps * UPSTREAM_TOKENS)[0]
                for seed in seeds
            ]
            for precision in filter(runs_here, ("fp32", "bf16"))
        }
        for precision, found in losses.items():
            yield Row(
                what=f"loss after {steps * UPSTREAM_TOKENS / 1e6:.3f} M tokens, {architecture} {precision}",
                against=f"upstream's recipe: {UPSTREAM_LOSS}", asked=f"<= {asked}",
                measured=f"{statistics.mean(found):.3f} (seeds: {', '.join(f'{loss:.3f}' for loss in found)})",
                reached=None if short else statistics.mean(found) <= asked,
            )  # fmt: skip
        if "bf16" not in losses:
            yield not_native(f"what bf16 costs, {architecture}", "no quality lost")
            continue
        differences = [half - full for full, half in zip(losses["fp32"], losses["bf16"], strict=True)]
        mean, error = statistics.mean(differences), statistics.stdev(differences) / len(differences) ** 0.5
        yield Row(
            what=f"what bf16 costs, {architecture}, {len(differences)} paired seeds", against="fp32",
            asked="no quality lost", measured=f"{mean:+.4f} +- {error:.4f} nats",
            reached=None if short else mean <= 2 * error,
        )  # fmt: skip


def time_to_upstream_loss(data: Path, *, short: bool) -> Iterator[Row]:
    """CPU seconds to the loss that the upstream loop ends at, start-up and compilation included, against the loop's."""
    steps = 40 if short else STEPS
    began = time.process_time()
    goal = upstream_loss(data, steps)
    whole = time.process_time() - began
    for share in (0.1, 0.15, 0.2, 0.3, 0.5):
        tokens = round(share * steps) * UPSTREAM_TOKENS
        loss, spent = trained(recipe_config("modern", best_precision()), text(data), tokens)
        if loss <= goal or short:
            break
    yield Row(
        what=f"CPU time to the loss that upstream's loop ends at, modern {best_precision()}",
        against=f"the loop: {whole:.0f} s to {goal:.3f}",
        asked="<= 1/6", measured=f"1/{whole / spent:.1f}: {spent:.0f} s to {loss:.3f}",
        reached=None if short else loss <= goal and spent <= whole / 6,
    )  # fmt: skip


def loss_of_core_minutes(data: Path, *, short: bool) -> Iterator[Row]:
    """Loss on the last 10 % of tiny shakespeare after minutes of a core, by its CPU seconds, evaluations included."""
    minutes, shape = (0.5, SMALL) if short else (CORE_MINUTES, CORE_SHAPE)
    config = Config(family="nanogpt", precision=best_precision(), **shape)
    segment = Segment(device_seconds=60 * minutes, final=True)
    last = last_report(config, text(data), segment, evaluation_tokens=EVALUATION_TOKENS)
    loss, _ = held_out(last)
    yield Row(
        what=f"loss after {minutes:g} min of a core, {last.steps:,} steps, "
        + " ".join(f"{name} {value}" for name, value in shape.items()),
        against=f"upstream's GPU run: {UPSTREAM_GPU_LOSS}", asked=f"<= {CORE_LOSS}", measured=f"{loss:.3f}",
        reached=None if short else loss <= CORE_LOSS,
    )  # fmt: skip


def loss_of_defaults(data: Path, *, short: bool) -> Iterator[Row]:
    """What the default configurations come to in all that a search gives a family, by CPU seconds; and upstream's loop,
    by its recipe for a CPU."""
    for minutes in (0.25,) if short else DEFAULT_MINUTES:
        for family, prepared, own in (("nanogpt", text(data), {"context": 256}), ("translation", pairs(data), {})):
            config = Config(family=family, precision=best_precision(), dropout=0.1, **{**SMALL, **own})
            segment = Segment(device_seconds=60 * minutes, final=True, whole=True)
            last = last_report(config, prepared, segment, evaluation_tokens=EVALUATION_TOKENS)
            assert last.whole is not None and last.test is not None
            both = f", both {held_out(last)[0]:.3f}" if family == "nanogpt" else ""
            yield Row(
                what=f"{family}, default configuration, {minutes:g} min of a core, {last.steps:,} steps",
                against="the winner of a search", asked="to be higher",
                measured=f"validation {last.whole.loss:.3f}, test {last.test.loss:.3f}{both}",
            )  # fmt: skip
        began = time.process_time()
        upstream_loss(data, TIMED_STEPS)
        steps = round(TIMED_STEPS * 60 * minutes / (time.process_time() - began))
        yield Row(
            what=f"nanogpt, upstream's recipe for a CPU, {minutes:g} min of a core, {steps:,} steps",
            against="the winner of a search", asked="to be higher", measured=f"both {upstream_loss(data, steps):.3f}",
        )  # fmt: skip


def recipe_config(architecture: str, precision: str, seed: int = 0) -> Config:
    """The shape of nanoGPT's CPU configuration by our recipe, its batch included."""
    return Config(family="nanogpt", architecture=architecture, precision=precision, dropout=0.0, seed=seed, **SMALL)


def trained(config: Config, data: TextData, tokens: int) -> tuple[float, float]:
    """A life of about so many tokens, decay included: its loss on valid and test, CPU seconds without those two."""
    began = time.process_time()
    last = last_report(config, data, life(tokens // config.batch_tokens), evaluation_tokens=2_048)
    loss, seconds = held_out(last)
    return loss, time.process_time() - began - seconds


def held_out(last: Report) -> tuple[float, float]:
    """The loss on valid and test together, and what both took."""
    assert last.whole is not None and last.test is not None
    both = last.whole, last.test
    nats = sum(each.loss * each.tokens for each in both)
    return nats / sum(each.tokens for each in both), sum(each.seconds for each in both)


def life(steps: int, *, whole: bool = True) -> Segment:
    """Of so many steps, decay included. whole: judged on all of valid and test too."""
    return Segment(device_seconds=AMPLE_SECONDS, steps=steps, final=True, whole=whole)


def last_report(config: Config, data: Data, segment: Segment, *, evaluation_tokens: int) -> Report:
    """At the end of a life, whose seconds are those that this process computes."""
    with tempfile.TemporaryDirectory() as folder:
        told = train(
            config, data, segment, folder=Path(folder), evaluation_tokens=evaluation_tokens, clock=time.process_time
        )
        return deque(told, maxlen=1)[0]


def upstream_loss(data: Path, steps: int) -> float:
    """Train nanoGPT's way by its recipe for a CPU; the loss on the last 10 %, in windows that do not overlap."""
    torch.set_num_threads(1)
    prepared = text(data)
    with tempfile.TemporaryDirectory() as folder:
        training = plain_gpt(gpt_config("nanogpt", "fp32", SMALL), prepared, Path(folder))
        for done in range(steps):
            training.step(upstream_rate(done, steps))
    return windowed_loss(training.model.eval(), np.concatenate([prepared.valid, prepared.test]), SMALL["context"])


@torch.inference_mode()
def windowed_loss(model: torch.nn.Module, held_out: np.ndarray, context: int) -> float:
    """Nats a token over all whole windows."""
    windows = (len(held_out) - 1) // context
    tokens = torch.from_numpy(held_out.astype(np.int64))
    inputs, targets = tokens[: windows * context].view(-1, context), tokens[1 : windows * context + 1].view(-1, context)
    nats = sum(
        F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum").item()
        for x, y in zip(inputs.split(64), targets.split(64), strict=True)
    )
    return nats / targets.numel()


WIDTHS, DEPTHS = (32, 64, 128, 256, 512), (2, 4, 8, 16)
BASE = BASE_D_MODEL, BASE_LAYERS
RATE_STEPS, WARM_UP_SHARE = 200, 0.2
RATE_SEEDS = {"nanogpt": 2, "translation": 5}
"""A translator's loss still falls steeply at its last step, and its seeds lie up to .25 nats apart."""
FARTHEST = 8
"""Steps of sqrt 2 from the recipe's rate."""
REGRET = 0.03
"""Asked: nats, at most."""


def rates(data: Path, *, short: bool) -> Iterator[Row]:
    """Losses after 200 steps by width, depth and rate: a row for each family, with muP and without.

    The base's rate is the best one at the base shape; what another shape loses by it, against the best rate of its own,
    is its regret.
    """
    torch.set_num_threads(1)
    widths, depths = ((64, 128), (2, 4)) if short else (WIDTHS, DEPTHS)
    shapes = sorted({(width, BASE_LAYERS) for width in widths} | {(BASE_D_MODEL, depth) for depth in depths})
    for family, prepared in (("nanogpt", text(data)), ("translation", pairs(data))):
        for mup in (True, False):
            valleys = descended(family, prepared, shapes, mup=mup, short=short)
            base = valleys[BASE].best
            regrets = {shape: valley.losses[base] - valley.loss for shape, valley in valleys.items()}
            worst = max(regrets, key=regrets.__getitem__)
            bracketed = all(valley.is_bracketed for valley in valleys.values())
            parametrization = "muP" if mup else "one rate for all tensors"
            yield Row(
                what=f"regret of the base's rate, {family}, {parametrization}",
                against="; ".join(
                    f"d{d} l{layers}: {regrets[d, layers]:.3f}, best {rate(family, valley.best):.1e}"
                    for (d, layers), valley in valleys.items()
                ),
                asked=f"<= {REGRET} nats at every shape, no best rate the last tried" if mup else "shows the drift",
                measured=f"at most {regrets[worst]:.3f}, at d{worst[0]} l{worst[1]}; base's {rate(family, base):.1e}",
                reached=bracketed and regrets[worst] <= REGRET if mup and not short else None,
            )  # fmt: skip


def descended(
    family: str, data: Data, shapes: list[tuple[int, int]], *, mup: bool, short: bool
) -> dict[tuple[int, int], LossesByRate]:
    """The valley of each shape; each has a loss at the base's best rate."""
    found: dict[tuple[int, int], LossesByRate] = {}
    start = 0
    for shape in (BASE, *(each for each in shapes if each != BASE)):
        found[shape] = valley(lambda steps, shape=shape: loss_at_rate(family, data, shape, steps, mup, short), start)
        start = found[BASE].best
    return found


def valley(loss_at: Callable[[float], float], start: float) -> LossesByRate:
    """Go down from `start` until both neighbours of the best rate are known, or lie too far off."""
    losses, rate = dict[float, float](), start
    while rate is not None:
        losses[rate] = loss_at(rate)
        best = LossesByRate(losses).best
        rate = next((each for each in (best - 1, best + 1) if each not in losses and abs(each) <= FARTHEST), None)
    return LossesByRate(losses)


def rate(family: str, steps: float) -> float:
    """So many steps of sqrt 2 from the recipe's."""
    return float(Config(family=family).learning_rate * 2 ** (steps / 2))


def loss_at_rate(family: str, data: Data, shape: tuple[int, int], steps: float, mup: bool, short: bool) -> float:
    """Mean over seeds after a short life at a rate, its decay included; infinite where one diverged."""
    d_model, layers = shape
    count, seeds = (20, range(1)) if short else (RATE_STEPS, range(RATE_SEEDS[family]))
    config = {
        "family": family, "d_model": d_model, "layers": layers, "dropout": 0.0, "learning_rate": rate(family, steps),
        "precision": best_precision(), "scaling_rules": mup, "average": 0.0,
        "warm_up_steps": min(Config(family=family).warm_up_steps, round(WARM_UP_SHARE * count)),
    }  # fmt: skip
    segment, lives = life(count, whole=False), (Config(**config, seed=seed) for seed in seeds)
    lasts = [last_report(each, data, segment, evaluation_tokens=EVALUATION_TOKENS) for each in lives]
    return statistics.mean(last.valid.loss if last.valid else math.inf for last in lasts)
