"""Predicted against measured memory of each trial, and what ran out."""

import numpy as np

from analysis.figures.picture import BLUE, GREY, VERMILION, Picture, axes, byte_axis
from analysis.studies import Study
from tune.errors import UserError


def memory(study: Study) -> Picture:
    """A point each time a trial's memory was predicted. UserError before the first, and of journals without them."""
    if not study.has("memory", "predicted"):
        raise UserError("memory: this study's version predicted none")
    table = study.read(
        """SELECT memory.trial, family, micro_batches, predicted, measured
           FROM memory JOIN trials USING (trial) WHERE predicted > 0"""
    ).astype({"predicted": float, "measured": float})
    if table.empty:
        raise UserError("memory: nothing was predicted yet; wait for the first stretch of a trial to end")
    fitted, out = table[table["measured"] > 0], table[table["measured"].isna()]
    figure, (plot,) = axes(height=4.0)
    for rows, heights, color, marker, label in (
        (fitted, fitted["measured"], BLUE, "o", "measured"),
        (out, out["predicted"], VERMILION, "x", "ran out"),
    ):
        if len(rows):
            plot.scatter(rows["predicted"], heights, s=18, c=color, marker=marker, alpha=0.8, label=label)
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
