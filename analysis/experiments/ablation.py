"""Pictures of the ablation: learning curves by width, what each dimension does, perplexity and minutes against
parameters beside the report's; and where validation losses turn on a text that is seen again and again.
"""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from analysis import tables
from analysis.study import Study, learning_curves, left_out_text, mean_curves, published, trained_trials
from analysis.style import (
    BLUE,
    GREEN,
    GREY,
    MARKERS,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    Picture,
    legend_above,
    log_axis,
    new_figure,
)
from tune.reports import LARGEST_LOG

NAMES = ["d_model", "heads", "layers", "dropout"]
OURS, THEIRS = "here", "published"
DROPOUTS = {0.0: SKY, 0.1: BLUE, 0.3: GREEN, 0.4: PURPLE, 0.5: ORANGE}
LAYERS = {2: "-", 4: "--", 8: "-.", 16: ":"}
HEADS = {4: "o", 8: "s", 16: "D", 32: "^"}
ALONG = {"epochs": "epochs", "minutes": "minutes of training"}
SHOWN = {
    "loss": ("nats a token", "valid_loss", "trained_loss"),
    "accuracy": ("accuracy, %", "accuracy", "trained_accuracy"),
    "perplexity": ("perplexity", "perplexity", "trained_perplexity"),
}
"""Quantities that are drawn: label of the axis, column of the validation split, and column of the training split."""


def learning(study: Study, what: str, along: str) -> Picture:
    """Draw one of SHOWN over epochs or minutes, a panel for each width and a line for each configuration."""
    label, valid, of_training = SHOWN[what]
    every = learning_curves(study).dropna(subset="valid_loss")
    if what == "accuracy":
        every[[valid, of_training]] *= 100
    table = mean_curves(every, NAMES, [valid, of_training, *ALONG])
    widths = sorted(table["d_model"].unique())
    columns = min(3, len(widths))
    rows = -(-len(widths) // columns)
    figure, plots = new_figure(rows, columns, height=0.6 + 2.1 * rows)
    for plot, width in zip(plots, widths, strict=False):
        for _, line in table[table["d_model"] == width].groupby(NAMES):
            style = style_of(line.iloc[0])
            plot.plot(line[along], line[valid], lw=1.3, markevery=0.25, ms=4, **style)
            plot.plot(line[along], line[of_training], lw=0.6, alpha=0.6, **style | {"marker": ""})
        plot.set_title(f"d_model {width:g}", loc="right", fontsize=9)
        if what == "perplexity":
            shown = table.loc[table["d_model"] == width, [valid, of_training]]
            log_axis(plot.yaxis, shown.stack(), tables.short_count)
    for plot in plots[len(widths) :]:
        plot.set_axis_off()
    for plot in plots[(rows - 1) * columns : len(widths)]:
        plot.set_xlabel(ALONG[along])
    for plot in plots[::columns]:
        plot.set_ylabel(label)
    draw_legend(figure.axes[0], table)
    return Picture(
        name=f"{what}-{along}",
        title=f"{what.capitalize()} over {ALONG[along]}, by width",
        text="Lines: means over seeds, on the validation split; thin: on the training split, without dropout."
        f"{left_out_text(study)}",
        figure=figure,
        data=table,
    )


def style_of(config: pd.Series) -> dict[str, Any]:
    """Return the style of a configuration's line: its colour by dropout, dashes by layers, marker by heads."""
    return {
        "c": DROPOUTS.get(config["dropout"], VERMILION),
        "ls": LAYERS.get(config["layers"], "-"),
        "marker": HEADS.get(config["heads"], "X"),
    }


def draw_legend(plot: Axes, table: pd.DataFrame) -> None:
    """Draw the legend of colours for dropout, dashes for layers and markers for heads."""
    dropouts, layers, heads = (sorted(table[name].unique()) for name in ("dropout", "layers", "heads"))
    shown = [Line2D([], [], c=DROPOUTS.get(each, VERMILION), label=f"dropout {each:g}") for each in dropouts]
    shown += [Line2D([], [], c=GREY, ls=LAYERS.get(each, "-"), label=f"{each:g} layers") for each in layers]
    shown += [Line2D([], [], c=GREY, ls="", marker=HEADS.get(each, "X"), label=f"{each:g} heads") for each in heads]
    figure = plot.get_figure(root=True)
    assert figure is not None
    figure.legend(handles=shown, loc="outside upper left", ncols=4)


def ablation_table(study: Study) -> pd.DataFrame:
    """Return a row for each training, here and in the report: nats a token, perplexity of words, parameters,
    minutes."""
    found = trained_trials(study)
    ours = found[[*NAMES, "seed", "parameters"]].assign(
        of=OURS,
        loss=found["valid_loss"],
        word_perplexity=np.exp(found["nats_per_word"].clip(upper=LARGEST_LOG)),
        minutes=found["training_seconds"] / 60,
    )
    report = published("ablation")
    theirs = report[[*NAMES, "minutes"]].assign(
        seed=0,
        of=THEIRS,
        loss=report["valid_loss"],
        word_perplexity=report["valid_perplexity"],
        parameters=1e6 * report["parameters_million"],
    )
    return pd.concat([ours, theirs], ignore_index=True)


def losses_against_mean(table: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return the loss of each training against the mean of those alike but for this dimension, where it has several
    values."""
    rest = [*(other for other in NAMES if other != name), "seed", "of"]
    groups = table.groupby(rest)
    several = table[groups[name].transform("nunique") > 1]
    return several.assign(against=several["loss"] - several.groupby(rest)["loss"].transform("mean"))


def main_effects(study: Study) -> Picture:
    """Draw a panel for each dimension: the losses of configurations that differ in it alone."""
    table = ablation_table(study)
    figure, plots = new_figure(2, 2, height=5.6)
    drawn = []
    for plot, name in zip(plots, NAMES, strict=True):
        compared = losses_against_mean(table, name)
        drawn.append(compared.assign(dimension=name))
        values = sorted(compared[name].unique())
        for (kind, color), shift in zip(((OURS, BLUE), (THEIRS, ORANGE)), (-0.08, 0.08), strict=True):
            rows = compared[compared["of"] == kind]
            places = rows[name].map(values.index) + shift
            rest = [other for other in NAMES if other != name]
            for _, line in rows.assign(place=places).sort_values(name).groupby([*rest, "seed"]):
                plot.plot(line["place"], line["against"], c=color, lw=1.1, alpha=0.7)
            plot.scatter(places, rows["against"], s=12, c=color, lw=0, label=kind)
        plot.axhline(0, c=GREY, lw=0.8)
        plot.set(xticks=range(len(values)), xticklabels=[f"{value:g}" for value in values], xlabel=name)
        plot.set_yscale("symlog", linthresh=1)
        plot.set_yticks([-3, -1, -0.5, 0, 0.5, 1, 3], ["-3", "-1", "-.5", "0", ".5", "1", "3"])
    for plot in plots[::2]:
        plot.set_ylabel("nats from the mean")
    legend_above(plots[0])
    return Picture(
        name="main-effects",
        title="What each dimension does to the validation loss",
        text="A line joins trainings that differ in this dimension alone, each against their mean. Beyond one nat the "
        f"axis is logarithmic.{left_out_text(study)}",
        figure=figure,
        data=pd.concat(drawn, ignore_index=True),
    )


def sizes(study: Study) -> Picture:
    """Draw perplexity of words against parameters, by dropout."""
    table = ablation_table(study)
    figure, (plot,) = new_figure(height=4.2)
    for place, dropout in enumerate(sorted(table["dropout"].unique())):
        for kind, color in ((OURS, BLUE), (THEIRS, ORANGE)):
            rows = table[(table["of"] == kind) & (table["dropout"] == dropout)]
            marker = MARKERS[place % len(MARKERS)]
            plot.scatter(rows["parameters"], rows["word_perplexity"], s=26, c=color, alpha=0.8, lw=0, marker=marker)
        plot.scatter([], [], s=26, c=GREY, marker=marker, label=f"dropout {dropout:g}")
    for kind, color in ((OURS, BLUE), (THEIRS, ORANGE)):
        plot.scatter([], [], s=26, c=color, label=kind)
    log_axis(plot.xaxis, table["parameters"], tables.short_count)
    log_axis(plot.yaxis, table["word_perplexity"], tables.short_count)
    plot.set(xlabel="parameters", ylabel="validation perplexity of words")
    legend_above(plot, columns=5)
    return Picture(
        name="perplexity-parameters",
        title="Perplexity against parameters, here and in the report",
        text="Texts and lengths of training differ, and the report's parameters are most of all its three vocabularies "
        f"of 65,000 words, so that shapes compare and levels do not.{left_out_text(study)}",
        figure=figure,
        data=table,
    )


def minutes(study: Study) -> Picture:
    """Draw minutes of training against parameters, here and in the report."""
    table = ablation_table(study)
    figure, (plot,) = new_figure(height=3.8)
    for (kind, color), marker in zip(((OURS, BLUE), (THEIRS, ORANGE)), MARKERS, strict=False):
        rows = table[table["of"] == kind]
        plot.scatter(rows["parameters"], rows["minutes"], s=26, c=color, alpha=0.8, lw=0, marker=marker, label=kind)
    log_axis(plot.xaxis, table["parameters"], tables.short_count)
    log_axis(plot.yaxis, table["minutes"], tables.short_number)
    plot.set(xlabel="parameters", ylabel="minutes of training")
    legend_above(plot)
    return Picture(
        name="minutes-parameters",
        title="What a training takes, by size",
        text="Equal tokens for all of one kind; devices and lengths of training differ between the two."
        f"{left_out_text(study)}",
        figure=figure,
        data=table,
    )


def overfitting(study: Study) -> Picture:
    """Draw a panel for each depth: loss of both splits over epochs, and where the validation loss turned."""
    every = learning_curves(study).dropna(subset="valid_loss")
    table = mean_curves(every, NAMES, ["valid_loss", "trained_loss", "train_loss", *ALONG])
    depths = sorted(table["layers"].unique())
    figure, plots = new_figure(1, len(depths), height=3.8)
    for plot, depth in zip(plots, depths, strict=True):
        for _, line in table[table["layers"] == depth].groupby(NAMES):
            dropout = line["dropout"].iloc[0]
            color, lowest = DROPOUTS.get(dropout, VERMILION), line.loc[line["valid_loss"].idxmin()]
            plot.plot(line["epochs"], line["valid_loss"], c=color, lw=1.4, label=f"dropout {dropout:g}")
            plot.plot(line["epochs"], line["trained_loss"], c=color, lw=1, ls=":")
            plot.scatter([lowest["epochs"]], [lowest["valid_loss"]], c=color, s=36, marker="v", zorder=3)
        plot.set(xlabel="epochs", xlim=(0, None))
        plot.set_title(f"{depth:g} layers", loc="right", fontsize=9)
    plots[0].set_ylabel("nats a token")
    legend_above(plots[0], columns=3)
    return Picture(
        name="overfitting",
        title="The same text again and again",
        text="Means over seeds. Lines: validation; dotted: training, without dropout; marked: the lowest validation "
        f"loss.{left_out_text(study)}",
        figure=figure,
        data=table,
    )
