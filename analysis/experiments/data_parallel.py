"""How fast other ways to train on several devices are than DistributedDataParallel as it comes."""

import numpy as np
import pandas as pd

from analysis.study import Study, experiment_rows
from analysis.style import BLACK, BLUE, GREY, Picture, axes, bars


def ways_table(study: Study) -> pd.DataFrame:
    """Of each way: times as fast as the default with its interval, and the gradient's distance."""
    rows = experiment_rows(study, "data_parallel")
    return pd.DataFrame({
        "way": [" ".join(str(value) for value in row["asked"].values() if value is not True) for row in rows],
        **{name: [row["times"][place] for row in rows] for place, name in enumerate(("times", "low", "high"))},
        "distance": [row["distance"] for row in rows],
    })  # fmt: skip


def ways(study: Study) -> Picture:
    """A point with its interval for each; the default against itself shows what chance does."""
    table = ways_table(study)
    figure, (plot,) = axes(height=1.2 + 0.3 * len(table))
    places = np.arange(len(table))
    ends = bars(table, "times")
    colors = [GREY if way == "default" else BLUE for way in table["way"]]
    plot.axvline(1, c=BLACK, lw=1)
    for place, color in zip(places, colors, strict=True):
        end = ends[:, place : place + 1]
        plot.errorbar(table["times"][place], place, xerr=end, c=color, marker="o", ms=4, capsize=2)
    plot.set(yticks=places, yticklabels=table["way"], ylim=(len(table) - 0.5, -0.5))
    plot.set(xlabel="times as fast as DistributedDataParallel's default")
    plot.grid(axis="y", visible=False)
    return Picture(
        name="data-parallel",
        title="Other ways to train on several devices",
        text="Bars: 95 % intervals. Grey: the default against itself; what it differs by is chance.",
        figure=figure,
        data=table,
    )
