"""The ablation: what each dimension does, perplexity against parameters beside the report's, and a longer training."""

import numpy as np
import pandas as pd

from analysis import tables
from analysis.study import Study, experiment_rows, published
from analysis.style import BLUE, GREY, MARKERS, ORANGE, Picture, axes, legend_above, log_axis
from tune.errors import UserError

NAMES = ["d_model", "heads", "layers", "dropout"]
OURS, THEIRS = "here", "published"
SETS = "report", "no dropout"
LONGER = "longer"


def ablation_table(study: Study) -> pd.DataFrame:
    """A row for each training here and in the report: loss in nats a token, perplexity of words, parameters."""
    rows = [row for row in experiment_rows(study, "ablation") if row["asked"]["set"] in SETS]
    if not rows:
        raise UserError(f"study: {study.name!r} has no configuration of the report's yet; go on with it")
    ours = pd.DataFrame([row["config"] for row in rows])[[*NAMES, "seed"]].assign(
        of=OURS,
        loss=[row["valid_loss"] for row in rows],
        word_perplexity=[np.exp(row["nats_per_word"]) for row in rows],
        parameters=[row["parameters"] for row in rows],
    )
    report = published("ablation")
    theirs = report[NAMES].assign(
        seed=0,
        of=THEIRS,
        loss=report["valid_loss"],
        word_perplexity=report["valid_perplexity"],
        parameters=1e6 * report["parameters_million"],
    )
    return pd.concat([ours, theirs], ignore_index=True)


def alike(table: pd.DataFrame, name: str) -> pd.DataFrame:
    """The loss of each training against the mean of those that differ from it in this dimension alone, where any do."""
    rest = [*(other for other in NAMES if other != name), "seed", "of"]
    groups = table.groupby(rest)
    several = table[groups[name].transform("nunique") > 1]
    return several.assign(against=several["loss"] - several.groupby(rest)["loss"].transform("mean"))


def main_effects(study: Study) -> Picture:
    """A panel for each dimension: the losses of configurations that differ in it alone."""
    table = ablation_table(study)
    figure, plots = axes(2, 2, height=5.6)
    drawn = []
    for plot, name in zip(plots, NAMES, strict=True):
        compared = alike(table, name)
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
    count = len(table[table["of"] == OURS])
    return Picture(
        name="main-effects",
        title="What each dimension does to the validation loss",
        text=f"{count} trainings here, {len(table) - count} in the report. A line joins those that differ in this "
        "dimension alone, each against their mean. Beyond one nat the axis is logarithmic.",
        figure=figure,
        data=pd.concat(drawn, ignore_index=True),
    )


def sizes(study: Study) -> Picture:
    """Perplexity of words against parameters, by dropout."""
    table = ablation_table(study)
    figure, (plot,) = axes(height=4.2)
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
    best = table.loc[table.groupby("of")["word_perplexity"].idxmin()].set_index("of")
    said = [
        f"{kind} {best.loc[kind, 'word_perplexity']:.4g} with {tables.short_count(best.loc[kind, 'parameters'])}"
        for kind in (OURS, THEIRS)
    ]
    return Picture(
        name="perplexity-parameters",
        title="Perplexity against parameters, here and in the report",
        text=f"The lowest: {'; '.join(said)}. Texts and lengths of training differ, and the report's parameters are "
        "most of all its three vocabularies of 65,000 words, so that shapes compare and levels do not.",
        figure=figure,
        data=table,
    )


def overfitting_table(study: Study) -> pd.DataFrame:
    """A row for each point of the curves of the longer training and of the same at the common length, by `steps_of`.

    UserError where the longer one was not measured.
    """
    rows = experiment_rows(study, "ablation")
    longer = [row for row in rows if row["asked"]["set"] == LONGER]
    if not longer:
        raise UserError(f"study: {study.name!r} has no longer training yet, or --fix left it out; go on with it")
    configs = [row["config"] for row in longer]
    common = [row for row in rows if row["asked"]["set"] in SETS and row["config"] in configs]
    found = [
        {"steps_of": row["steps"], "epochs": row["epochs"] * steps / row["steps"], "loss": loss, "valid_loss": valid}
        for row in (*common, *longer)
        for steps, _, _, loss, valid in row["curve"]
    ]
    return pd.DataFrame(found).astype({"valid_loss": float})


def overfitting(study: Study) -> Picture:
    """Loss over epochs, while training as lines, of the validation split as marks."""
    table = overfitting_table(study)
    figure, (plot,) = axes(height=3.8)
    said = []
    for (steps, curve), color in zip(table.groupby("steps_of"), (BLUE, ORANGE), strict=False):
        valid = curve.dropna(subset="valid_loss")
        plot.plot(curve["epochs"], curve["loss"], c=color, lw=1, label=f"{steps:,} steps, while training")
        plot.plot(valid["epochs"], valid["valid_loss"], c=color, marker="o", ms=5, ls=":", label="validation")
        lowest = valid.loc[valid["valid_loss"].idxmin()]
        said.append(f"{steps:,} steps {valid['valid_loss'].iloc[-1]:.3f}, lowest {lowest['valid_loss']:.3f} after "
                    f"{lowest['epochs']:.3g} epochs")  # fmt: skip
    plot.set(xlabel="epochs", ylabel="nats a token", xlim=(0, None))
    legend_above(plot, columns=2)
    return Picture(
        name="overfitting",
        title="The same training, longer",
        text=f"Validation loss at the end: {'; '.join(said)}. Dropout is on while training.",
        figure=figure,
        data=table,
    )
