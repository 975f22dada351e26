"""What the rows of an experiment come to, for its tables and its pictures alike; standard library only."""

from collections.abc import Iterable, Sequence
from math import isnan
from statistics import fmean, median
from typing import Any

from tune.search_space import label

Row = dict[str, Any]


def stage_seconds(rows: Iterable[Row]) -> dict[str, dict[str, float]]:
    """Return by way the seconds of each stage of a training: means over the seeds, as these add up."""
    ways: dict[str, list[dict[str, float]]] = {}
    for row in rows:
        ways.setdefault(f"{row['asked']['way']}, {row['config']['precision']}", []).append(row["stages"])
    return {way: {stage: fmean(each[stage] for each in some) for stage in some[0]} for way, some in ways.items()}


def middle(values: Iterable[float | None]) -> float | None:
    """Return the median of those that are known, so neither None nor NaN; None: there are none."""
    known = [value for value in values if value is not None and not isnan(value)]
    return median(known) if known else None


def step_seconds(rows: Iterable[Row]) -> dict[str, float]:
    """Return the step time of each configuration of `curves`, in its fastest round."""
    timed = sorted((row["step_seconds"], label(row["config"])) for row in rows if "step_seconds" in row)
    return {name: seconds for seconds, name in reversed(timed)}


def longest_lives(rows: Sequence[Row]) -> list[Row]:
    """Return the longest life of each configuration."""
    longest = {label(row["config"]): row for row in sorted(filter(is_life, rows), key=lived_seconds)}
    return [row for row in rows if row is longest.get(label(row["config"]))]


def is_life(row: Row) -> bool:
    """Whether a row of `curves` is of a life that was lived."""
    return "valid_loss" in row


def lived_seconds(row: Row) -> float:
    """Return the seconds that a life was asked for."""
    return float(row["asked"]["seconds"])
