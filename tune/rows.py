"""Figures computed from the rows of an experiment, for its tables and its pictures alike; standard library only."""

from collections.abc import Iterable, Sequence
from math import isnan
from statistics import fmean, median
from typing import Any

from tune.arithmetic import Interval, ratio
from tune.published import published
from tune.search_space import label

Row = dict[str, Any]
"""Result of a point, JSON-able: what was `asked`, on how many `devices`, and what was measured; `skipped`: why nothing
was."""


def stage_seconds(rows: Iterable[Row]) -> dict[str, dict[str, float]]:
    """Return the seconds of each stage of a training, by way and precision: means over the seeds, as means of stages
    add up."""
    ways: dict[str, list[dict[str, float]]] = {}
    for row in rows:
        ways.setdefault(f"{row['asked']['way']}, {row['config']['precision']}", []).append(row["stages"])
    return {way: {stage: fmean(each[stage] for each in some) for stage in some[0]} for way, some in ways.items()}


def middle(values: Iterable[float | None]) -> float | None:
    """Return the median of the values that are neither None nor NaN; None: there are none."""
    known = [value for value in values if value is not None and not isnan(value)]
    return median(known) if known else None


def step_seconds(rows: Iterable[Row]) -> dict[str, float]:
    """Return the step seconds of each configuration of `curves`, by its label: those of its fastest round."""
    timed = sorted((row["step_seconds"], label(row["config"])) for row in rows if "step_seconds" in row)
    return {name: seconds for seconds, name in reversed(timed)}


def by_batch(rows: Sequence[Row]) -> dict[int, Row]:
    """Return the row of each batch of `batch_size`, that of the largest one too if it was timed."""
    found = {row["asked"]["rows"]: row for row in rows if "ended" in row}
    timed = {row["largest"]: row["timed"] for row in rows if "epoch_seconds" in row.get("timed", {})}
    return dict(sorted((found | timed).items()))


def longest_lives(rows: Sequence[Row]) -> list[Row]:
    """Return the row of the longest life of each configuration whose steps were timed."""
    timed = step_seconds(rows)
    lives = [row for row in rows if "valid_loss" in row and label(row["config"]) in timed]
    longest = {label(row["config"]): row for row in sorted(lives, key=asked_seconds)}
    return [row for row in rows if row is longest.get(label(row["config"]))]


def asked_seconds(row: Row) -> float:
    """Return how many seconds at the constant rate a life was asked to last."""
    return float(row["asked"]["seconds"])


BLOCK_HEADS = 2
"""Heads of the block of the report of `estimates`, as `WordConfig` has them."""


def estimated_steps(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of `estimates` that are of steps, each with its `step`: block or whole model, batch, heads. Those
    of the report's block also have what Nsight Compute counted, and the report's figures, where they are known."""
    found = {}
    for row in (each for each in rows if "paper_step_flops" in each):
        step = row["asked"]["measure"], row["asked"]["batch"], row["config"]["heads"]
        found[step] = {**row, "step": step}
    for batch, flops, traffic in (each for row in rows for each in row.get("nsight", ())):
        found.get(("block", batch, BLOCK_HEADS), {}).update(nsight_flops=flops, nsight_bytes=traffic)
    for row in published("estimates"):
        known = {"published_flops": row["measured_flops"], "published_bytes": 1e3 * row["measured_dram_kilobytes"]}
        found.get(("block", row["batch_size"], BLOCK_HEADS), {}).update(known)
    return [found[each] for each in sorted(found)]


def estimated_blocks(rows: Sequence[Row]) -> list[Row]:
    """Return those of the report's block, by batch."""
    return [row for row in estimated_steps(rows) if (row["step"][0], row["step"][2]) == ("block", BLOCK_HEADS)]


def steps_of(rows: Sequence[Row]) -> dict[tuple[int, int], Row]:
    """Return the rows of `scaling` that measure steps, by number of devices and rows of the batch of all devices
    together."""
    return {(row["devices"], row["asked"]["rows"]): row for row in rows if "step_seconds" in row}


def pairs(steps: dict[tuple[int, int], Row], *, weak: bool) -> list[tuple[int, Row, Row]]:
    """Return triples, one device included: a batch on one device, its row there, and the row on so many devices with
    the same batch on each (weak) or the same batch in all (strong)."""
    singles = {batch: row for (count, batch), row in steps.items() if count == 1}
    return [
        (batch, single, steps[count, batch * (count if weak else 1)])
        for count in sorted({count for count, _ in steps})
        for batch, single in singles.items()
        if (count, batch * (count if weak else 1)) in steps
    ]


def times_as_fast(single: Row, row: Row, *, weak: bool) -> Interval:
    """Return how many times as fast as on one device a step on several is, in rows a second, with its interval."""
    if row is single:
        return 1.0, 1.0, 1.0
    times, low, high = ratio(single["rounds"]["step"], row["rounds"]["step"])
    work = row["asked"]["rows"] / single["asked"]["rows"] if weak else 1.0
    return work * times, work * low, work * high
