"""Pictures of what a search found: size against perplexity, learning curves, the best so far, parallel coordinates."""

import json
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.transforms import BboxBase

from analysis import efficiency
from analysis import tables as formats
from analysis.plots.dimensions import comparable_measurements, place_values
from analysis.ranking import answers, ranking, winner
from analysis.study import LEVEL_COLUMNS, TRIAL_COLUMNS, Results, Study, is_driver_alive
from analysis.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    MANY,
    ORANGE,
    PURPLE,
    VERMILION,
    Picture,
    at_level,
    drawable,
    legend_above,
    level_styles,
    level_text,
    log_axis,
    new_figure,
    number_axis,
    time_ticks,
)
from tune.errors import UserError
from tune.store.queries import OF_BEST, lasting_reports_query
from tune.units import counted, duration_text

NAMED = 4  # most configs of a front that are all labelled, where there is room; of more, the best and the smallest


def front(results: Results, family: str) -> Picture:
    """Draw each trial at its last level, and the front of the furthest one."""
    table = results.of_family(family)
    last = table.drop_duplicates(TRIAL_COLUMNS, keep="last")
    styles = level_styles(last["level"].unique())
    figure, (plot,) = new_figure(height=4.2)
    for level, style in styles.items():
        _scatter(plot, last[last["level"] == level], level, style, 110 if style[1] == "*" else 34, 0.9)
    ranked = ranking(results)
    first = winner(results, ranked[(ranked["family"] == family) & ranked["place"].notna()])
    assert first is not None
    best = last[(last[TRIAL_COLUMNS] == first[TRIAL_COLUMNS]).all(axis=1)].iloc[0]
    furthest = _alike(table[table["front"]], best).sort_values("parameters")
    corners = (
        [*furthest["parameters"], last["parameters"].max()],
        [*furthest["perplexity"], furthest["perplexity"].min()],
    )
    plot.step(*corners, where="post", c=BLACK, lw=1.2, label=f"front {level_text(best['level'])}")
    plot.scatter(best["parameters"], best["perplexity"], s=300, facecolors="none", edgecolors=BLACK, lw=1.4)
    scales(plot, last)
    legend_above(plot, columns=2)
    middle = np.sqrt(last["parameters"].min() * last["parameters"].max())
    taken: list[BboxBase] = []
    for row in furthest.iloc[:: -1 if len(furthest) <= NAMED else 1 - len(furthest)].to_dict("records"):
        left = row["parameters"] > middle
        first = all(row[name] == best[name] for name in TRIAL_COLUMNS)
        beside = (16, -7) if left else (6, 12)  # from its ring, clear of the front, which goes on to the right
        for across, up in [beside] if first else [(6, -12), (6, 7)]:
            named = plot.annotate(
                f"{'winner: ' if first else ''}{results.name_of(row)} {row['config']}",
                (row["parameters"], row["perplexity"]),
                textcoords="offset points",
                xytext=(-across if left else across, up),
                ha="right" if left else "left",
                fontsize=8,
            )
            place = named.get_window_extent()
            if not place.count_overlaps(taken):
                taken.append(place)
                break
            named.remove()
    whole = last["on_whole"].any() and last.loc[last["final"], "on_whole"].all()  # studies may differ in it
    return Picture(
        name=f"front-{family}",
        title=f"{family}: size against perplexity",
        text="Each trial where it got to last; ringed: the lowest perplexity of the furthest level."
        + (" Stars are of the whole validation split, the others of its subset." if whole else "")
        + _unlike(last),
        figure=figure,
        data=last[[*TRIAL_COLUMNS, "level", "parameters", "perplexity", "front"]],
        hover=_told(plot, last),
    )


def _alike(table: pd.DataFrame, row: pd.Series) -> pd.DataFrame:
    """Return the rows that compare with this one."""
    same = (table[LEVEL_COLUMNS] == row[LEVEL_COLUMNS]) | (table[LEVEL_COLUMNS].isna() & row[LEVEL_COLUMNS].isna())
    return table[same.all(axis=1)]


def _unlike(rows: pd.DataFrame) -> str:
    """Return the note for rows with a level's name that do not all compare; '' where they do."""
    alike = len(rows.drop_duplicates(LEVEL_COLUMNS)) == rows["level"].nunique()
    return "" if alike else " Not all of one level compare: their device, length or validation text is another."


def _told(plot: Axes, rows: pd.DataFrame) -> tuple[Axes, pd.Series, pd.Series, list[str]]:
    """Return each row as a point with a text, which says which trial it is."""
    texts = [
        f"{trial}: {words}\nperplexity {formats.number(perplexity)} ({level_text(level)}), "
        f"{formats.count(parameters)} parameters"
        for trial, words, perplexity, level, parameters in zip(
            *(rows[name] for name in ("trial", "words", "perplexity", "level", "parameters")), strict=True
        )
    ]
    return plot, rows["parameters"], rows["perplexity"], texts


def size_curve(results: Results, family: str) -> Picture:
    """Draw the trials of each level, and the curve fitted to the highest level that has enough of them.

    UserError: no level has enough.
    """
    table = results.of_family(family)
    styles, pool = level_styles(table["level"].unique()), ranking(results)
    found = answers(results, pool[pool["family"] == family])
    if found is None or found.efficiency is None:
        few = f"no level with trials of the {efficiency.FEWEST} sizes a curve takes"
        runs = any(is_driver_alive(study.folder) for study in results.studies)
        raise UserError(f"family: {family!r} has {few}; {'wait for them' if runs else 'a larger cap has more'}")
    rows = _alike(table[table["efficiency"].notna()], found.efficiency)
    fitted = str(found.efficiency["level"])
    figure, (plot,) = new_figure(height=4.2)
    for level, style in styles.items():
        size, alpha = (40, 0.95) if level == fitted else (18, 0.45)
        _scatter(plot, table[table["level"] == level], level, style, size, alpha)
    at = np.geomspace(rows["parameters"].min(), rows["parameters"].max(), 60)
    middle, resampled = efficiency.fit_predict_curve(
        rows["parameters"].to_numpy(float), rows["perplexity"].to_numpy(float), at
    )
    low, high = np.exp(np.percentile(resampled, efficiency.INTERVAL, axis=0))
    plot.plot(at, np.exp(middle), c=BLACK, lw=1.5, label=f"fitted to {level_text(fitted)}")
    plot.fill_between(at, low, high, color=GREY, alpha=0.25, lw=0, label="its 90 % interval")
    scales(plot, table)
    legend_above(plot, columns=3)
    return Picture(
        name=f"sizes-{family}",
        title=f"{family}: the size-perplexity curve",
        text="Each trial at each level that it reached. Efficiency: how far log perplexity lies below the curve."
        + _unlike(table),
        figure=figure,
        data=table[
            [*TRIAL_COLUMNS, "level", "parameters", "perplexity", "efficiency", "efficiency_low", "efficiency_high"]
        ],
        hover=_told(plot, table),
    )


def _scatter(plot: Axes, rows: pd.DataFrame, level: str, style: tuple[str, str], size: float, alpha: float) -> None:
    """Draw size against perplexity of a level's trials, in its colour and marker."""
    color, marker = style
    label, many = f"{level_text(level)} ({len(rows)})", len(rows) > MANY
    plot.scatter(rows["parameters"], rows["perplexity"], s=size, c=color, marker=marker, label=label, alpha=alpha,
                 rasterized=many)  # fmt: skip


def scales(plot: Axes, table: pd.DataFrame) -> None:
    plot.set(xlabel="parameters", ylabel="validation perplexity")
    log_axis(plot.xaxis, table["parameters"], formats.short_count)
    log_axis(plot.yaxis, table["perplexity"], formats.short_number)


MOST_LINES = 300  # those that end best
NO_LEVEL = "no rung"


def curves(results: Results, family: str) -> Picture:
    """Draw the perplexity of the validation subset over training seconds; for a user's loop its metric over steps.
    UserError: nothing was measured."""
    measure, facts = results.measure, results.trials[results.trials["family"] == family]
    along, value = measure.curve
    points = pd.concat([_points(study) for study in results.studies], ignore_index=True)
    points = points.merge(facts[[*TRIAL_COLUMNS, "words", "state", "reason", "failed"]], on=TRIAL_COLUMNS)
    if points.empty:
        raise UserError(f"family: {family!r} has no measured trial yet; wait for one, or name another")
    furthest = results.reached.drop_duplicates(TRIAL_COLUMNS, keep="last")[[*TRIAL_COLUMNS, "level"]]
    points = points.merge(furthest, on=TRIAL_COLUMNS, how="left").fillna({"level": NO_LEVEL})
    ends = points.drop_duplicates(TRIAL_COLUMNS, keep="last")
    first = results.reached[(results.reached["family"] == family) & (results.reached["place"] == 1)]
    leads = pd.MultiIndex.from_frame(ends[TRIAL_COLUMNS]).isin(pd.MultiIndex.from_frame(first[TRIAL_COLUMNS]))
    worth = measure.as_losses(ends[value]).mask(leads, -np.inf)
    ends = ends.assign(worth=worth).nsmallest(MOST_LINES, "worth")
    shown = points.merge(ends[TRIAL_COLUMNS], on=TRIAL_COLUMNS)
    figure, (plot,) = new_figure(height=4.4)
    plot.set(xlabel="steps" if measure.is_loop_metric else "training time of the trial", ylabel=measure.label)
    _lines(plot, shown, along, value)
    stopped, broken = ends[(ends["state"] == "stopped") & ~ends["failed"]], ends[ends["failed"]]
    if len(stopped):
        plot.scatter(stopped[along], stopped[value], marker="x", s=22, c=BLACK, lw=1, label="stopped")
    if len(broken):
        plot.scatter(broken[along], broken[value], marker="^", s=34, c=VERMILION, label="failed")
    for best in ends.merge(first[TRIAL_COLUMNS], on=TRIAL_COLUMNS).to_dict("records"):
        place = best[along], best[value]
        plot.annotate(results.name_of(best), place, textcoords="offset points", xytext=(4, -9))
    log_axis(plot.xaxis, shown[along], formats.short_count if measure.is_loop_metric else duration_text)
    number_axis(plot.yaxis, shown[value], log=not measure.is_loop_metric)
    plot.legend(loc="upper right" if measure.low_first else "lower right", title="furthest level")
    labels = [
        f"{trial}: {words}\n{measure.name} {formats.number(reached)} after "
        f"{counted(after, 'step') if measure.is_loop_metric else f'{formats.duration(after)} of training'}"
        for trial, words, reached, after in shown[["trial", "words", value, along]].itertuples(index=False)
    ]
    cut = f" Of more trials the {MOST_LINES} that end best are drawn." if points["trial"].nunique() > len(ends) else ""
    return Picture(
        name=f"curves-{family}",
        title=f"{family}: learning curves",
        text=f"A line for each trial, bolder the further it went. Named is what leads the ranking.{cut}",
        figure=figure,
        data=points.drop(columns="words"),
        hover=(plot, shown[along], shown[value], labels),
    )


def _lines(plot: Axes, points: pd.DataFrame, along: str, value: str) -> None:
    """Draw a line for each trial, or a dot where there is one point only."""
    styles = {NO_LEVEL: (GREY, "o")} | level_styles(points["level"][points["level"] != NO_LEVEL].unique())
    for number, (level, (color, _)) in enumerate(styles.items()):
        rows = points[points["level"] == level]
        if rows.empty:
            continue
        lines = [line[[along, value]].to_numpy() for _, line in rows.groupby(TRIAL_COLUMNS)]
        width, many = 0.9 + 0.35 * number, len(rows) > MANY
        plot.add_collection(LineCollection(lines, colors=color, linewidths=width, alpha=0.9, rasterized=many))
        plot.plot([], [], c=color, lw=width, label=f"{level_text(level)} ({len(lines)})")
        single = rows[~rows.duplicated(TRIAL_COLUMNS, keep=False)]
        plot.scatter(single[along], single[value], s=12, color=color)


def _points(study: Study) -> pd.DataFrame:
    """Return a row for each report that is not OF_BEST, with the columns of `Measure.curve`; what was repeated after a
    kill counts once."""
    along, value = study.measure.curve
    of_loop = ", numbers" if study.measure.is_loop_metric else ""
    measured = f"{'numbers IS NOT NULL' if of_loop else 'perplexity < 9e999'} AND {along} > 0 AND NOT {OF_BEST}"
    table = study.read(
        f"""SELECT trial, training_seconds, steps, tokens, rung, final, perplexity, valid_loss{of_loop}
           FROM ({lasting_reports_query(measured)}) ORDER BY trial, report"""
    )
    table.insert(0, "study", study.name)
    if of_loop:
        reported = [json.loads(numbers).get(study.measure.name) for numbers in table["numbers"]]
        table = table.drop(columns=["tokens", "perplexity", "valid_loss", "numbers"]).assign(**{value: reported})
    table = table.astype({value: float, "training_seconds": float}).dropna(subset=value)
    return table.assign(**{value: drawable(table[value])})


LINES = ((BLUE, "-"), (ORANGE, "--"), (GREEN, "-."), (PURPLE, ":"))


def progress(results: Results, family: str) -> Picture:
    """Draw the best so far over the device time spent on a family. UserError: nothing was measured, or texts differ."""
    measure, reached = results.measure, results.of_family(family)
    tables = [_progress(reached, study, family) for study in results.studies]
    table = pd.concat(tables, ignore_index=True)
    figure, (plot,) = new_figure()
    plot.set(xlabel=f"device time spent on {family}", ylabel=f"{measure.label} of the leader")
    for number, (study, rows) in enumerate(zip(results.studies, tables, strict=True)):
        if rows.empty:
            continue
        color, style = LINES[number % len(LINES)]
        best = drawable(rows[measure.column])
        plot.step(rows["device_seconds"], best, where="post", c=color, ls=style, lw=1.8, label=study.name)
    plot.set_xlim(0, 1.02 * table["device_seconds"].max())
    time_ticks(plot.xaxis)
    number_axis(plot.yaxis, drawable(table[measure.column]), log=not measure.is_loop_metric)
    legend_above(plot, columns=2)
    return Picture(
        name=f"progress-{family}",
        title=f"{family}: the best so far",
        text="What led the ranking at each moment."
        + ("" if measure.is_loop_metric else " Perplexities are of the validation subset throughout."),
        figure=figure,
        data=table,
    )


def _progress(reached: pd.DataFrame, study: Study, family: str) -> pd.DataFrame:
    """Return a row whenever another trial led the ranking, or the same at another level, and one at the end; perplexity
    is that of the subset throughout."""
    rows = reached[reached["study"] == study.name].sort_values(["at", "place"], ascending=[True, False])
    best = rows[rows["place"] == rows["place"].cummin()]
    if not study.measure.is_loop_metric:
        best = best.assign(perplexity=best["subset_perplexity"])
    paid = study.read(
        """SELECT at, SUM(seconds) OVER (ORDER BY at, charge) AS device_seconds FROM charges JOIN trials USING (trial)
           WHERE family = ? ORDER BY at, charge""",
        family,
    )
    columns = ["study", "at", "trial", "level", "device_seconds", study.measure.column]
    if best.empty or paid.empty:
        return pd.DataFrame(columns=columns)
    place = np.searchsorted(paid["at"], best["at"], side="right") - 1
    best = best.assign(device_seconds=paid["device_seconds"].to_numpy()[np.maximum(place, 0)])
    last = best.tail(1).assign(device_seconds=paid["device_seconds"].iloc[-1])
    return pd.concat((best, last), ignore_index=True)[columns]


LETTERS = 44  # most letters of the axes' names in all that have room side by side
LACKING = 0.12  # share of the height for trials without a value of a dimension
BEHIND = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.5}


def parallel_coordinates(results: Results, family: str) -> Picture:
    """Draw parallel coordinates of one rung, the best trials in front. UserError: no trial completed a rung."""
    measure, table = results.measure, comparable_measurements(results, family)
    table = table.loc[measure.as_losses(table[measure.column]).sort_values(ascending=False).index]
    names = [name for name in results.dimensions if table[name].notna().any()]
    figure, (plot,) = new_figure(height=4.0)
    places = []
    for axis, name in enumerate(names):
        along = place_values(table[name], results.ranges.get(name))
        low, high = along.places.min(), along.places.max()
        least = LACKING if along.places.isna().any() else 0.0

        def spot(place: Any, low: float = low, high: float = high, least: float = least) -> Any:
            return least + (1 - least) * (place - low) / (high - low) if high > low else 0.5 + 0.0 * place

        places.append(spot(along.places).fillna(0.0))
        ticks = {spot(place): text for place, text in along.ticks.items()} | ({0.0: "none"} if least else {})
        for place, text in ticks.items():
            plot.text(axis - 0.04, place, text, ha="right", va="center", fontsize=8, bbox=BEHIND, zorder=5)
    values = measure.scaled(table[measure.column])
    spread = max(values.max() - values.min(), 1e-9)
    places.append((values - values.min()) / spread)
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
    for place, value in ((0.0, table[measure.column].min()), (1.0, table[measure.column].max())):
        plot.text(len(names) + 0.04, place, formats.number(value), ha="left", va="center", fontsize=8)
    plot.set(xticks=range(len(names) + 1), xticklabels=[*names, measure.name], yticks=[])
    plot.set(xlim=(-0.45, len(names) + 0.45), ylim=(-0.06, 1.06))
    if sum(map(len, (*names, measure.name))) > LETTERS:
        plot.tick_params(axis="x", labelsize=8, labelrotation=20)
    plot.grid(axis="y", visible=False)
    plot.spines["left"].set_visible(False)
    return Picture(
        name=f"parallel-{family}",
        title=f"{family}: all configurations at once",
        text=f"A line for each trial {at_level(table['level'].iloc[0])}: the stronger, the better.",
        figure=figure,
        data=table[[*TRIAL_COLUMNS, *names, "level", measure.column]],
    )
