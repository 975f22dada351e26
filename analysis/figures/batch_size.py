"""Seconds of an epoch and memory over the batch, to where memory ends."""

import pandas as pd

from analysis import formats
from analysis.experiments import experiment_rows, published
from analysis.figures.picture import BLACK, BLUE, GREY, VERMILION, Picture, axes, log_axis
from analysis.studies import Study

MEASURED = ("epoch_seconds", "memory_bytes", "paper_bytes")


def batches_table(study: Study) -> pd.DataFrame:
    """By batch, what came of it; NaN where it did not fit. ValueError before the first batch."""
    rows = experiment_rows(study, "batch_size")
    found = {row["asked"]["rows"]: row for row in rows if "ended" in row}
    for row in rows:
        found |= {batch: {"ended": ended} for batch, ended, _ in row.get("tried", ()) if batch not in found}
        found |= {row["largest"]: row["timed"]} if "timed" in row else {}
    if not found:
        raise ValueError(f"study: {study.name!r} has no batch of batch_size yet; go on with it")
    table = pd.DataFrame([
        {"batch": batch, "ended": row["ended"], **{name: row.get(name) for name in MEASURED}}
        for batch, row in sorted(found.items())
    ])  # fmt: skip
    return table.astype(dict.fromkeys(MEASURED, float))


def batch_size(study: Study) -> Picture:
    """Two plots over the batch: time beside the published, memory beside what is on paper."""
    table = batches_table(study)
    timed, theirs = table.dropna(subset="epoch_seconds"), published("batch_size")
    theirs = theirs.assign(epoch_seconds=pd.to_numeric(theirs["epoch_seconds"], errors="coerce")).dropna()
    if timed.empty:
        raise ValueError(f"study: {study.name!r} timed no batch yet; go on with it")
    figure, (time, memory) = axes(2, 1, height=6.0)
    time.plot(timed["batch"], timed["epoch_seconds"], c=BLUE, marker="o", ms=5, label="here")
    time.plot(theirs["batch_size"], theirs["epoch_seconds"], c=BLACK, marker="x", ls=":", label="published")
    memory.plot(timed["batch"], timed["memory_bytes"], c=BLUE, marker="o", ms=5, label="taken")
    memory.plot(timed["batch"], timed["paper_bytes"], c=GREY, ls="--", label="on paper")
    limits = [row["limit_bytes"] for row in experiment_rows(study, "batch_size") if row.get("limit_bytes")]
    heights = [*timed["memory_bytes"], *timed["paper_bytes"], *limits[-1:]]
    out = table[table["ended"].isin(("out of memory", "killed"))]
    if limits:
        memory.axhline(limits[-1], c=VERMILION, lw=1)
        memory.plot(out["batch"], [limits[-1]] * len(out), c=VERMILION, marker="x", ls="", label="did not fit")
    batches = [*table["batch"], *theirs["batch_size"]]
    for plot, values, text in (
        (time, [*timed["epoch_seconds"], *theirs["epoch_seconds"]], formats.short_duration),
        (memory, heights, formats.memory),
    ):
        log_axis(plot.xaxis, batches, formats.plain)
        log_axis(plot.yaxis, values, text)
        plot.legend(loc="best")
    time.set(ylabel="an epoch")
    memory.set(xlabel="rows of a batch", ylabel="memory of a step")
    fastest = timed.loc[timed["epoch_seconds"].idxmin()]
    return Picture(
        name="batch-size",
        title="An epoch and its memory by batch",
        text=f"An epoch is fastest with {fastest['batch']:,.0f} rows, in {formats.duration(fastest['epoch_seconds'])}; "
        f"{timed['batch'].max():,} rows are the most that were timed.",
        figure=figure,
        data=table,
    )
