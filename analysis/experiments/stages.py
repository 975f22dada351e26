"""What the seconds of a training go to, before and after."""

import pandas as pd

from analysis.study import Study, experiment_rows, published
from analysis.style import BLUE, GREEN, GREY, ORANGE, SKY, VERMILION, Picture, axes, legend_above, stacked_bars
from tune.published import OUR_STAGES

COLORS = {
    "data": SKY, "forward": GREEN, "loss and backward": BLUE, "optimizer": ORANGE, "evaluation": VERMILION,
    "rest": GREY,
}  # fmt: skip
LEAST_LABEL = 0.05
"""A smaller share has no number of its own on a pie."""


def stages_table(study: Study) -> pd.DataFrame:
    """Seconds of each stage (columns) for each way (rows), the median over the seeds."""
    rows = experiment_rows(study, "stages")
    ways = [f"{row['asked']['way']}, {row['config']['precision']}" for row in rows]
    found = pd.DataFrame([row["stages"] for row in rows], index=pd.Index(ways, name="way"))
    return found.groupby(level=0, sort=False).median()[list(COLORS)]


def stage_bars(study: Study) -> Picture:
    """A stacked bar of seconds for each way."""
    table = stages_table(study)
    figure, (plot,) = axes(height=1.4 + 0.5 * len(table))
    ends = stacked_bars(plot, table, COLORS, 0.65)
    for place, whole in enumerate(ends):
        plot.text(float(whole), place, f" {whole:.1f} s", va="center", fontsize=9)
    plot.set(xlabel="s", xlim=(0, 1.12 * ends.max()))
    legend_above(plot, columns=3)
    return Picture(
        name="stages-bars",
        title="What the seconds of a training go to",
        text="Medians over seeds.",
        figure=figure,
        data=table.reset_index(),
    )


def stage_pies(study: Study) -> Picture:
    """A pie of shares for each way, and the report's."""
    theirs = published("stages").set_index("stage")["seconds"].rename(index=OUR_STAGES)
    table = stages_table(study)
    table.loc["published, RoBERTa"] = theirs.reindex(table.columns).fillna(0.0)
    figure, plots = axes(columns=len(table), height=2.15)
    for plot, (way, seconds) in zip(plots, table.iterrows(), strict=True):
        plot.pie(
            seconds, colors=list(COLORS.values()), startangle=90, counterclock=False, radius=1.15, pctdistance=0.68,
            autopct=lambda percent: f"{percent:.0f}%" if percent >= 100 * LEAST_LABEL else "",
            textprops={"fontsize": 8}, wedgeprops={"linewidth": 0.7, "edgecolor": "white"},
        )  # fmt: skip
        plot.set_title(str(way), loc="center", fontsize=9)
    figure.legend(plots[0].patches, list(COLORS), loc="outside lower center", ncols=len(COLORS), fontsize=8,
                  columnspacing=1, handlelength=1)  # fmt: skip
    share = table.div(table.sum(axis=1), axis=0)
    return Picture(
        name="stages",
        title="Shares of the stages of a training",
        text="Medians over seeds. The report does not tell its optimizer apart.",
        figure=figure,
        data=share.reset_index(),
    )
