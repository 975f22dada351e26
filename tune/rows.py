"""What the rows of an experiment come to, for its tables and its pictures alike; standard library only."""

from collections.abc import Iterable, Mapping
from math import isnan
from statistics import fmean, median
from typing import Any


def stage_seconds(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return by way the seconds of each stage of a training: means over the seeds, as these add up."""
    ways: dict[str, list[dict[str, float]]] = {}
    for row in rows:
        ways.setdefault(f"{row['asked']['way']}, {row['config']['precision']}", []).append(row["stages"])
    return {way: {stage: fmean(each[stage] for each in some) for stage in some[0]} for way, some in ways.items()}


def middle(values: Iterable[float | None]) -> float | None:
    """Return the median of those that are known, so neither None nor NaN; None: there are none."""
    known = [value for value in values if value is not None and not isnan(value)]
    return median(known) if known else None
