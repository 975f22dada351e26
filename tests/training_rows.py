"""Rows as the experiments leave them that train configurations to their ends, of losses that are known; and what a row
of any experiment has.

Those of `transfer` have losses that are parabolas over the logarithm of the rate.
"""

import json
import math
from collections.abc import Callable
from typing import Any

STEPS = 100
BASE = {"d_model": 128, "layers": 4}
RATE = 4e-3
CURVATURE = 0.1
"""Nats for an octave squared."""


def whole(asked: dict[str, Any], config: dict[str, Any], devices: int = 1, **found: Any) -> dict[str, Any]:
    """What was found, and what the rows of all experiments have."""
    key = json.dumps([devices, asked, config], sort_keys=True)
    return {"key": key, "devices": devices, "asked": asked, "config": config, "start_up_seconds": 9.0} | found


def same(value: float) -> list[float]:
    """A figure that is certain."""
    return [value, value, value]


def row(asked: dict[str, Any], config: dict[str, Any], loss: float, **found: Any) -> dict[str, Any]:
    """As the journal tells of a trial of a list that came to its end; curve: four looks on its way."""
    steps, parameters = asked["steps"], 1000 * config.get("d_model", 100) + config["seed"]
    curve = [[steps * part // 4, 10 * steps * part, part, loss + 4 - part, loss + 4 - part] for part in range(1, 5)]
    found = {
        "steps": steps, "tokens": 1000 * steps, "epochs": steps / 50, "parameters": parameters, "curve": curve,
        "trained_loss": loss - 0.1, "train_loss": loss + 0.1, "valid_loss": loss, "lowest_loss": loss, "lowest_at": 1.0,
        "accuracy": 0.4, "nats_per_word": 1.5 * loss, "bits_per_character": 0.5 * loss, "bleu": 10.0, "mfu": 0.3,
        "training_seconds": 60.0, "step_seconds": 0.6, "device_seconds": 70.0, "memory_bytes": 30 * parameters,
    } | found  # fmt: skip
    return whole(asked, config, **found)


def ablated(points: list[Any], loss: Callable[..., float]) -> list[dict[str, Any]]:
    """Of the ablation's trainings, each with the loss of its configuration and seed."""
    return [row(point.asked, dict(point.config), loss(**point.config)) for point in points]


def precise(losses: dict[str, list[float]], seconds: dict[str, float]) -> list[dict[str, Any]]:
    """Of the precisions, their losses by seed."""
    return [
        row({"steps": STEPS}, {"precision": precision, "seed": seed}, loss, training_seconds=seconds[precision])
        for precision, of_seeds in losses.items()
        for seed, loss in enumerate(of_seeds)
    ]


def parabola(shape: dict[str, int], mup: bool | None = None, seeds: int = 1) -> list[dict[str, Any]]:
    """The best rate is the recipe's with muP; without, it halves with each doubling of width or depth."""
    full, said = BASE | shape, {} if mup is None else {"scaling_rules": mup}
    best = 0.0 if mup else -sum(math.log2(full[name] / BASE[name]) for name in BASE)
    return [
        row({"steps": 50}, {**full, **said, "learning_rate": RATE * 2**octaves, "seed": seed},
            1.5 + CURVATURE * (octaves - best) ** 2 + seed / 100)
        for seed in range(seeds) for octaves in range(-3, 4)
    ]  # fmt: skip


def transferred(seeds: int = 1) -> list[dict[str, Any]]:
    """The base, two widths and a depth, with muP and without: seven rates of each."""
    shapes = {"d_model": 32}, {"d_model": 512}, {"layers": 16}
    others = [each for shape in shapes for mup in (True, False) for each in parabola(shape, mup, seeds)]
    return [*parabola({}, seeds=seeds), *others]


def diverged(rows: list[dict[str, Any]], octaves: int) -> list[dict[str, Any]]:
    """The same, at so many octaves from the recipe's rate and above without a loss."""
    rate = RATE * 2**octaves
    return [each | {"valid_loss": None} if each["config"]["learning_rate"] >= rate else each for each in rows]
