"""Parallel coordinates: each trial a line through its config to what came of it."""

import matplotlib
import numpy as np
from matplotlib.collections import LineCollection

from analysis import formats
from analysis.figures.effects import one_level
from analysis.figures.picture import MANY, Picture, axes, level_text
from analysis.results import Results
from analysis.trials import TRIAL

BEHIND = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.5}


def parallel(results: Results, family: str) -> Picture:
    """The lines of one rung, the best in front and strong. UserError when no trial completed a rung."""
    table = one_level(results, family).sort_values("perplexity", ascending=False)
    names = [name for name in results.dimensions if table[name].notna().any()]
    figure, (plot,) = axes(height=4.0)
    places = []
    for axis, name in enumerate(names):
        values = sorted(table[name].dropna().unique())
        spots = np.linspace(0, 1, len(values)) if len(values) > 1 else [0.5]
        places.append(table[name].map(dict(zip(values, spots, strict=True))))
        for value, spot in zip(values, spots, strict=True):
            text = value if isinstance(value, str) else f"{value:g}"
            plot.text(axis - 0.04, spot, text, ha="right", va="center", fontsize=8, bbox=BEHIND, zorder=5)
    worth = np.log(table["perplexity"])
    spread = max(worth.max() - worth.min(), 1e-9)
    places.append((worth - worth.min()) / spread)
    jitter = np.random.default_rng(0).uniform(-0.012, 0.012, (len(table), len(names)))
    heights = np.column_stack(places)
    heights[:, : len(names)] += jitter
    ranks = np.linspace(0.9, 0.05, len(table))
    lines = [np.column_stack((np.arange(len(names) + 1), row)) for row in heights]
    colors = matplotlib.colormaps["cividis"](ranks)
    widths = np.where(ranks < 0.25, 2.0, 0.9)
    plot.add_collection(
        LineCollection(lines, colors=colors, linewidths=widths, alpha=0.85, rasterized=len(table) > MANY)
    )
    for spot, value in ((0.0, table["perplexity"].min()), (1.0, table["perplexity"].max())):
        plot.text(len(names) + 0.04, spot, formats.number(value), ha="left", va="center", fontsize=8)
    plot.set(xticks=range(len(names) + 1), xticklabels=[*names, "perplexity"], yticks=[])
    plot.set(xlim=(-0.45, len(names) + 0.45), ylim=(-0.06, 1.06))
    plot.grid(axis="y", visible=False)
    plot.spines["left"].set_visible(False)
    best, level = table.iloc[-1], level_text(table["level"].iloc[0])
    return Picture(
        name=f"parallel-{family}",
        title=f"{family}: all configurations at once",
        text=f"{len(table)} trials at {level}; the stronger the line, the better. The best is {best['trial']}.",
        figure=figure,
        data=table[[*TRIAL, *names, "level", "perplexity"]],
    )
