"""The best so far, which is the first of the ranking, against the device-hours spent on a family: one line a study."""

import numpy as np
import pandas as pd

from analysis import formats
from analysis.figures.picture import BLUE, GREEN, ORANGE, PURPLE, Picture, axes, legend_above, log_axis, time_ticks
from analysis.results import Results
from analysis.studies import Study

LINES = ((BLUE, "-"), (ORANGE, "--"), (GREEN, "-."), (PURPLE, ":"))


def progress(results: Results, family: str) -> Picture:
    """UserError when nothing was measured, or of texts that do not compare."""
    reached = results.of(family)
    tables = [_progress(reached, study, family) for study in results.studies]
    table = pd.concat(tables, ignore_index=True)
    figure, (plot,) = axes()
    plot.set(xlabel=f"device time spent on {family}", ylabel="validation perplexity of the best so far")
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


def _progress(reached: pd.DataFrame, study: Study, family: str) -> pd.DataFrame:
    """device_seconds, perplexity: a row whenever another led the ranking, or the same with another level, and one at
    the end; the perplexity is that of the subset throughout."""
    rows = reached[reached["study"] == study.name].sort_values(["at", "place"], ascending=[True, False])
    best = rows[rows["place"] == rows["place"].cummin()]
    best = best.assign(perplexity=best["subset_perplexity"])
    paid = study.read(
        """SELECT at, SUM(seconds) OVER (ORDER BY at, charge) AS device_seconds FROM charges JOIN trials USING (trial)
           WHERE family = ? ORDER BY at, charge""",
        family,
    )
    if best.empty or paid.empty:
        return pd.DataFrame(columns=["study", "at", "trial", "level", "device_seconds", "perplexity"])
    place = np.searchsorted(paid["at"], best["at"], side="right") - 1
    best = best.assign(device_seconds=paid["device_seconds"].to_numpy()[np.maximum(place, 0)])
    last = best.tail(1).assign(device_seconds=paid["device_seconds"].iloc[-1])
    return pd.concat((best, last), ignore_index=True)[["study", "at", "trial", "level", "device_seconds", "perplexity"]]
