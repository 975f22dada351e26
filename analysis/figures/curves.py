"""Learning curves by rung, with how each trial ended."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection

from analysis import formats
from analysis.figures.picture import BLACK, GREY, MANY, VERMILION, Picture, axes, level_text, levels, log_axis
from analysis.results import Results
from analysis.studies import Study
from analysis.trials import TRIAL
from tune.errors import UserError

MOST_LINES = 300  # the lowest ends
NO_LEVEL = "no rung"


def curves(results: Results, family: str) -> Picture:
    """Perplexity of the validation subset over training seconds. UserError when nothing was measured."""
    facts = results.trials[results.trials["family"] == family]
    points = pd.concat([_points(study) for study in results.studies], ignore_index=True)
    points = points.merge(facts[[*TRIAL, "state", "reason", "failed"]], on=TRIAL)
    if points.empty:
        raise UserError(f"family: {family!r} has no measured trial yet; wait for one, or name another")
    furthest = results.reached.drop_duplicates(TRIAL, keep="last")[[*TRIAL, "level"]]
    points = points.merge(furthest, on=TRIAL, how="left").fillna({"level": NO_LEVEL})
    ends = points.drop_duplicates(TRIAL, keep="last").nsmallest(MOST_LINES, "perplexity")
    shown = points.merge(ends[TRIAL], on=TRIAL)
    figure, (plot,) = axes(height=4.4)
    plot.set(xlabel="training time of the trial", ylabel="validation perplexity")
    _lines(plot, shown)
    stopped, broken = ends[(ends["state"] == "stopped") & ~ends["failed"]], ends[ends["failed"]]
    plot.scatter(stopped["training_seconds"], stopped["perplexity"], marker="x", s=22, c=BLACK, lw=1, label="stopped")
    if len(broken):
        plot.scatter(broken["training_seconds"], broken["perplexity"], marker="^", s=34, c=VERMILION, label="failed")
    first = results.reached[(results.reached["family"] == family) & (results.reached["place"] == 1)]
    for best in ends.merge(first[TRIAL], on=TRIAL).to_dict("records"):
        place = best["training_seconds"], best["perplexity"]
        plot.annotate(best["trial"], place, textcoords="offset points", xytext=(4, -9))
    log_axis(plot.xaxis, shown["training_seconds"], formats.short_duration)
    log_axis(plot.yaxis, shown["perplexity"], formats.plain)
    plot.legend(loc="upper right", title="furthest level")
    measured, lost = points[TRIAL].drop_duplicates(), int(facts["failed"].sum())
    return Picture(
        name=f"curves-{family}",
        title=f"{family}: learning curves",
        text=f"{len(ends)} of {len(measured)} measured trials, bolder the further each went; stops are crosses. "
        f"{lost} of all {len(facts)} trials diverged or failed. Named is what leads the ranking.",
        figure=figure,
        data=points,
    )


def _lines(plot: Axes, points: pd.DataFrame) -> None:
    """One line a trial, and a dot where there is one point only."""
    styles = {NO_LEVEL: (GREY, "o")} | levels(points["level"][points["level"] != NO_LEVEL].unique())
    for number, (level, (color, _)) in enumerate(styles.items()):
        rows = points[points["level"] == level]
        if rows.empty:
            continue
        lines = [line[["training_seconds", "perplexity"]].to_numpy() for _, line in rows.groupby(TRIAL)]
        width, many = 0.9 + 0.35 * number, len(rows) > MANY
        plot.add_collection(LineCollection(lines, colors=color, linewidths=width, alpha=0.9, rasterized=many))
        plot.plot([], [], c=color, lw=width, label=f"{level_text(level)} ({len(lines)})")
        single = rows[~rows.duplicated(TRIAL, keep=False)]
        plot.scatter(single["training_seconds"], single["perplexity"], s=12, color=color)


def _points(study: Study) -> pd.DataFrame:
    table = study.read(
        """SELECT trial, training_seconds, steps, tokens, rung, final, perplexity, valid_loss FROM reports
           WHERE perplexity < 9e999 AND training_seconds > 0 ORDER BY trial, training_seconds, report"""
    )
    table.insert(0, "study", study.name)
    return table.astype({"perplexity": float, "training_seconds": float})
