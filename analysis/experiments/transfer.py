"""Loss against learning rate, a line for each shape: does the best rate stay where it is?"""

import json

import matplotlib
import numpy as np
import pandas as pd

from analysis.study import Study, over_seeds, trained
from analysis.style import BLACK, GREY, MARKERS, OVER_SEEDS, Picture, axes, bars, log_axis
from tune.errors import UserError
from tune.store.queries import ENDED

WAYS = {False: "one rate for all tensors (standard)", True: "with the scaling rules"}
HEIGHT = 0.75
"""Nats above the highest of the best losses that are still shown."""
LINE = ["d_model", "layers", "base", "rules"]


def losses_table(study: Study) -> pd.DataFrame:
    """Mean loss of each shape at each rate over the seeds that were trained with the most; NaN where one
    diverged. base: the shape that is the same with the rules and without, and whose configuration names none."""
    found = trained(study, ENDED)
    rules = found["config"].map(json.loads).map(lambda config: config.get("scaling_rules"))
    names = {"learning_rate": "rate", "valid_loss": "loss"}
    table = found.assign(base=rules.isna(), rules=rules.isin([True])).rename(columns=names).astype({"loss": float})
    table = pd.concat([with_most(line) for _, line in table.groupby(LINE)])
    return over_seeds(table, [*LINE, "rate"], ["loss"])


def with_most(line: pd.DataFrame) -> pd.DataFrame:
    """Of those seeds that were trained with the same rates as the one with the most."""
    rates = line.groupby("seed")["rate"].agg(frozenset)
    return line[line["seed"].map(rates == max(rates, key=len))]


def width(study: Study) -> Picture:
    """Over d_model, at the base's layers."""
    return compared(study, "d_model", "layers")


def depth(study: Study) -> Picture:
    """Over layers, at the base's d_model."""
    return compared(study, "layers", "d_model")


def compared(study: Study, axis: str, other: str) -> Picture:
    """Both parametrizations side by side, with the base's best rate. UserError where there is one size only."""
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
    figure, plots = axes(columns=2, height=3.6)
    colors = matplotlib.colormaps["viridis"](np.linspace(0.85, 0.05, len(sizes)))
    for plot, (ruled, title) in zip(plots, WAYS.items(), strict=True):
        for place, size in enumerate(sizes):
            rows = line_of(table, axis, size, ruled)
            if rows["loss"].isna().all():
                continue
            color, marker = colors[place], MARKERS[place % len(MARKERS)]
            plot.errorbar(rows["rate"], rows["loss"], bars(rows, "loss"), c=color, marker=marker, ms=3, lw=1.3,
                          label=f"{size}")  # fmt: skip
            best = rows.loc[rows["loss"].idxmin()]
            plot.plot(best["rate"], best["loss"], c=color, marker=marker, ms=8, mec=BLACK)
        plot.axvline(base["rate"], c=GREY, lw=1, ls=":")
        log_axis(plot.xaxis, table["rate"], lambda value: f"{value:g}")
        plot.set(title=title, xlabel="base learning rate")
    lowest = table.groupby([axis, "rules"])["loss"].min()
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


def line_of(table: pd.DataFrame, axis: str, size: int, ruled: bool) -> pd.DataFrame:
    """A size's losses in one parametrization; the base is the same in both, and was trained once."""
    return table[(table[axis] == size) & ((table["rules"] == ruled) | table["base"])]
