"""Ways to train: what each takes and where it ends; and what shapes of equal cost come to."""

import json

import pandas as pd

from analysis import tables
from analysis.study import Study, over_seeds, trained
from analysis.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    MARKERS,
    ORANGE,
    OVER_SEEDS,
    PURPLE,
    SKY,
    VERMILION,
    Picture,
    axes,
    bars,
    legend_above,
    log_axis,
)
from tune.errors import UserError
from tune.search_space import label

COLORS = BLACK, ORANGE, SKY, VERMILION, GREEN, PURPLE, BLUE
SHAPE = ("d_model", "heads", "layers")
NOT_OF_A_WAY = (*SHAPE, "dropout", "seed", "checkpointing")
ROW = ["way", "shape", "checkpointing", "steps"]


def methods_table(study: Study) -> pd.DataFrame:
    """A row for each way, shape, form of checkpointing and number of steps: the means over the seeds."""
    found = trained(study)
    configs = found["config"].map(json.loads)
    ways = configs.map(lambda config: label({name: config[name] for name in config if name not in NOT_OF_A_WAY}))
    table = found[["steps", "parameters", "step_bytes", "valid_loss", "accuracy"]].assign(
        way=ways,
        shape=configs.map(lambda config: label({name: config[name] for name in SHAPE})),
        checkpointing=configs.map(lambda config: bool(config.get("checkpointing"))),
        seconds=found["steps"] * found["step_seconds"],
    )
    return over_seeds(table, ROW, ["valid_loss", "accuracy", "seconds", "step_bytes", "parameters"])


def methods_scatter(study: Study) -> Picture:
    """Seconds and memory against loss: a colour for each way, a marker for each shape that is trained in several."""
    whole = methods_table(study)
    table = whole[whole.groupby("shape")["way"].transform("nunique") > 1].reset_index(drop=True)
    if table.empty:
        raise UserError(f"study: {study.name!r} has no shape that was trained in two ways yet; go on with it")
    colors = {way: COLORS[place % len(COLORS)] for place, way in enumerate(table["way"].unique())}
    markers = {shape: MARKERS[place % len(MARKERS)] for place, shape in enumerate(table["shape"].unique())}
    figure, plots = axes(columns=2, height=4.2)
    for plot, (name, factor, unit) in zip(
        plots, (("seconds", 1.0, "s of steps"), ("step_bytes", 1e-6, "peak MB")), strict=True
    ):
        for row in table.to_dict("records"):
            color = colors[row["way"]]
            plot.scatter(row[name] * factor, row["valid_loss"], marker=markers[row["shape"]], s=30,
                         facecolor="none" if row["checkpointing"] else color, edgecolor=color)  # fmt: skip
        ends = bars(table, "valid_loss")
        plot.errorbar(table[name] * factor, table["valid_loss"], ends, fmt="none", ecolor=GREY, lw=1, zorder=0)
        log_axis(plot.xaxis, table[name].dropna() * factor, lambda value: f"{value:g}")
        plot.set_xlabel(unit)
    plots[0].set_ylabel("validation loss, nats")
    for way, color in colors.items():
        plots[0].scatter([], [], color=color, marker="o", s=30, label=way)
    for shape, marker in markers.items():
        plots[1].scatter([], [], color=BLACK, marker=marker, s=30, label=shape)
    if table["checkpointing"].any():
        plots[1].scatter([], [], facecolor="none", edgecolor=BLACK, s=30, label="checkpointing")
    for plot in plots:
        legend_above(plot, columns=2)
    return Picture(
        name="methods",
        title="What each way to train takes, and where it ends",
        text=f"The shapes that were trained in several ways. {OVER_SEEDS}",
        figure=figure,
        data=table,
    )


def shapes(study: Study) -> Picture:
    """Losses of all shapes that are trained in one way, by their parameters."""
    table = methods_table(study)
    table = table[~table["checkpointing"]]
    way = table.groupby("way")["shape"].nunique().idxmax() if len(table) else ""
    table = table[table["way"] == way].sort_values(["parameters", "shape"], ignore_index=True)
    if len(table) < 2:
        raise UserError(f"study: {study.name!r} has too few shapes that were trained in one way yet; go on with it")
    figure, (plot,) = axes(height=1.3 + 0.32 * len(table))
    ends = bars(table, "valid_loss")
    plot.errorbar(table["valid_loss"], table.index, xerr=ends, fmt="o", ms=6, c=BLUE, ecolor=GREY, lw=1)
    named = [f"{row.shape}: {tables.short_count(row.parameters)}" for row in table.itertuples()]
    plot.set(yticks=table.index, yticklabels=named, xlabel="validation loss, nats", ylim=(len(table) - 0.4, -0.6))
    plot.set_ylabel("shape: parameters")
    plot.ticklabel_format(axis="x", useOffset=False)
    plot.locator_params(axis="x", nbins=5)  # losses that lie close have long names
    return Picture(
        name="shapes",
        title="Shapes of equal cost, and dearer ones",
        text=f"All {way}. {OVER_SEEDS}",
        figure=figure,
        data=table,
    )
