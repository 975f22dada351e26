"""What the rows of an experiment come to, for its tables and its pictures alike; standard library only."""

from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any


def stage_seconds(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return by way the seconds of each stage of a training: means over the seeds, as these add up."""
    ways: dict[str, list[dict[str, float]]] = {}
    for row in rows:
        ways.setdefault(f"{row['asked']['way']}, {row['config']['precision']}", []).append(row["stages"])
    return {way: {stage: fmean(each[stage] for each in some) for stage in some[0]} for way, some in ways.items()}
