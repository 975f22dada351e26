"""The rows of the ablation by configuration, and the report's."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

from tune.dimensions import label
from tune.experiments.experiment import Row
from tune.experiments.published import published


class Shape(NamedTuple):
    """A configuration."""

    d_model: int
    heads: int
    layers: int
    dropout: float


Losses = Mapping[Shape, float]
REPORT, UNDROPPED, COMPARE, LONGER = "report", "no dropout", "compare", "longer"
"""The sets of points."""
TABLE = REPORT, UNDROPPED
"""Those whose configurations are compared with each other."""


def shape_of(row: Mapping[str, float | None]) -> Shape:
    """Of a configuration, or of a row of the report's."""
    dropout, *counts = (row[name] or 0.0 for name in ("dropout", "d_model", "heads", "layers"))
    d_model, heads, layers = map(int, counts)
    return Shape(d_model, heads, layers, dropout)


def named(shape: Shape) -> str:
    """d128 h4 l2 p.1"""
    return label(shape._asdict())


def theirs() -> dict[Shape, dict[str, float | None]]:
    """The report's rows."""
    return {shape_of(row): row for row in published("ablation")}


def of_set(rows: Iterable[Row], *sets: str) -> list[Row]:
    """The rows of these sets."""
    return [row for row in rows if row["asked"]["set"] in sets]


def by_shape(rows: Iterable[Row], *sets: str) -> dict[Shape, list[Row]]:
    """The same, those of one configuration together, one for each seed."""
    found: dict[Shape, list[Row]] = {}
    for row in of_set(rows, *sets):
        found.setdefault(shape_of(row["config"]), []).append(row)
    return found


def average(rows: Iterable[Row], name: str) -> float:
    """Over the seeds."""
    return statistics.fmean(row[name] for row in rows)


def losses(done: Sequence[Row]) -> dict[int, Losses]:
    """Validation losses by seed, of the configurations that every seed has."""
    found: dict[int, dict[Shape, float]] = {}
    for row in of_set(done, *TABLE):
        found.setdefault(row["config"]["seed"], {})[shape_of(row["config"])] = row["valid_loss"]
    common = set.intersection(*map(set, found.values())) if found else set()
    return {seed: {shape: of_seed[shape] for shape in of_seed if shape in common} for seed, of_seed in found.items()}


def their_losses(shapes: Losses) -> Losses:
    """The report's validation losses of those of the configurations that it has."""
    return {shape: row["valid_loss"] or 0.0 for shape, row in theirs().items() if shape in shapes}


def agreement(ours: Losses, others: Losses) -> float:
    """The share of all pairs of configurations that stand in the same order in both."""
    pairs = list(combinations(sorted(ours.keys() & others.keys()), 2))
    return sum((ours[a] < ours[b]) == (others[a] < others[b]) for a, b in pairs) / len(pairs)


def long_and_short(done: Sequence[Row]) -> list[Row]:
    """The same training at the common length and longer, as far as they are there."""
    long = of_set(done, LONGER)
    return [*(row for row in of_set(done, REPORT) if any(row["config"] == each["config"] for each in long)), *long]


def lowest_point(row: Row) -> tuple[int, float]:
    """Step and value of the lowest validation loss of its curve."""
    loss, steps = min((loss, steps) for steps, *_, loss in row["curve"] if loss is not None)
    return steps, loss
