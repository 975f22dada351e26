"""Rows as the transfer experiment leaves them, of shapes whose losses are parabolas over the logarithm of the rate."""

import json
import math
from typing import Any

BASE = {"d_model": 128, "layers": 4}
RATE = 4e-3
CURVATURE = 0.1
"""Nats for an octave squared."""


def row(shape: dict[str, int], *, ruled: bool, octaves: float = 1.0, seeds: int = 1) -> dict[str, Any]:
    """The best rate is the recipe's with the rules; without, it halves with each doubling of width or depth."""
    full = BASE | shape
    doublings = sum(math.log2(full[name] / BASE[name]) for name in BASE)
    best = 0.0 if ruled else -doublings
    steps = range(round(-3 / octaves), round(3 / octaves) + 1)
    losses = [[step, [1.5 + CURVATURE * (step * octaves - best) ** 2 + seed / 100 for seed in range(seeds)]]
              for step in steps]  # fmt: skip
    asked, config = {"steps": 50, "octaves": octaves, "seeds": seeds}, {**full, "scaling_rules": ruled}
    key = json.dumps([1, asked, config], sort_keys=True)
    return {
        "key": key, "devices": 1, "asked": asked, "config": config, "parameters": 1000, "learning_rate": RATE,
        "base": BASE, "losses": losses, "start_up_seconds": 9.0,
    }  # fmt: skip


def all_rows(**of: Any) -> list[dict[str, Any]]:
    """The base, two widths and a depth, with the rules and without."""
    shapes = {"d_model": 32}, {"d_model": 512}, {"layers": 16}
    return [row({}, ruled=True, **of), *(row(shape, ruled=ruled, **of) for shape in shapes for ruled in (True, False))]
