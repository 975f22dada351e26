"""Pictures of what a training costs: epochs and memory over the batch, up to the end of memory; counted FLOPs against
FLOPs on paper, by the report's formula and by the right one; how long a loop waits for its batches, over the number of
processes that load them; and the stages its seconds go to.
"""

import math
from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes

from analysis import tables
from analysis.study import Study, experiment_rows, published
from analysis.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    Picture,
    error_bar_lengths,
    legend_above,
    log_axis,
    new_figure,
    stacked_bars,
)
from tune.errors import UserError
from tune.published import OUR_STAGES
from tune.rows import Row, by_batch, estimated_blocks, stage_seconds
from tune.units import duration_text

MEASURED = ("epoch_seconds", "memory_bytes", "paper_bytes")
TOO_LARGE = ("out of memory", "killed")
"""Ends of batches that do not fit in memory."""
ENDS = {"largest": (GREEN, "-", "largest that fits"), "foretold": (BLACK, ":", "predicted")}
"""Figures of the largest batch that are drawn as lines: colour, line style and label."""


def batches_table(rows: Sequence[Row]) -> pd.DataFrame:
    """Return a row for each batch with what came of it; NaN where that is not known."""
    found: dict[int, Row] = {}
    for row in rows:
        found |= {batch: {"ended": ended, "memory_bytes": taken} for batch, ended, taken in row.get("tried", ())}
    found |= by_batch(rows)
    cells = [[batch, row["ended"], *map(row.get, MEASURED)] for batch, row in sorted(found.items())]
    return pd.DataFrame(cells, columns=["batch", "ended", *MEASURED]).astype(dict.fromkeys(MEASURED, float))


def batch_size(study: Study) -> Picture:
    """Draw two plots over the batch: time beside the published one, memory beside that on paper. UserError: no batch
    was timed yet."""
    rows = experiment_rows(study, "batch_size")
    table, theirs = batches_table(rows), published("batch_size")
    timed = table.dropna(subset="epoch_seconds")
    theirs = theirs.assign(epoch_seconds=pd.to_numeric(theirs["epoch_seconds"], errors="coerce")).dropna()
    if timed.empty:
        raise UserError(f"study: {study.name!r} timed no batch yet; go on with it")
    largest = next((row for row in rows if row.get("largest")), {})
    figure, (time, memory) = new_figure(2, 1, height=6.4)
    time.plot(timed["batch"], timed["epoch_seconds"], c=BLUE, marker="o", ms=5, label="here")
    time.plot(theirs["batch_size"], theirs["epoch_seconds"], c=BLACK, marker="x", ls=":", label="published")
    draw_memory(memory, table, [row["limit_bytes"] for row in rows if row.get("limit_bytes")])
    ends = {name: largest[name] for name in ENDS if largest.get(name)}  # a log axis has no 0
    for plot in (time, memory):
        for name, batch in ends.items():
            color, style, label = ENDS[name]
            plot.axvline(batch, c=color, ls=style, lw=1.3, label=f"{label}: {batch:,}")
        log_axis(plot.xaxis, [*table["batch"], *theirs["batch_size"], *ends.values()], tables.short_number)
    log_axis(time.yaxis, [*timed["epoch_seconds"], *theirs["epoch_seconds"]], duration_text)
    time.set(ylabel="an epoch")
    memory.set(xlabel="rows of a batch", ylabel="memory of a step")
    for plot in (time, memory):
        legend_above(plot, columns=3)
    return Picture(
        name="batch-size",
        title="An epoch and its memory by batch",
        text="Batches that ran out of memory are on the line of the memory limit, or of the most that was taken where "
        "none is known. Published times are of another model and machine, so that shapes compare and levels do not.",
        figure=figure,
        data=table.assign(largest=largest.get("largest"), foretold=largest.get("foretold")),
    )


def draw_memory(plot: Axes, table: pd.DataFrame, limits: Sequence[float]) -> None:
    """Draw the memory taken, that on paper, and at the limit the batches that did not fit."""
    taken, on_paper = (table.dropna(subset=name) for name in ("memory_bytes", "paper_bytes"))
    known = next((each for each in reversed(limits) if math.isfinite(each)), None)
    limit, what = (taken["memory_bytes"].max(), "most taken") if known is None else (known, "memory limit")
    out = table[table["ended"].isin(TOO_LARGE)]
    plot.plot(taken["batch"], taken["memory_bytes"], c=BLUE, marker="o", ms=5, label="taken")
    plot.plot(on_paper["batch"], on_paper["paper_bytes"], c=GREY, ls="--", label="on paper")
    plot.axhline(limit, c=PURPLE, lw=1, label=what)
    plot.plot(out["batch"], [limit] * len(out), c=VERMILION, marker="x", ls="", label="out of memory")
    heights = [*taken["memory_bytes"], *on_paper["paper_bytes"], limit]
    log_axis(plot.yaxis, heights, lambda value: f"{tables.short_count(value)}B")


RIGHT, REPORTS = "right", "report's"
STYLES = {
    (RIGHT, "FlopCounterMode"): (BLUE, "o", "full"),
    (RIGHT, "Nsight Compute"): (SKY, "s", "full"),
    (RIGHT, "published"): (BLACK, "x", "full"),
    (REPORTS, "FlopCounterMode"): (VERMILION, "o", "none"),
    (REPORTS, "Nsight Compute"): (ORANGE, "s", "none"),
    (REPORTS, "published"): (BLACK, "+", "full"),
}
"""Colour, marker and fill style by formula and by what measured."""


def estimates_table(study: Study) -> pd.DataFrame:
    """Return a row for each formula, batch and way to measure. UserError: the block was not measured."""
    blocks = estimated_blocks(experiment_rows(study, "estimates"))
    if not blocks:
        raise UserError(f"study: {study.name!r} has no block of estimates yet; go on with it")
    measured = {
        "FlopCounterMode": "step_flops", "Nsight Compute": "nsight_flops", "published": "published_flops",
    }  # fmt: skip
    formulas = {RIGHT: "paper_step_flops", REPORTS: "paper_reported_flops"}
    return pd.DataFrame([
        {"formula": formula, "by": by, "batch": row["step"][1], "estimated": float(row[name]),
         "measured": float(row[counted])}
        for formula, name in formulas.items() for by, counted in measured.items() for row in blocks if counted in row
    ])  # fmt: skip


def estimates(study: Study) -> Picture:
    """Draw measured against estimated FLOPs; on the line both are equal."""
    table = estimates_table(study)
    figure, (plot,) = new_figure(height=4.4)
    ends = [table["estimated"].min(), table["measured"].max()]
    plot.plot(ends, ends, c=GREY, lw=1, label="measured = estimated")
    for (formula, by), (color, marker, filling) in STYLES.items():
        rows = table[(table["formula"] == formula) & (table["by"] == by)]
        if len(rows):
            plot.plot(rows["estimated"], rows["measured"], c=color, marker=marker, fillstyle=filling, ls="", ms=7,
                      label=f"{formula} formula, {by}")  # fmt: skip
    plot.set(xlabel="FLOPs on paper", ylabel="FLOPs of a training step, measured")
    log_axis(plot.xaxis, table["estimated"], tables.short_count)
    log_axis(plot.yaxis, table["measured"], tables.short_count)
    legend_above(plot, columns=2)
    return Picture(
        name="estimates",
        title="FLOPs on paper and measured",
        text="A point for each batch. The report's formula is of a forward pass; measured are training steps.",
        figure=figure,
        data=table,
    )


LOADING = {
    "empty": ("in an empty loop", BLUE, "o", "--"),
    "wait": ("waited for in a running loop", ORANGE, "s", "-"),
    "whole": ("all of a running loop", VERMILION, "D", "-"),
}
OWN = "own"


def loading_table(study: Study) -> pd.DataFrame:
    """Return the seconds a batch of each source and kind, with the ends of the interval. UserError: there are none."""
    rows = [row for row in experiment_rows(study, "loader") if row["asked"]["measure"] == "workers"]
    if not rows:
        raise UserError(f"study: {study.name!r} has no numbers of workers yet; go on with it")
    found = [
        {"of": row["asked"]["of"], "source": source["name"], "kind": kind}
        | dict(zip(("seconds", "low", "high"), source[kind], strict=True))
        for row in rows for source in row["sources"] for kind in LOADING
    ]  # fmt: skip
    return pd.DataFrame(found)


def loading(study: Study) -> Picture:
    """Draw times over workers, in a panel for each kind of data; horizontal lines: this project's own batches."""
    table = loading_table(study)
    names = list(table["of"].unique())
    figure, plots = new_figure(columns=len(names), height=3.8)
    for plot, name in zip(plots, names, strict=True):
        rows = table[(table["of"] == name) & (table["source"] != OWN)]
        for kind, (label, color, marker, line) in LOADING.items():
            some = rows[rows["kind"] == kind]
            workers, times, ends = (
                some["source"].astype(int),
                1e3 * some["seconds"],
                1e3 * error_bar_lengths(some, "seconds"),
            )
            plot.errorbar(workers, times, ends, c=color, marker=marker, ls=line, ms=4, capsize=2, label=label)
        own = table[(table["of"] == name) & (table["source"] == OWN) & (table["kind"] == "whole")]
        if len(own):
            plot.axhline(1e3 * own["seconds"].iloc[0], c=GREEN, lw=1.2, ls=":", label="all, with our own batches")
        plot.set(xlabel="workers", ylim=(0, None), xticks=sorted(rows["source"].astype(int).unique()))
        plot.set_title(name, pad=8)
    plots[0].set_ylabel("ms a batch")
    labels = {label: handle for plot in plots for handle, label in zip(*plot.get_legend_handles_labels(), strict=True)}
    figure.legend(labels.values(), labels.keys(), loc="outside upper left", ncols=2)
    return Picture(
        name="loading",
        title="What a loop waits for",
        text="A panel for each kind of data. Bars: 95 % intervals.",
        figure=figure,
        data=table,
    )


STAGES = {
    "data": SKY, "forward": GREEN, "loss and backward": BLUE, "optimizer": ORANGE, "evaluation": VERMILION,
    "rest": GREY,
}  # fmt: skip
LEAST_LABEL = 0.05
"""Least share that is labelled on a pie."""


def stages_table(study: Study) -> pd.DataFrame:
    """Return the seconds of each stage (columns) for each way (rows), means over the seeds."""
    found = pd.DataFrame.from_dict(stage_seconds(experiment_rows(study, "stages")), orient="index")
    return found.rename_axis("way")[list(STAGES)]


def stage_bars(study: Study) -> Picture:
    """Draw a stacked bar of seconds for each way."""
    table = stages_table(study)
    figure, (plot,) = new_figure(height=1.4 + 0.5 * len(table))
    ends = stacked_bars(plot, table, STAGES, 0.65)
    for place, whole in enumerate(ends):
        plot.text(float(whole), place, f" {whole:.1f} s", va="center", fontsize=9)
    plot.set(xlabel="s", xlim=(0, 1.12 * ends.max()))
    legend_above(plot, columns=3)
    return Picture(
        name="stages-bars",
        title="What the seconds of a training go to",
        text="Means over seeds.",
        figure=figure,
        data=table.reset_index(),
    )


def stage_pies(study: Study) -> Picture:
    """Draw a pie of shares for each way, and the report's."""
    theirs = published("stages").set_index("stage")["seconds"].rename(index=OUR_STAGES)
    table = stages_table(study)
    table.loc["published, RoBERTa"] = theirs.reindex(table.columns).fillna(0.0)
    figure, plots = new_figure(columns=len(table), height=2.15)
    for plot, (way, seconds) in zip(plots, table.iterrows(), strict=True):
        plot.pie(
            seconds, colors=list(STAGES.values()), startangle=90, counterclock=False, radius=1.15, pctdistance=0.68,
            autopct=lambda percent: f"{percent:.0f}%" if percent >= 100 * LEAST_LABEL else "",
            textprops={"fontsize": 8}, wedgeprops={"linewidth": 0.7, "edgecolor": "white"},
        )  # fmt: skip
        plot.set_title(str(way), loc="center", fontsize=9)
    figure.legend(plots[0].patches, list(STAGES), loc="outside lower center", ncols=len(STAGES), fontsize=8,
                  columnspacing=1, handlelength=1)  # fmt: skip
    share = table.div(table.sum(axis=1), axis=0)
    return Picture(
        name="stages",
        title="Shares of the stages of a training",
        text="Means over seeds. The report does not tell its optimizer apart.",
        figure=figure,
        data=share.reset_index(),
    )
