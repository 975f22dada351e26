"""The precisions compared: quality at equal size and time, and speed."""

import numpy as np
import pandas as pd

from analysis import formats
from analysis.figures.effects import mean_interval, one_level
from analysis.figures.picture import (
    BLUE,
    GREEN,
    GREY,
    MANY,
    MARKERS,
    ORANGE,
    PURPLE,
    Picture,
    axes,
    level_text,
    log_axis,
)
from analysis.results import Results
from analysis.studies import Study
from analysis.trials import TRIAL
from tune.errors import UserError


def precision(results: Results, family: str) -> Picture:
    """Efficiency by precision, and parameters times tokens a second. UserError where only one was tried."""
    table = one_level(results, family)
    names = sorted(table["precision"].dropna().unique())
    if len(names) < 2:
        raise UserError(f"precision: {family!r} tried only {', '.join(names) or 'none'}; there is nothing to compare")
    speeds = pd.concat([_speeds(study) for study in results.studies], ignore_index=True)
    table = table.merge(speeds, on=TRIAL, how="left")
    figure, (quality, speed) = axes(1, 2, height=3.4)
    said, busy = [], []
    for place, name in enumerate(names):
        rows = table[table["precision"] == name]
        points = rows["efficiency"].dropna().to_numpy()
        jitter = np.random.default_rng(0).uniform(-0.12, 0.12, len(points))
        quality.scatter(place + jitter, points, s=12, c=GREY, alpha=0.7, lw=0, rasterized=len(table) > MANY)
        if len(points) > 1:
            mean, low, high = mean_interval(points)
            quality.errorbar(place, mean, [[mean - low], [high - mean]], fmt="o", c=BLUE, ms=6, lw=1.8, capsize=4)
            said.append(f"{name} {mean:+.3f} ({low:+.3f} to {high:+.3f}, {len(points)} trials)")
        if rows["mfu"].notna().any():
            busy.append(f"{name} {formats.share(rows['mfu'].mean(), 1)}")
        color, marker = (BLUE, ORANGE, GREEN, PURPLE)[place % 4], MARKERS[place % len(MARKERS)]
        speed.scatter(
            rows["parameters"],
            rows["tokens_per_second"],
            s=18,
            c=color,
            marker=marker,
            label=name,
            rasterized=len(table) > MANY,
        )
    quality.axhline(0, c="#666666", lw=0.8)
    quality.set(title="efficiency: below the curve is +", xticks=range(len(names)), xticklabels=names)
    quality.set_xlim(-0.6, len(names) - 0.4)
    speed.set(title="tokens a second", xlabel="parameters")
    if table["tokens_per_second"].notna().any():
        log_axis(speed.xaxis, table["parameters"], formats.short_count)
        log_axis(speed.yaxis, table["tokens_per_second"].dropna(), formats.short_count)
        speed.legend(loc="best")
    return Picture(
        name=f"precision-{family}",
        title=f"{family}: the precisions compared",
        text=f"At {level_text(table['level'].iloc[0])}, which is equal compute: efficiency with 90 % intervals: "
        f"{'; '.join(said) or 'unknown'}. A faster precision has seen more text by then. Of the device's peak at its "
        f"precision training took (MFU): {', '.join(busy) or 'unknown'}.",
        figure=figure,
        data=table[
            [*TRIAL, "precision", "level", "perplexity", "efficiency", "parameters", "tokens_per_second", "mfu"]
        ],
    )


def _speeds(study: Study) -> pd.DataFrame:
    table = study.read(
        """SELECT trial, AVG(tokens_per_second) AS tokens_per_second FROM reports
           WHERE tokens_per_second > 0 GROUP BY trial"""
    )
    return table.assign(study=study.name)
