"""Pictures of trainings side by side: ways to train, by what each takes and where it ends; shapes of equal cost;
precisions; losses over learning rates by shape, to see whether the best rate stays; and learning curves with the losses
after decays.
"""

import json

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.lines import Line2D

from analysis import tables
from analysis.study import (
    Study,
    experiment_rows,
    learning_curves,
    left_out_text,
    mean_curves,
    over_seeds,
    trained_trials,
)
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
    error_bar_lengths,
    legend_above,
    log_axis,
    new_figure,
)
from tune.errors import UserError
from tune.rows import longest_lives, middle, step_seconds
from tune.search_space import label
from tune.store.queries import ENDED_TRIALS_QUERY

COLORS = BLACK, ORANGE, SKY, VERMILION, GREEN, PURPLE, BLUE
SHAPE = ("d_model", "heads", "layers")
NOT_OF_A_WAY = (*SHAPE, "dropout", "seed", "checkpointing")
ROW = ["way", "shape", "checkpointing", "steps"]


def methods_table(study: Study) -> pd.DataFrame:
    """Return a row for each way, shape, use of checkpointing and number of steps: over the seeds means of losses, and
    of seconds and bytes the medians of those that are known."""
    found = with_ways(trained_trials(study))
    table = found.assign(seconds=found["steps"] * found["step_seconds"])
    taken = table.groupby(ROW)[["seconds", "step_bytes"]].agg(middle).astype(float)
    return over_seeds(table, ROW, ["valid_loss", "accuracy", "parameters"]).merge(taken, on=ROW)


def with_ways(found: pd.DataFrame) -> pd.DataFrame:
    """Return trained_trials() with the way and the shape of each, and whether it has checkpointing."""
    configs = found["config"].map(json.loads)
    return found.assign(
        way=configs.map(lambda config: label({name: config[name] for name in config if name not in NOT_OF_A_WAY})),
        shape=configs.map(lambda config: label({name: config[name] for name in SHAPE})),
        checkpointing=configs.map(lambda config: bool(config.get("checkpointing"))),
    )


def has_own_batch(found: pd.DataFrame) -> pd.Series:
    """Return whether each of trained_trials() has the experiment's own batch."""
    return found["config"].map(lambda config: "batch_tokens" not in json.loads(config))


def methods_scatter(study: Study) -> Picture:
    """Draw loss over seconds and memory, for shapes trained in several ways for as many steps as with the experiment's
    own batch: a colour for each way, a marker for each shape. UserError: there is no such shape yet."""
    whole, found = methods_table(study), trained_trials(study)
    whole = whole[whole["steps"].isin(found.loc[has_own_batch(found), "steps"])]
    table = whole[whole.groupby("shape")["way"].transform("nunique") > 1].reset_index(drop=True)
    if table.empty:
        raise UserError(f"study: {study.name!r} has no shape that was trained in two ways yet; go on with it")
    colors = {way: COLORS[place % len(COLORS)] for place, way in enumerate(table["way"].unique())}
    markers = {shape: MARKERS[place % len(MARKERS)] for place, shape in enumerate(table["shape"].unique())}
    figure, plots = new_figure(columns=2, height=4.2)
    for plot, (name, factor, unit) in zip(
        plots, (("seconds", 1.0, "s of steps"), ("step_bytes", 1e-6, "peak MB")), strict=True
    ):
        for row in table.to_dict("records"):
            color = colors[row["way"]]
            plot.scatter(row[name] * factor, row["valid_loss"], marker=markers[row["shape"]], s=30,
                         facecolor="none" if row["checkpointing"] else color, edgecolor=color)  # fmt: skip
        plot.set_xlabel(unit)
        if table[name].isna().all():  # there was no time to count it
            continue
        ends = error_bar_lengths(table, "valid_loss")
        plot.errorbar(table[name] * factor, table["valid_loss"], ends, fmt="none", ecolor=GREY, lw=1, zorder=0)
        log_axis(plot.xaxis, table[name].dropna() * factor, lambda value: f"{value:g}")
    plots[0].set_ylabel("validation loss, nats")
    for way, color in colors.items():
        plots[0].scatter([], [], color=color, marker="o", s=30, label=way)
    for shape, marker in markers.items():
        plots[1].scatter([], [], color=BLACK, marker=marker, s=30, label=shape)
    if table["checkpointing"].any():
        plots[1].scatter([], [], facecolor="none", edgecolor=BLACK, s=30, label="checkpointing")
    for plot in plots:
        legend_above(plot, columns=2)
    ended = with_ways(trained_trials(study, ENDED_TRIALS_QUERY))
    ended = ended[has_own_batch(ended)]
    left_out = left_out_text(study, ended[ended.groupby("shape")["way"].transform("nunique") > 1])
    return Picture(
        name="methods",
        title="What each way to train takes, and where it ends",
        text=f"The shapes that were trained in several ways, all for as many steps. {OVER_SEEDS}{left_out}",
        figure=figure,
        data=table,
    )


def shapes(study: Study) -> Picture:
    """Draw the losses of the shapes trained in the way that has most of them, by parameters. UserError: too few
    shapes."""
    table = methods_table(study)
    table = table[~table["checkpointing"]]
    way = table.groupby("way")["shape"].nunique().idxmax() if len(table) else ""
    table = table[table["way"] == way].sort_values(["parameters", "shape"], ignore_index=True)
    if len(table) < 2:
        raise UserError(f"study: {study.name!r} has too few shapes that were trained in one way yet; go on with it")
    figure, (plot,) = new_figure(height=1.3 + 0.32 * len(table))
    ends = error_bar_lengths(table, "valid_loss")
    plot.errorbar(table["valid_loss"], table.index, xerr=ends, fmt="o", ms=6, c=BLUE, ecolor=GREY, lw=1)
    named = [f"{row.shape}: {tables.short_count(row.parameters)}" for row in table.itertuples()]
    plot.set(yticks=table.index, yticklabels=named, xlabel="validation loss, nats", ylim=(len(table) - 0.4, -0.6))
    plot.set_ylabel("shape: parameters")
    plot.ticklabel_format(axis="x", useOffset=False)
    plot.locator_params(axis="x", nbins=5)  # losses that lie close have long names
    ended = with_ways(trained_trials(study, ENDED_TRIALS_QUERY))
    left_out = left_out_text(study, ended[(ended["way"] == way) & ~ended["checkpointing"]])
    return Picture(
        name="shapes",
        title="Shapes of equal cost, and more expensive ones",
        text=f"All {way}. {OVER_SEEDS}{left_out}",
        figure=figure,
        data=table,
    )


PRECISIONS = {"fp32": BLUE, "tf32": PURPLE, "bf16": ORANGE, "fp16": GREEN}
MEANS = ("valid_loss", "train_loss", "training_seconds", "tokens")


def precisions(study: Study) -> Picture:
    """Draw loss while training as lines and validation loss as marks, by precision: means over seeds."""
    table = mean_curves(learning_curves(study), ["precision"], MEANS)
    figure, plots = new_figure(1, 2, height=3.6)
    for (precision, color), marker in zip(PRECISIONS.items(), MARKERS, strict=False):
        curve = table[table["precision"] == precision]
        valid = curve.dropna(subset="valid_loss")
        for plot, along in zip(plots, ("steps", "training_seconds"), strict=True):
            if len(curve):
                plot.plot(curve[along], curve["train_loss"], c=color, lw=1, label=precision)
            plot.errorbar(
                valid[along], valid["valid_loss"], error_bar_lengths(valid, "valid_loss"), c=color, fmt=marker, ms=5
            )
    low, high = table["valid_loss"].min(), table["valid_loss"].max()
    for plot, along in zip(plots, ("steps", "seconds in steps"), strict=True):
        log_axis(plot.yaxis, [low, high], tables.short_number)
        plot.set(xlabel=along, xlim=(0, None))
    plots[0].set_ylabel("nats a token")
    kinds = [
        Line2D([], [], c=GREY, lw=1, label="training loss"),
        Line2D([], [], c=GREY, ls="", marker="o", ms=5, label="validation loss"),
    ]
    legend_above(plots[0], [*plots[0].get_legend_handles_labels()[0], *kinds])
    return Picture(
        name="precisions",
        title="One configuration in each precision",
        text=f"Lines: loss while training; marks: validation loss; both means over seeds. {OVER_SEEDS}"
        f"{left_out_text(study)}",
        figure=figure,
        data=table,
    )


WAYS = {False: "standard parametrization: one rate for all tensors", True: "muP"}
HEIGHT = 0.75
"""Nats above the highest of the best losses up to which losses are shown."""
LINE = ["d_model", "layers", "base", "mup"]


def losses_table(study: Study) -> pd.DataFrame:
    """Return the mean loss of each shape at each rate, over the seeds that were trained with the most rates; NaN where
    one diverged. base: the shape that is the same with muP and without, so that its config does not name them."""
    found = trained_trials(study, ENDED_TRIALS_QUERY)
    mup = found["config"].map(json.loads).map(lambda config: config.get("scaling_rules"))
    names = {"learning_rate": "rate", "valid_loss": "loss"}
    table = found.assign(base=mup.isna(), mup=mup.isin([True])).rename(columns=names).astype({"loss": float})
    table = pd.concat([with_most(line) for _, line in table.groupby(LINE)])
    return over_seeds(table, [*LINE, "rate"], ["loss"])


def with_most(line: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the seeds that were trained with the same rates as the seed with the most rates."""
    rates = line.groupby("seed")["rate"].agg(frozenset)
    return line[line["seed"].map(rates == max(rates, key=len))]


def draw_losses_over_rates(study: Study, axis: str, other: str) -> Picture:
    """Draw both parametrizations side by side, with the base's best rate. UserError: no base, or one size only."""
    whole = losses_table(study)
    bases = whole[whole["base"] & whole["loss"].notna()]
    if bases.empty:
        raise UserError(f"study: {study.name!r} has not measured the base yet; go on with it")
    base = whole.loc[bases["loss"].idxmin()]
    same = int(base[other])
    table = whole[whole[other] == same].sort_values([axis, "rate"], ignore_index=True)
    sizes = sorted(table[axis].unique())
    if len(sizes) < 2:
        raise UserError(f"study: {study.name!r} measured one {axis} only; go on with it")
    figure, plots = new_figure(columns=2, height=3.6)
    colors = matplotlib.colormaps["viridis"](np.linspace(0.85, 0.05, len(sizes)))
    for plot, (mup, title) in zip(plots, WAYS.items(), strict=True):
        for place, size in enumerate(sizes):
            rows = line_of(table, axis, size, mup)
            if rows["loss"].isna().all():
                continue
            color, marker = colors[place], MARKERS[place % len(MARKERS)]
            plot.errorbar(rows["rate"], rows["loss"], error_bar_lengths(rows, "loss"), c=color, marker=marker, ms=3,
                          lw=1.3, label=f"{size}")  # fmt: skip
            best = rows.loc[rows["loss"].idxmin()]
            plot.plot(best["rate"], best["loss"], c=color, marker=marker, ms=8, mec=BLACK)
        plot.axvline(base["rate"], c=GREY, lw=1, ls=":")
        log_axis(plot.xaxis, table["rate"], lambda value: f"{value:g}")
        plot.set(title=title, xlabel="base learning rate")
    lowest = table.groupby([axis, "mup"])["loss"].min()
    for plot in plots:
        plot.set_ylim(lowest.min() - 0.05, min(table["loss"].max() + 0.05, lowest.max() + HEIGHT))
    plots[0].set_ylabel("validation loss, nats a token")
    plots[1].set_yticklabels([])
    plots[1].legend(title=axis)
    return Picture(
        name=f"transfer-{'width' if axis == 'd_model' else 'depth'}",
        title=f"The best learning rate over {axis}",
        text=f"At {other} {same}. Ringed: the best of the rates tried; where that is the last of a line, the best lies "
        f"beyond. Dotted: the base's best. {OVER_SEEDS}",
        figure=figure,
        data=table,
    )


def line_of(table: pd.DataFrame, axis: str, size: int, mup: bool) -> pd.DataFrame:
    """Return a size's losses in one parametrization; the base is the same in both, and was trained once."""
    return table[(table[axis] == size) & ((table["mup"] == mup) | table["base"])]


KINDS = ("valid", "averaged", "decayed")
FIRST_SHARE = 0.02
"""Share of the longest life before which nothing is shown."""


def lives_table(study: Study) -> pd.DataFrame:
    """Return a row for each loss of the longest life of each configuration. UserError: no life was measured yet."""
    rows = experiment_rows(study, "curves")
    steps, lives = step_seconds(rows), longest_lives(rows)
    if not lives:
        raise UserError(f"study: {study.name!r} has measured no life yet; go on with it")
    found = [
        {
            "parameters": row["parameters"], **row["config"], "kind": kind,
            "seconds": report * row["steps_per_report"] * steps[label(row["config"])], "loss": loss,
        }
        for row in lives for kind in KINDS
        for report, loss in enumerate(row.get(f"{kind}_loss", ()), 1) if loss is not None
    ]  # fmt: skip
    if not found:
        raise UserError(f"study: {study.name!r} has no life with a loss; begin again with a lower --set learning_rate")
    return pd.DataFrame(found).sort_values(["parameters", "kind", "seconds"], ignore_index=True)


def lives(study: Study) -> Picture:
    """Draw loss over seconds of training, coloured by size; marks: after a decay."""
    table = lives_table(study)
    shown = table[table["seconds"] >= FIRST_SHARE * table["seconds"].max()]
    figure, (plot,) = new_figure(height=4.2)
    sizes = sorted(table["parameters"].unique())
    for size, color in zip(sizes, matplotlib.colormaps["viridis"](np.linspace(0.95, 0.05, len(sizes))), strict=True):
        of_size = shown[shown["parameters"] == size]
        for kind, look in (("valid", {"lw": 1.2}), ("decayed", {"marker": "o", "ms": 4, "ls": "none"})):
            line = of_size[of_size["kind"] == kind]
            label = tables.short_number(size) if kind == "valid" and size in (sizes[0], sizes[-1]) else None
            plot.plot(line["seconds"], line["loss"], c=color, label=label, **look)
    log_axis(plot.xaxis, shown["seconds"], tables.short_number)
    plot.set(xlabel="seconds of training", ylabel="validation loss, nats a token")
    plot.legend(title="parameters")
    return Picture(
        name="curves", title="Learning curves at a constant rate", figure=figure, data=table,
        text="The darker, the larger. Lines: at the constant rate; points: after a decay that ends there.",
    )  # fmt: skip
