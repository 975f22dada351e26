"""Size against perplexity: every trial, the front, and the fitted curve with its interval."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.transforms import BboxBase

from analysis import formats, sizes
from analysis.figures.picture import BLACK, GREY, MANY, Picture, axes, legend_above, level_text, levels, log_axis
from analysis.results import Results
from analysis.trials import TRIAL
from tune.errors import UserError

NAMED = 4  # configs of the front that are written out, where there is room; of more, the best and the smallest


def front(results: Results, family: str) -> Picture:
    """Each trial where it got to last, and the front of the furthest level."""
    table = results.of(family)
    last = table.drop_duplicates(TRIAL, keep="last")
    styles = levels(last["level"].unique())
    figure, (plot,) = axes(height=4.2)
    for level, (color, marker) in styles.items():
        rows = last[last["level"] == level]
        label = f"{level_text(level)} ({len(rows)})"
        size = 110 if marker == "*" else 34
        plot.scatter(
            rows["parameters"],
            rows["perplexity"],
            s=size,
            c=color,
            marker=marker,
            label=label,
            alpha=0.9,
            rasterized=len(rows) > MANY,
        )
    furthest = table[(table["level"] == list(styles)[-1]) & table["front"]].sort_values("parameters")
    corners = (
        [*furthest["parameters"], last["parameters"].max()],
        [*furthest["perplexity"], furthest["perplexity"].min()],
    )
    plot.step(*corners, where="post", c=BLACK, lw=1.2, label=f"front {level_text(list(styles)[-1])}")
    scales(plot, last)
    legend_above(plot, columns=3)
    middle = np.sqrt(last["parameters"].min() * last["parameters"].max())
    taken: list[BboxBase] = []
    for row in furthest.iloc[:: -1 if len(furthest) <= NAMED else 1 - len(furthest)].to_dict("records"):
        left = row["parameters"] > middle
        named = plot.annotate(
            f"{row['trial']} {row['config']}",
            (row["parameters"], row["perplexity"]),
            textcoords="offset points",
            xytext=(-6 if left else 6, -12),
            ha="right" if left else "left",
            fontsize=8,
        )
        place = named.get_window_extent()
        if place.count_overlaps(taken):
            named.remove()
        else:
            taken.append(place)
    best = last.loc[last[last["level"] == list(styles)[-1]]["perplexity"].idxmin()]
    return Picture(
        name=f"front-{family}",
        title=f"{family}: size against perplexity",
        text=f"{len(last)} trials where each got to last, {len(furthest)} of them on the front; lowest perplexity: "
        f"{best['trial']} with {formats.number(best['perplexity'])} at {formats.count(best['parameters'])} parameters."
        + (" Stars are of the whole validation split, the others of its subset." if last["on_whole"].any() else ""),
        figure=figure,
        data=last[[*TRIAL, "level", "parameters", "perplexity", "front"]],
    )


def curve(results: Results, family: str) -> Picture:
    """The trials of each level, and the curve fitted to the highest level that has enough of them.

    UserError when no level has enough.
    """
    table = results.of(family)
    counts = table["level"].value_counts()
    styles = levels(table["level"].unique())
    fitted = [level for level in styles if counts[level] >= sizes.FEWEST]
    if not fitted:
        raise UserError(f"family: {family!r} has no level with the {sizes.FEWEST} trials a curve takes; wait for them")
    figure, (plot,) = axes(height=4.2)
    for level, (color, marker) in styles.items():
        rows = table[table["level"] == level]
        strong = level == fitted[-1]
        plot.scatter(
            rows["parameters"],
            rows["perplexity"],
            s=40 if strong else 18,
            c=color,
            marker=marker,
            alpha=0.95 if strong else 0.45,
            label=f"{level_text(level)} ({len(rows)})",
            rasterized=len(rows) > MANY,
        )
    rows = table[table["level"] == fitted[-1]]
    at = np.geomspace(rows["parameters"].min(), rows["parameters"].max(), 60)
    middle, resampled = sizes.expected(rows["parameters"].to_numpy(float), rows["perplexity"].to_numpy(float), at)
    low, high = np.exp(np.percentile(resampled, sizes.INTERVAL, axis=0))
    plot.plot(at, np.exp(middle), c=BLACK, lw=1.5, label=f"fitted to {level_text(fitted[-1])}")
    plot.fill_between(at, low, high, color=GREY, alpha=0.25, lw=0, label="its 90 % interval")
    scales(plot, table)
    legend_above(plot, columns=3)
    best = rows.loc[rows["efficiency"].idxmax()]
    return Picture(
        name=f"sizes-{family}",
        title=f"{family}: the size-perplexity curve",
        text=f"Furthest below the curve at {level_text(fitted[-1])}: {best['trial']} ({best['config']}), "
        f"efficiency {best['efficiency']:+.3f} ({best['efficiency_low']:+.3f} to {best['efficiency_high']:+.3f}).",
        figure=figure,
        data=table[[*TRIAL, "level", "parameters", "perplexity", "efficiency", "efficiency_low", "efficiency_high"]],
    )


def scales(plot: Axes, table: pd.DataFrame) -> None:
    plot.set(xlabel="parameters", ylabel="validation perplexity")
    log_axis(plot.xaxis, table["parameters"], formats.short_count)
    log_axis(plot.yaxis, table["perplexity"], formats.plain)
