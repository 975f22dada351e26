"""Pictures of where the cap went: burn-down, trials' bills, slots' timeline, cost and memory as predicted."""

import numpy as np
import pandas as pd
from matplotlib.patches import Patch

from analysis import tables
from analysis.spending import slot_hold_times
from analysis.study import Study
from analysis.style import (
    BLACK,
    BLUE,
    CHARGE_COLORS,
    GREY,
    MANY,
    VERMILION,
    Picture,
    byte_axis,
    legend_above,
    level_styles,
    log_axis,
    new_figure,
    stacked_bars,
    time_ticks,
)
from tune.errors import UserError
from tune.store.queries import DECAY, END

MOMENTS = 400  # points of the burn-down
BILLS = 20  # trials with a bar of their own
MOST_LANES = 32
"""Most lanes of the timeline, which are slots held at the same time."""
UNREPORTED, NOT_OVER, PALE = "held, not reported yet", "not over yet", "#DDDDDD"
NOTHING_YET = "budget: nothing was charged yet; wait for the first segment of a trial to end"


def burn_down(study: Study) -> Picture:
    """Draw what is left of the cap over the study's clock, and what took the rest. UserError: nothing was charged
    yet."""
    charges = study.read("SELECT at, what, seconds FROM charges WHERE what <> 'idle' ORDER BY at")
    slots = slot_hold_times(study)
    if charges.empty:
        raise UserError(NOTHING_YET)
    end = max(charges["at"].max(), slots["until"].max(), 1.0)
    moments = np.linspace(0, end, MOMENTS)
    reported = np.unique(np.ceil(np.append(0.0, charges["at"]) * 10) / 10)  # a report's charges are of one moment
    opened, until = slots["opened"].to_numpy(), slots["until"].to_numpy()
    taken, known = (
        np.clip(times[:, None] - opened, 0, until - opened) @ slots["share"].to_numpy() for times in (moments, reported)
    )
    table = pd.DataFrame({"seconds": moments})
    for what in (name for name in CHARGE_COLORS if name != "idle"):
        rows = charges[charges["what"] == what]
        paid = np.concatenate(([0.0], rows["seconds"].cumsum()))[np.searchsorted(rows["at"], reported, side="right")]
        table[what] = np.interp(taken, known, paid)  # what is charged with a report was done since the one before
    # idle is what no later moment has charged either
    beyond = np.clip(taken - table[list(table)[1:]].sum(axis=1), 0, None)
    table["idle"] = np.minimum.accumulate(beyond[::-1])[::-1]
    table[UNREPORTED] = beyond - table["idle"]
    cap = float(study.facts["cap_seconds"])
    whats = [what for what in (*CHARGE_COLORS, UNREPORTED) if table[what].max() > 0]
    figure, (plot,) = new_figure()
    top = np.full(MOMENTS, cap)
    for what in whats:
        bottom = top - table[what]
        plot.fill_between(moments, bottom, top, color=CHARGE_COLORS.get(what, PALE), lw=0, label=what)
        top = bottom
    plot.plot(moments, top, c=BLACK, lw=1.5, label="left")
    plot.set(xlabel="wall clock of the study", ylabel="device-seconds left", ylim=(0, cap * 1.02), xlim=(0, end))
    time_ticks(plot.xaxis)
    plot.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    legend_above(plot)
    times, seconds = (map(tables.duration, each) for each in (moments, top))
    return Picture(
        name="burn-down",
        title="The cap, burning down",
        text="Line: what was left of the cap; areas above it: what took the rest.",
        figure=figure,
        data=table.assign(left=top),
        hover=(plot, moments, top, [*map("after {}: {} left".format, times, seconds)]),
    )


def bills(study: Study) -> Picture:
    """Draw the device-seconds of each trial, by what they went to. UserError: nothing was charged yet."""
    charges = study.read(
        """SELECT trial, family, what, SUM(seconds) AS seconds FROM charges JOIN trials USING (trial)
           GROUP BY trial, family, what"""
    )
    if charges.empty:
        raise UserError(NOTHING_YET)
    table = charges.pivot_table(index=["trial", "family"], columns="what", values="seconds", fill_value=0.0)
    table = table.reindex(columns=list(CHARGE_COLORS), fill_value=0.0)
    table = table.loc[table.sum(axis=1).sort_values(ascending=False).index]
    shown = table.head(BILLS).set_axis([f"{trial} {family}" for trial, family in table.index[:BILLS]])
    if len(table) > BILLS:
        rest = table.iloc[BILLS:].sum().rename(f"{len(table) - BILLS} others")
        shown = pd.concat((shown, rest.to_frame().T))
    figure, (plot,) = new_figure(height=0.8 + 0.21 * len(shown))
    stacked_bars(plot, shown, {what: color for what, color in CHARGE_COLORS.items() if shown[what].sum() > 0}, 0.75)
    plot.set_xlabel("device-seconds")
    legend_above(plot)
    return Picture(
        name="bills",
        title="What each trial took",
        text="The most expensive first.",
        figure=figure,
        data=table.reset_index(),
    )


def lanes_of(slots: pd.DataFrame) -> dict[int, int]:
    """Return a lane for each slot; slots share one if the earlier's last segment ends before the later's first begins,
    as those of a device do after a resume."""
    ends: list[float] = []
    found = {}
    for slot, (opened, until) in slots.sort_values("opened").iterrows():
        lane = next((lane for lane, end in enumerate(ends) if end <= opened), len(ends))
        ends[lane : lane + 1] = [until]
        found[slot] = lane
    return found


def timeline(study: Study) -> Picture:
    """Draw which slot ran what, and when. What is not over goes as far as the burn-down. UserError: nothing was charged
    yet."""
    leases = study.read(
        "SELECT slot, trial, purpose, rung, opened, closed FROM leases WHERE purpose IN ('rung', 'final')"
    )
    last = END if study.measure.is_loop_metric else DECAY
    level = leases["rung"].astype(float).map("rung {:.0f}".format).where(leases["purpose"] != "final", last)
    table = leases.assign(
        level=level.where(leases["closed"].notna(), NOT_OVER),
        until=leases["closed"].astype(float).fillna(slot_hold_times(study)["until"].max()),
    )
    table = table[table["until"] > table["opened"]]
    if table.empty:
        raise UserError(NOTHING_YET)
    levels = table["level"].unique()
    styles = level_styles([level for level in levels if level != NOT_OVER])
    styles |= {NOT_OVER: (PALE, "")} if NOT_OVER in levels else {}
    lanes = table["slot"].map(lanes_of(table.groupby("slot").agg({"opened": "min", "until": "max"})))
    shown = table[lanes < MOST_LANES]
    ticks = range(min(lanes.max() + 1, MOST_LANES))
    figure, (plot,) = new_figure(height=1.2 + 0.28 * max(len(ticks), 2))
    for (lane, level), rows in shown.groupby([lanes, "level"]):
        spans = list(zip(rows["opened"], rows["until"] - rows["opened"], strict=True))
        plot.broken_barh(spans, (lane - 0.4, 0.8), color=styles[level][0], edgecolor="white", lw=0.3)
    plot.set(yticks=ticks, yticklabels=[f"slot {lane}" for lane in ticks], xlabel="wall clock of the study")
    left_out = f", {len(table) - len(shown)} on further slots left out" if len(shown) < len(table) else ""
    time_ticks(plot.xaxis)
    plot.grid(axis="y", visible=False)
    legend_above(plot, [Patch(color=color, label=level) for level, (color, _) in styles.items()])
    return Picture(
        name="timeline",
        title="Who ran when",
        text=f"A bar for each segment of a trial{left_out}.",
        figure=figure,
        data=table,
    )


def prices(study: Study) -> Picture:
    """Draw predicted against charged device-seconds of each lease. UserError: none is closed yet."""
    table = study.read(
        """SELECT lease, trial, family, purpose, rung, price, reserved, charged, reason
           FROM leases JOIN trials USING (trial) WHERE charged > 0 AND price > 0 AND purpose IN ('rung', 'final')
           ORDER BY lease"""
    )
    if table.empty:
        raise UserError(NOTHING_YET)
    ratio = table["charged"] / table["price"]
    low, middle, high = np.percentile(ratio, (5, 50, 95))
    figure, (plot,) = new_figure(height=4.0)
    cut = table["reason"].eq("diverged") & ~table["trial"].duplicated(keep="last")
    for rows, color, marker, label in (
        (table[~cut], BLUE, "o", "lease"),
        (table[cut], VERMILION, "x", "diverged"),
    ):
        if len(rows):
            plot.scatter(rows["price"], rows["charged"], s=18, c=color, marker=marker, alpha=0.8, label=label,
                         rasterized=len(rows) > MANY)  # fmt: skip
    ends = [table["price"].min(), table["price"].max()]
    plot.plot(ends, ends, c=GREY, lw=1, label="predicted = charged")
    plot.set(xlabel="predicted device-seconds", ylabel="charged device-seconds")
    log_axis(plot.xaxis, table["price"], tables.short_number)
    log_axis(plot.yaxis, table["charged"], tables.short_number)
    plot.legend(loc="upper left")
    columns = (table[name] for name in ("trial", "price", "charged"))
    labels = [*map("{}: {:.1f} device-seconds predicted, {:.1f} charged".format, *columns)]
    return Picture(
        name="prices",
        title="Predicted against charged cost",
        text=f"Charged / predicted of {len(table)} leases: median {middle:.2f}, nine in ten {low:.2f} to {high:.2f}.",
        figure=figure,
        data=table.assign(ratio=ratio),
        hover=(plot, table["price"], table["charged"], labels),
    )


def memory(study: Study) -> Picture:
    """Draw a point for each time that a trial's memory was predicted. UserError: it was not yet."""
    table = study.read(
        """SELECT memory.trial, family, micro_batches, predicted, measured
           FROM memory JOIN trials USING (trial) WHERE predicted > 0"""
    ).astype({"predicted": float, "measured": float})
    if table.empty:
        raise UserError("memory: nothing was predicted yet; wait for the first segment of a trial to end")
    fitted, out = table[table["measured"] > 0], table[table["measured"].isna()]
    figure, (plot,) = new_figure(height=4.0)
    for rows, heights, color, marker, label in (
        (fitted, fitted["measured"], BLUE, "o", "measured"),
        (out, out["predicted"], VERMILION, "x", "ran out"),
    ):
        if len(rows):
            plot.scatter(rows["predicted"], heights, s=18, c=color, marker=marker, alpha=0.8, label=label,
                         rasterized=len(rows) > MANY)  # fmt: skip
    ends = [table["predicted"].min(), table["predicted"].max()]
    plot.plot(ends, ends, c=GREY, lw=1, label="predicted = measured")
    plot.set(xlabel="memory predicted", ylabel="memory taken at most")
    byte_axis(plot.xaxis, table["predicted"])
    byte_axis(plot.yaxis, [*fitted["measured"], *ends])
    plot.legend(loc="upper left")
    ratio = fitted["measured"] / fitted["predicted"]
    times = "" if ratio.empty else f"{np.median(ratio):.2f} times the prediction (median), {ratio.max():.2f} at most; "
    return Picture(
        name="memory",
        title="Predicted against real memory",
        text=f"{len(fitted)} times measured: {times}{len(out)} times it ran out.",
        figure=figure,
        data=table,
    )
