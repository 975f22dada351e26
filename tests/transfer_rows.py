"""Rows as the trainings of `transfer` leave them: losses are parabolas over the logarithm of the rate."""

import math
from typing import Any

from tests.training_rows import ended, row

BASE = {"d_model": 128, "layers": 4}
RATE = 4e-3
CURVATURE = 0.1
"""Nats for an octave squared."""


def rows_of(shape: dict[str, int], ruled: bool | None = None, seeds: int = 1) -> list[dict[str, Any]]:
    """The best rate is the recipe's with the rules; without, it halves with each doubling of width or depth."""
    full, said = BASE | shape, {} if ruled is None else {"scaling_rules": ruled}
    best = 0.0 if ruled else -sum(math.log2(full[name] / BASE[name]) for name in BASE)
    return [
        ended(row({"steps": 50}, {**full, **said, "learning_rate": RATE * 2**octaves, "seed": seed},
                  1.5 + CURVATURE * (octaves - best) ** 2 + seed / 100))
        for seed in range(seeds) for octaves in range(-3, 4)
    ]  # fmt: skip


def all_rows(seeds: int = 1) -> list[dict[str, Any]]:
    """The base, two widths and a depth, with the rules and without: seven rates of each."""
    shapes = {"d_model": 32}, {"d_model": 512}, {"layers": 16}
    others = [each for shape in shapes for ruled in (True, False) for each in rows_of(shape, ruled, seeds)]
    return [*rows_of({}, seeds=seeds), *others]


def diverged(rows: list[dict[str, Any]], octaves: int) -> list[dict[str, Any]]:
    """The same, at so many octaves from the recipe's rate and above without a loss."""
    rate = RATE * 2**octaves
    return [each | {"valid_loss": None} if each["config"]["learning_rate"] >= rate else each for each in rows]
