"""Seconds of an epoch and memory over the batch, to where memory ends."""

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from analysis import tables
from analysis.study import Study, experiment_rows, published
from analysis.style import BLACK, BLUE, GREEN, GREY, VERMILION, Picture, axes, legend_above, log_axis
from tune.errors import UserError

MEASURED = ("epoch_seconds", "memory_bytes", "paper_bytes")
TOO_LARGE = ("out of memory", "killed")
"""How a batch ends that memory does not hold."""
ENDS = {"largest": (GREEN, "-", "largest that fits"), "foretold": (BLACK, ":", "foretold")}
"""Of the row of the largest batch, what is drawn: colour, line and what it is called."""
Row = dict[str, Any]


def batches_table(rows: Sequence[Row]) -> pd.DataFrame:
    """By batch, what came of it; NaN where that is not known."""
    found: dict[int, Row] = {}
    for row in rows:
        found |= {batch: {"ended": ended, "memory_bytes": taken} for batch, ended, taken in row.get("tried", ())}
    found |= {row["asked"]["rows"]: row for row in rows if "ended" in row}
    found |= {row["largest"]: row["timed"] for row in rows if "epoch_seconds" in row.get("timed", {})}
    cells = [[batch, row["ended"], *map(row.get, MEASURED)] for batch, row in sorted(found.items())]
    return pd.DataFrame(cells, columns=["batch", "ended", *MEASURED]).astype(dict.fromkeys(MEASURED, float))


def batch_size(study: Study) -> Picture:
    """Two plots over the batch: time beside the published, memory beside what is on paper. UserError before the first
    batch that was timed.
    """
    rows = experiment_rows(study, "batch_size")
    table, theirs = batches_table(rows), published("batch_size")
    timed = table.dropna(subset="epoch_seconds")
    theirs = theirs.assign(epoch_seconds=pd.to_numeric(theirs["epoch_seconds"], errors="coerce")).dropna()
    if timed.empty:
        raise UserError(f"study: {study.name!r} timed no batch yet; go on with it")
    largest = next((row for row in rows if row.get("largest")), {})
    figure, (time, memory) = axes(2, 1, height=6.4)
    time.plot(timed["batch"], timed["epoch_seconds"], c=BLUE, marker="o", ms=5, label="here")
    time.plot(theirs["batch_size"], theirs["epoch_seconds"], c=BLACK, marker="x", ls=":", label="published")
    draw_memory(memory, table, [row["limit_bytes"] for row in rows if row.get("limit_bytes")])
    ends = {name: largest[name] for name in ENDS if name in largest}
    for plot in (time, memory):
        for name, batch in ends.items():
            color, style, label = ENDS[name]
            plot.axvline(batch, c=color, ls=style, lw=1.3, label=f"{label}: {batch:,}")
        log_axis(plot.xaxis, [*table["batch"], *theirs["batch_size"], *ends.values()], tables.plain)
    log_axis(time.yaxis, [*timed["epoch_seconds"], *theirs["epoch_seconds"]], tables.short_duration)
    time.set(ylabel="an epoch")
    memory.set(xlabel="rows of a batch", ylabel="memory of a step")
    for plot in (time, memory):
        legend_above(plot, columns=3)
    return Picture(
        name="batch-size",
        title="An epoch and its memory by batch",
        text="Red line: the memory limit, or the most that was taken where none is known. Published times are of "
        "another model and machine, so that shapes compare and levels do not.",
        figure=figure,
        data=table.assign(largest=largest.get("largest"), foretold=largest.get("foretold")),
    )


def draw_memory(plot: Axes, table: pd.DataFrame, limits: Sequence[float]) -> None:
    """What was taken, what is on paper, and at the limit the batches that did not fit."""
    taken, on_paper = (table.dropna(subset=name) for name in ("memory_bytes", "paper_bytes"))
    limit = next((each for each in reversed(limits) if math.isfinite(each)), taken["memory_bytes"].max())
    out = table[table["ended"].isin(TOO_LARGE)]
    plot.plot(taken["batch"], taken["memory_bytes"], c=BLUE, marker="o", ms=5, label="taken")
    plot.plot(on_paper["batch"], on_paper["paper_bytes"], c=GREY, ls="--", label="on paper")
    plot.axhline(limit, c=VERMILION, lw=1)
    plot.plot(out["batch"], [limit] * len(out), c=VERMILION, marker="x", ls="", label="out of memory")
    heights = [*taken["memory_bytes"], *on_paper["paper_bytes"], limit]
    log_axis(plot.yaxis, heights, lambda value: f"{tables.short_count(value)}B")
