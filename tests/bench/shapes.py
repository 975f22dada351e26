"""Every shape of the published ablation trains: where the report's runs ended above a perplexity of 1,000, too."""

import csv
import math
import statistics
from collections.abc import Iterator
from pathlib import Path

import torch

from model.config import Config
from model.training.learner import Learner
from model.training.memory import prepare_process
from model.training.schedule import warm_up
from tests.bench.contenders import best_precision, pairs
from tests.bench.table import Row

PUBLISHED = Path(__file__).resolve().parents[2] / "analysis" / "published" / "ablation.csv"
STEPS = 120
"""The warm-up, and some at the full rate."""
WINDOW = 10
"""Steps that a loss is the mean of."""
LOST = 1_000.0
"""A perplexity above which a published run counts as lost."""


def shapes(data: Path, *, short: bool) -> Iterator[Row]:
    """Losses at the beginning and at the end of a short life of each."""
    prepare_process(1)
    published = list(csv.DictReader(PUBLISHED.open()))
    steps, asked = (24, published[:2]) if short else (STEPS, published)
    falls = [math.log(before / after) for before, after in (perplexities(row, data, steps) for row in asked)]
    lost = sum(float(row["valid_perplexity"]) > LOST for row in asked)
    yield Row(
        what=f"the {len(asked)} shapes of the published ablation, {steps} steps each",
        against=f"the report: {lost} of {len(asked)} ended above a perplexity of {LOST:,.0f}",
        asked="every loss falls, none diverges",
        measured=f"losses fall by {min(falls):.2f} to {max(falls):.2f} nats, median {statistics.median(falls):.2f}",
        reached=all(fall > 0 for fall in falls),
    )  # fmt: skip


def perplexities(row: dict[str, str], data: Path, steps: int) -> tuple[float, float]:
    """Of the first steps and of the last."""
    config = Config(
        family="translation", d_model=int(row["d_model"]), heads=int(row["heads"]), layers=int(row["layers"]),
        dropout=float(row["dropout"]), precision=best_precision(),
    )  # fmt: skip
    learner = Learner(config, pairs(data), torch.device("cpu"))
    losses = [learner.step(warm_up(step, config.warm_up_steps)).loss.item() for step in range(steps)]
    return math.exp(statistics.mean(losses[:WINDOW])), math.exp(statistics.mean(losses[-WINDOW:]))
