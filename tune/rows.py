"""What the rows of an experiment come to, for its tables and its pictures alike; standard library only."""

from collections.abc import Iterable, Sequence
from math import isnan
from statistics import fmean, median
from typing import Any

from tune.arithmetic import Interval, ratio
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


def steps_of(rows: Sequence[Row]) -> dict[tuple[int, int], Row]:
    """Return the rows of `scaling` that are of steps, by devices and rows of the batch."""
    return {(row["devices"], row["asked"]["rows"]): row for row in rows if "step_seconds" in row}


def pairs(steps: dict[tuple[int, int], Row], *, weak: bool) -> list[tuple[int, Row, Row]]:
    """Return each batch with its row on one device and that on several: of the same batch a device (weak), or of the
    same in all (strong)."""
    singles = {batch: row for (count, batch), row in steps.items() if count == 1}
    return [
        (batch, single, steps[count, batch * (count if weak else 1)])
        for count in sorted({count for count, _ in steps})
        for batch, single in singles.items()
        if (count, batch * (count if weak else 1)) in steps
    ]


def times_as_fast(single: Row, row: Row, *, weak: bool) -> Interval:
    """Return how many times as fast as one device, with its interval: as many tokens a second."""
    if row is single:
        return 1.0, 1.0, 1.0
    times, low, high = ratio(single["rounds"]["step"], row["rounds"]["step"])
    work = row["tokens"] / single["tokens"] if weak else 1.0
    return work * times, work * low, work * high
