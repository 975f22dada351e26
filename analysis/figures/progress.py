"""The best loss so far against the device-hours spent on a family: one line a study."""

import numpy as np
import pandas as pd

from analysis import formats
from analysis.figures.picture import BLUE, GREEN, ORANGE, PURPLE, Picture, axes, legend_above, log_axis, time_ticks
from analysis.results import Results
from analysis.studies import Study

LINES = ((BLUE, "-"), (ORANGE, "--"), (GREEN, "-."), (PURPLE, ":"))


def progress(results: Results, family: str) -> Picture:
    """UserError when nothing was measured, or of texts that do not compare."""
    results.of(family)
    tables = [_progress(study, family) for study in results.studies]
    table = pd.concat(tables, ignore_index=True)
    figure, (plot,) = axes()
    plot.set(xlabel=f"device time spent on {family}", ylabel="best validation perplexity so far")
    said = []
    for number, (study, rows) in enumerate(zip(results.studies, tables, strict=True)):
        if rows.empty:
            continue
        color, style = LINES[number % len(LINES)]
        plot.step(rows["device_seconds"], rows["perplexity"], where="post", c=color, ls=style, lw=1.8, label=study.name)
        said.append(f"{study.name} {formats.number(rows['perplexity'].iloc[-1])}")
    plot.set_xlim(0, table["device_seconds"].max())
    time_ticks(plot.xaxis)
    log_axis(plot.yaxis, table["perplexity"], formats.plain)
    legend_above(plot, columns=2)
    return Picture(
        name=f"progress-{family}",
        title=f"{family}: the best so far",
        text=f"Perplexity at the end: {', '.join(said)}.",
        figure=figure,
        data=table,
    )


def _progress(study: Study, family: str) -> pd.DataFrame:
    """device_seconds, perplexity: a row whenever a new best was reported, and one at the end"""
    best = study.read(
        """SELECT at, MIN(perplexity) OVER (ORDER BY at, report) AS perplexity FROM reports JOIN trials USING (trial)
           WHERE perplexity < 9e999 AND family = ? ORDER BY at, report""",
        family,
    )
    paid = study.read(
        """SELECT at, SUM(seconds) OVER (ORDER BY at, charge) AS device_seconds FROM charges JOIN trials USING (trial)
           WHERE family = ? ORDER BY at, charge""",
        family,
    )
    if best.empty or paid.empty:
        return pd.DataFrame(columns=["study", "device_seconds", "perplexity"])
    place = np.searchsorted(paid["at"], best["at"], side="right") - 1
    best = best.assign(device_seconds=paid["device_seconds"].to_numpy()[np.maximum(place, 0)])
    last = best.tail(1).assign(device_seconds=paid["device_seconds"].iloc[-1])
    table = pd.concat((best[best["perplexity"].diff().fillna(-1) < 0], last), ignore_index=True)
    return table.assign(study=study.name)[["study", "device_seconds", "perplexity"]]
