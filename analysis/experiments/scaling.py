"""Pictures of training on several devices: what more devices gain, and what of a step is communication; how fast other
ways are, against DistributedDataParallel's default; and what larger batches cost in loss, by rule for the learning
rate.
"""

import numpy as np
import pandas as pd
from matplotlib.ticker import NullLocator

from analysis import tables
from analysis.study import Study, experiment_rows, over_seeds, published
from analysis.style import (
    BLACK,
    BLUE,
    GREY,
    MARKERS,
    ORANGE,
    OVER_SEEDS,
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
from tune.published import published_speed_ups
from tune.rows import pairs, steps_of, times_as_fast

COLORS = (BLUE, VERMILION, ORANGE, SKY)
PARTS = {"unsynced_seconds": ("computing", BLUE), "exposed_seconds": ("waiting for communication", VERMILION)}


def steps_table(study: Study) -> pd.DataFrame:
    """Return a row for each number of devices and batch: a step and its parts in seconds, with the ends of the step's
    interval."""
    rows = [row for row in experiment_rows(study, "scaling") if "step_seconds" in row]
    if not rows:
        raise UserError(f"study: {study.name!r} has no step of scaling yet; go on with it")
    table = pd.DataFrame({
        "devices": [row["devices"] for row in rows],
        "batch": [row["asked"]["rows"] for row in rows],
        **{name: [row["step_seconds"][place] for row in rows] for place, name in enumerate(("step", "low", "high"))},
        **{name: [row.get(name, [0.0])[0] for row in rows] for name in (*PARTS, "overlapped_seconds")},
        "disturbed": [row.get("disturbed", False) for row in rows],
    })  # fmt: skip
    return table.sort_values(["devices", "batch"], ignore_index=True)


def speed_ups(study: Study) -> pd.DataFrame:
    """Return speed-ups over one device: weak, with a fixed batch for each device, by rows a second; strong, with a
    fixed batch in all."""
    steps = steps_of(experiment_rows(study, "scaling"))
    return pd.DataFrame([
        {"kind": kind, "batch": batch, "devices": row["devices"]}
        | {"disturbed": any(each.get("disturbed", False) for each in (single, row))}
        | dict(zip(("speed_up", "low", "high"), times_as_fast(single, row, weak=kind == "weak"), strict=True))
        for kind in ("weak", "strong")
        for batch, single, row in pairs(steps, weak=kind == "weak")
    ])  # fmt: skip


def speed_up(study: Study) -> Picture:
    """Draw how many times as fast as one device several are. UserError: only one device was measured, or none alone."""
    table = speed_ups(study)
    if table.empty:
        raise UserError(f"study: {study.name!r} measured no step on one device; go on with it")
    devices = sorted(table["devices"].unique())
    if len(devices) < 2:
        raise UserError(f"study: {study.name!r} measured one device only; measure more with --devices")
    figure, (plot,) = new_figure()
    plot.plot(devices, devices, c=GREY, lw=1, ls=":", label="all of it")
    for place, batch in enumerate(sorted(table["batch"].unique())):
        for kind, line in (("weak", "-"), ("strong", "--")):
            rows = table[(table["batch"] == batch) & (table["kind"] == kind)].sort_values("devices")
            if len(rows) > 1:
                color, marker = COLORS[place % len(COLORS)], MARKERS[place % len(MARKERS)]
                plot.errorbar(rows["devices"], rows["speed_up"], error_bar_lengths(rows, "speed_up"),
                              label=f"{kind}, {batch}", ls=line, capsize=2, c=color, marker=marker, ms=4,
                              zorder=3)  # fmt: skip
                hollow = rows[rows["disturbed"]]
                plot.scatter(hollow["devices"], hollow["speed_up"], s=16, marker=marker, facecolor="w", edgecolor=color,
                             zorder=4)  # fmt: skip
    theirs = published("scaling").rename(columns={"speed_up": "printed"})
    theirs["speed_up"] = theirs.set_index(["devices", "batch_size_per_device"]).index.map(published_speed_ups())
    theirs = theirs[theirs["devices"].isin(devices)]
    plot.scatter(theirs["devices"], theirs["speed_up"], marker="x", s=22, c=BLACK, label="published epochs", zorder=3)
    plot.scatter(theirs["devices"], theirs["printed"], marker="+", s=22, c=GREY, label="as printed there", zorder=3)
    if table["disturbed"].any():
        plot.scatter([], [], s=16, facecolor="w", edgecolor=GREY, label="disturbed")
    plot.set(xscale="log", xticks=devices, xlabel="devices", ylabel="times as fast as one", ylim=(0, None))
    plot.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    plot.xaxis.set_minor_locator(NullLocator())
    legend_above(plot, columns=4, length=2.6)
    return Picture(
        name="speed-up",
        title="What more devices gain",
        text="Solid: weak, of a batch a device; dashed: strong, of a batch in all. Bars: 95 % intervals."
        + (" Hollow: others had the machine." if table["disturbed"].any() else ""),
        figure=figure,
        data=table,
    )


def communication(study: Study) -> Picture:
    """Draw each step in its parts. UserError: only one device was measured."""
    table = steps_table(study)
    table = table[table["devices"] > 1].reset_index(drop=True)
    if table.empty:
        raise UserError(f"study: {study.name!r} measured one device only; measure more with --devices")
    figure, (plot,) = new_figure(height=1.2 + 0.3 * len(table))
    shares = table[[*PARTS, "overlapped_seconds"]].div(table["step"], axis=0)
    shares.index = pd.Index([f"{row.devices} devices, batch {row.batch}" for row in table.itertuples()])
    named = shares.rename(columns={name: label for name, (label, _) in PARTS.items()})
    stacked_bars(plot, named, dict(PARTS.values()), 0.7)
    hidden = shares["overlapped_seconds"]
    begin = shares["unsynced_seconds"] - hidden
    plot.barh(np.arange(len(table)), hidden, left=begin, color=SKY, height=0.7, label="both at once")
    plot.axvline(1, c=BLACK, lw=1)
    plot.set_xlabel("share of the step as measured")
    legend_above(plot, columns=3)
    return Picture(
        name="communication",
        title="What of a step is communication",
        text="Bars that end at the line add up to the step.",
        figure=figure,
        data=table,
    )


def ways_table(study: Study) -> pd.DataFrame:
    """Return for each way how many times as fast as the default it is, with the interval, and the gradient's
    distance."""
    rows = experiment_rows(study, "data_parallel")
    return pd.DataFrame({
        "way": [" ".join(str(value) for value in row["asked"].values() if value is not True) for row in rows],
        **{name: [row["times"][place] for row in rows] for place, name in enumerate(("times", "low", "high"))},
        "distance": [row["distance"] for row in rows],
    })  # fmt: skip


def ways(study: Study) -> Picture:
    """Draw a point with its interval for each way; the default against itself shows what chance does."""
    table = ways_table(study)
    figure, (plot,) = new_figure(height=1.2 + 0.3 * len(table))
    plot.axvline(1, c=BLACK, lw=1)
    for default, color in ((False, BLUE), (True, GREY)):
        own = table[(table["way"] == "default") == default]
        plot.errorbar(own["times"], own.index, xerr=error_bar_lengths(own, "times"), c=color, fmt="o", ms=4, capsize=2)
    plot.set(yticks=table.index, yticklabels=table["way"], ylim=(len(table) - 0.5, -0.5))
    plot.set(xlabel="times as fast as DistributedDataParallel's default")
    plot.grid(axis="y", visible=False)
    return Picture(
        name="data-parallel",
        title="Other ways to train on several devices",
        text="Bars: 95 % intervals. Grey: the default against itself; what it differs by is chance.",
        figure=figure,
        data=table,
    )


RULES = {"unchanged": VERMILION, "linear": ORANGE, "square root": BLUE, "LARS": SKY}


def losses_table(study: Study) -> pd.DataFrame:
    """Return the mean validation loss of each batch and rule over the seeds, with the interval; NaN where one
    diverged."""
    rows = [row for row in experiment_rows(study, "large_batch") if row["asked"]["measure"] == "training"]
    if not rows:
        raise UserError(f"study: {study.name!r} has no training of large_batch yet; go on with it")
    table = pd.DataFrame({
        "rule": [row["asked"]["rule"] for row in rows],
        "times": [row["asked"]["times"] for row in rows],
        "batch_tokens": [row["batch_tokens"] for row in rows],
        "loss": [row["valid_loss"] for row in rows],
        "noise_scale": [(row.get("noise_scale") or [np.nan])[0] for row in rows],
    }).astype({"loss": float})  # fmt: skip
    return over_seeds(table, ["rule", "times"], ["loss", "batch_tokens", "noise_scale"])


def losses(study: Study) -> Picture:
    """Draw loss over the batch, a line for each rule; the dotted line is the noise scale of the smallest batch."""
    table = losses_table(study)
    figure, (plot,) = new_figure()
    small = table[(table["times"] == 1) & (table["rule"] == "unchanged")]
    for place, (rule, color) in enumerate(RULES.items()):
        own = table[(table["rule"] == rule) & table["loss"].notna()]
        rows = own if rule in ("unchanged", "LARS") else pd.concat([small, own])
        rows = rows.sort_values("times")
        if len(own):
            plot.errorbar(rows["batch_tokens"], rows["loss"], error_bar_lengths(rows, "loss"), c=color, label=rule,
                          capsize=2, ms=4, marker=MARKERS[place])  # fmt: skip
    scale = small["noise_scale"].mean()
    if np.isfinite(scale):
        plot.axvline(scale, c=GREY, lw=1, ls=":", label="gradient noise scale")
    shown = [*table["batch_tokens"], *([scale] if np.isfinite(scale) else [])]
    log_axis(plot.xaxis, shown, tables.number)
    plot.set(xlabel="tokens a batch", ylabel="validation loss, nats a token")
    legend_above(plot, columns=3)
    return Picture(
        name="large-batch",
        title="Large batches at equal samples",
        text=f"A line for each rule for the rate, from the recipe's batch. What diverged is not drawn. {OVER_SEEDS}",
        figure=figure,
        data=table,
    )
