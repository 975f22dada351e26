"""What more devices gain, and what of a step is communication."""

import numpy as np
import pandas as pd
from matplotlib.ticker import FuncFormatter, NullLocator

from analysis.study import Study, experiment_rows, published
from analysis.style import BLACK, BLUE, GREY, MARKERS, ORANGE, SKY, VERMILION, Picture, axes, bars, legend_above
from tune import table_rules
from tune.arithmetic import ratio
from tune.errors import UserError
from tune.published import PUBLISHED, read

COLORS = (BLUE, VERMILION, ORANGE, SKY)
PARTS = {"unsynced_seconds": ("computing", BLUE), "exposed_seconds": ("waiting for communication", VERMILION)}


def steps_table(study: Study) -> pd.DataFrame:
    """Of each number of devices and batch: step and parts of it in seconds, low and high ends of the interval; rounds:
    seconds of a step in each."""
    rows = [row for row in experiment_rows(study, "scaling") if "step_seconds" in row]
    if not rows:
        raise UserError(f"study: {study.name!r} has no step of scaling yet; go on with it")
    table = pd.DataFrame({
        "devices": [row["devices"] for row in rows],
        "batch": [row["asked"]["rows"] for row in rows],
        "tokens": [row["tokens"] for row in rows],
        **{name: [row["step_seconds"][place] for row in rows] for place, name in enumerate(("step", "low", "high"))},
        **{name: [row.get(name, [0.0])[0] for row in rows] for name in (*PARTS, "overlapped_seconds")},
        "rounds": [row["rounds"]["step"] for row in rows],
        "disturbed": [row.get("disturbed", False) for row in rows],
    })  # fmt: skip
    return table.sort_values(["devices", "batch"], ignore_index=True)


def speed_ups(table: pd.DataFrame) -> pd.DataFrame:
    """Against one device: weak, the batch a device fixed, by tokens a second; strong, the batch in all fixed."""
    singles = table[table["devices"] == 1].set_index("batch")
    found = []
    for row in table.to_dict("records"):
        for kind, batch in (("weak", row["batch"] // row["devices"]), ("strong", row["batch"])):
            if batch in singles.index:
                single = singles.loc[batch]
                work = row["tokens"] / single["tokens"]
                ends = ratio(single["rounds"], row["rounds"]) if row["devices"] > 1 else (1.0, 1.0, 1.0)
                times = dict(zip(("speed_up", "low", "high"), (work * each for each in ends), strict=True))
                disturbed = row["disturbed"] or single["disturbed"]
                found.append({"kind": kind, "batch": batch, "devices": row["devices"], "disturbed": disturbed} | times)
    return pd.DataFrame(found)


def published_speed_ups() -> pd.DataFrame:
    """The report's, from its own epochs, beside those that it prints, by devices and batch a device."""
    theirs = published("scaling").rename(columns={"speed_up": "printed"})
    return theirs.assign(speed_up=table_rules.speed_ups(read(PUBLISHED / "scaling.csv")))


def speed_up(study: Study) -> Picture:
    """Times as fast as one device, over devices. UserError where only one device was measured."""
    table = speed_ups(steps_table(study))
    devices = sorted(table["devices"].unique())
    if len(devices) < 2:
        raise UserError(f"study: {study.name!r} measured one device only; measure more with --devices")
    figure, (plot,) = axes()
    plot.plot(devices, devices, c=GREY, lw=1, ls=":", label="all of it")
    for place, batch in enumerate(sorted(table["batch"].unique())):
        for kind, line in (("weak", "-"), ("strong", "--")):
            rows = table[(table["batch"] == batch) & (table["kind"] == kind)].sort_values("devices")
            if len(rows) > 1:
                color, marker = COLORS[place % len(COLORS)], MARKERS[place % len(MARKERS)]
                plot.errorbar(rows["devices"], rows["speed_up"], bars(rows, "speed_up"), label=f"{kind}, {batch}",
                              ls=line, capsize=2, c=color, marker=marker, ms=4, zorder=3)  # fmt: skip
                hollow = rows[rows["disturbed"]]
                plot.scatter(hollow["devices"], hollow["speed_up"], s=16, marker=marker, facecolor="w", edgecolor=color,
                             zorder=4)  # fmt: skip
    theirs = published_speed_ups()
    theirs = theirs[theirs["devices"].isin(devices)]
    plot.scatter(theirs["devices"], theirs["speed_up"], marker="x", s=22, c=BLACK, label="published epochs", zorder=3)
    plot.scatter(theirs["devices"], theirs["printed"], marker="+", s=22, c=GREY, label="as printed there", zorder=3)
    if table["disturbed"].any():
        plot.scatter([], [], s=16, facecolor="w", edgecolor=GREY, label="disturbed")
    plot.set(xscale="log", xticks=devices, xlabel="devices", ylabel="times as fast as one", ylim=(0, None))
    plot.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
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
    """Each step in its parts. UserError where only one device was measured."""
    table = steps_table(study)
    table = table[table["devices"] > 1].reset_index(drop=True)
    if table.empty:
        raise UserError(f"study: {study.name!r} measured one device only; measure more with --devices")
    figure, (plot,) = axes(height=1.2 + 0.3 * len(table))
    left = np.zeros(len(table))
    places = np.arange(len(table))
    for name, (label, color) in PARTS.items():
        share = (table[name] / table["step"]).to_numpy(float)
        plot.barh(places, share, left=left, color=color, label=label, height=0.7)
        left += share
    hidden = (table["overlapped_seconds"] / table["step"]).to_numpy(float)
    begin = (table["unsynced_seconds"] / table["step"]).to_numpy(float) - hidden
    plot.barh(places, hidden, left=begin, color=SKY, height=0.7, label="both at once")
    plot.axvline(1, c=BLACK, lw=1)
    names = [f"{row.devices} devices, batch {row.batch}" for row in table.itertuples()]
    plot.set(yticks=places, yticklabels=names, xlabel="share of the step as measured", ylim=(len(table) - 0.4, -0.6))
    plot.grid(axis="y", visible=False)
    legend_above(plot, columns=3)
    return Picture(
        name="communication",
        title="What of a step is communication",
        text="Bars that end at the line add up to the step.",
        figure=figure,
        data=table.drop(columns="rounds"),
    )
