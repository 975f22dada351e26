"""Pictures of what each dimension did at one rung: effects with intervals, importance by Optuna; and the precisions."""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import optuna
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, MaxNLocator
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

from analysis import tables
from analysis.efficiency import INTERVAL
from analysis.study import LEVEL_COLUMNS, SIDE_BY_SIDE, TRIAL_COLUMNS, Results, Study
from analysis.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    MANY,
    MARKERS,
    ORANGE,
    PURPLE,
    Picture,
    at_level,
    drawable,
    is_wide,
    level_styles,
    log_axis,
    new_figure,
)
from tune.arithmetic import mean_interval
from tune.errors import UserError
from tune.reports import MOST_OF_LOG
from tune.store.queries import DECAY

ENOUGH = 20  # trials at a rung that make it serve for effects
FEWEST = 8  # least trials for importances
GOOD = (0.2, 0.4, 0.6)  # shares of the trials that count as good for an importance
DRAWS = 20  # resamples of the trials, for the interval of an importance
MOST = 200  # most trials in a resample
OF_A_MEAN = 5  # least trials for an interval of their mean: that of two would press all panels
LETTERS = 36  # most letters, in all, of the values of a list that are named side by side
LEAST_LETTERS = 3
FEW_DECADES = 300.0  # times its least that a logarithmic range may reach for ticks at 3, 30 and the like
BINS, IN_A_BIN = 4, 3  # most parts of a range with equally many trials, whose means are shown; least trials of a part


@dataclass(frozen=True, kw_only=True)
class ValuePlaces:
    """Where the values of a dimension stand on an axis: side by side, or as numbers or their logarithms.

    places: of each trial, NaN where it has no value; groups: of each trial, the group whose mean is taken, -1 without a
    value; ticks: labels by place; listed: whether values stand side by side.
    """

    places: pd.Series
    groups: pd.Series
    ticks: Mapping[float, str]
    listed: bool


def place_values(values: pd.Series, log: bool | None = None) -> ValuePlaces:
    """Return the scale of a dimension's values, NaN for trials without one. log: whether a range is logarithmic; None:
    a list, whose values stand side by side where there is room for all their names."""
    known = values.dropna()
    unique = known.unique().tolist()
    numbers = {type(value) for value in unique} <= {int, float}
    unique = sorted(unique, key=None if numbers else str)
    names = [f"{value:g}" if numbers else str(value) for value in unique]
    fits = log is None and len(names) <= SIDE_BY_SIDE and sum(map(len, names)) <= LETTERS
    if fits or not numbers:
        most = max(LETTERS // max(len(names), 1), LEAST_LETTERS)
        names = [name if len(name) <= most else f"{name[: most - 1]}…" for name in names]
        places = values.map({value: float(place) for place, value in enumerate(unique)}).astype(float)
        side_by_side = dict(zip(map(float, range(len(names))), names, strict=True))
        return ValuePlaces(places=places, groups=places.fillna(-1).astype(int), ticks=side_by_side, listed=True)
    numeric = values.astype(float)
    low, high = numeric.min(), numeric.max()
    by_log = low > 0 and (is_wide(numeric) if log is None else log)
    places = np.log10(numeric) if by_log else numeric
    parts = min(BINS, max(len(known) // IN_A_BIN, 1))
    groups = pd.qcut(places, parts, labels=False, duplicates="drop").fillna(-1).astype(int)
    whole = all(float(value).is_integer() for value in unique)
    subs = (1.0, 3.0) if low > 0 and high <= FEW_DECADES * low else (1.0,)
    logs = by_log and is_wide(numeric)
    locator = LogLocator(subs=subs, numticks=5) if logs else MaxNLocator(4, integer=whole)
    at = [float(value) for value in locator.tick_values(low, high) if low <= value <= high]
    ticks = {math.log10(value) if by_log else value: tables.short_number(value) for value in at or [low]}
    return ValuePlaces(places=places, groups=groups, ticks=ticks, listed=False)


def comparable_measurements(results: Results, family: str) -> pd.DataFrame:
    """Return measurements that compare: at the highest rung that ENOUGH of them completed, else at the one that most
    did. The end of a user's loop counts as a rung, and so does any end where there are no rungs, as in a list."""
    table = results.of_family(family)
    table = table[~table["anew"]]
    rungs = table[table["level"] != DECAY]
    table = table if rungs.empty else rungs
    alike = table.groupby(LEVEL_COLUMNS, dropna=False, sort=False).ngroup()
    counts = alike.groupby(table["level"]).agg(lambda groups: groups.value_counts().max())
    counts = counts.reindex(level_styles(table["level"].unique()))
    enough = counts[counts >= ENOUGH]
    rows = table[table["level"] == (enough.index[-1] if len(enough) else counts.idxmax())]
    column = results.measure.column
    return rows[alike[rows.index] == alike[rows.index].mode()[0]].assign(**{column: drawable(rows[column])})


def per_cent(log_ratio: Any) -> Any:
    return 100 * np.expm1(log_ratio)


def relative(percent: float) -> str:
    return f"{percent:+.4g} %" if percent else "0 %"


def draw_mean(plot: Axes, place: float, values: np.ndarray, shown: Callable[[Any], Any] = lambda value: value) -> None:
    """Draw the mean of two values or more, from OF_A_MEAN on with its 95 % interval; `shown` maps them to the axis."""
    found = mean_interval(values.tolist())
    if found is None:
        return
    mean, low, high = map(shown, found)
    plot.plot(place, mean, "o", c=BLUE, ms=5)
    if len(values) >= OF_A_MEAN:
        plot.errorbar(place, mean, [[mean - low], [high - mean]], fmt="none", ecolor=BLUE, lw=1.6, capsize=3)


def importances(results: Results, table: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Return share, low and high in a row for each of these dimensions, the most important first; none for too few
    trials.

    Shares add up to 1: PED-ANOVA (Watanabe et al. 2023, arXiv:2304.10255), the mean over GOOD, with an interval by
    resampled trials. Values of a range count by its parts, and a missing value counts as one of its own.
    """
    groups = pd.DataFrame(
        {name: place_values(table[name], results.ranges.get(name)).groups for name in names}, index=table.index
    )
    varied = [name for name in names if groups[name].nunique() > 1]
    if len(table) < FEWEST or not varied:
        return pd.DataFrame(columns=["share", "low", "high"])
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    groups, worth = groups[varied], results.measure.as_losses(table[results.measure.column])
    shares = pd.Series(_shares(groups, worth))
    random = np.random.default_rng(0)
    size = min(len(table), MOST)
    draws = [random.integers(len(table), size=size) for _ in range(DRAWS)]
    resampled = pd.DataFrame([_shares(groups.iloc[rows], worth.iloc[rows]) for rows in draws])
    as_of_all = shares + (resampled[shares.index] - shares) * math.sqrt(size / len(table))  # fewer vary more
    low, high = np.percentile(as_of_all, INTERVAL, axis=0)
    return pd.DataFrame({"share": shares, "low": low, "high": high}).sort_values("share", ascending=False)


def _shares(groups: pd.DataFrame, worth: pd.Series) -> dict[str, float]:
    choices: dict[str, BaseDistribution] = {
        name: CategoricalDistribution(sorted(groups[name].unique().tolist())) for name in groups
    }
    study = optuna.create_study()
    study.add_trials(
        optuna.trial.create_trial(params=params, distributions=choices, value=value)
        for params, value in zip(groups.to_dict("records"), worth, strict=True)
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Target and region quantiles")  # in a draw of few different trials
        found = [
            get_param_importances(study, evaluator=PedAnovaImportanceEvaluator(target_quantile=good)) for good in GOOD
        ]
    return {name: float(np.mean([each[name] for each in found])) for name in groups}


def effects(results: Results, family: str) -> Picture:
    """Draw a panel for each dimension with several values, and one of importances. UserError: no dimension has several,
    or no trial completed a rung."""
    measure, table = results.measure, comparable_measurements(results, family)
    values = table[measure.column]
    values = values if measure.is_loop_metric else values.clip(1 / MOST_OF_LOG, MOST_OF_LOG)
    median = float(values.median())
    # perplexity in per cent above the median, averaged as a logarithm; a metric as it is
    scaled = values if measure.is_loop_metric else np.log(values / median)
    shown, middle = ((lambda value: value), median) if measure.is_loop_metric else (per_cent, 0.0)
    column = measure.column if measure.is_loop_metric else "above_median"
    table = table.assign(**{column: shown(scaled)})
    names = [name for name in results.dimensions if table[name].nunique() > 1]
    if not names:
        raise UserError(f"family: {family!r} tried one value of each dimension only; there is nothing to compare")
    shares = importances(results, table, [name for name in results.dimensions if table[name].notna().any()])
    panels = len(names) + (not shares.empty)
    rows = math.ceil(panels / 2)
    figure, plots = new_figure(rows, 2, height=7.6 * rows / 3)
    for plot in plots[panels:]:
        plot.set_axis_off()
    low, high = np.percentile(table[column], (0, 95) if measure.low_first else (5, 100))
    beyond = 0.05 * (high - low)
    beyond = beyond or 0.05 * abs(high) or 1.0 if measure.is_loop_metric else beyond + 1.0
    for plot, name in zip(plots, names, strict=False):
        along = place_values(table[name], results.ranges.get(name))
        jitter = np.random.default_rng(0)
        for group in sorted(set(along.groups) - {-1}):
            of = along.groups == group
            points, places = scaled[of].to_numpy(), along.places[of].to_numpy()
            place = places.mean()
            places = places + (jitter.uniform(-0.15, 0.15, len(points)) if along.listed else 0.0)
            plot.scatter(places, shown(points), s=10, c=GREY, alpha=0.6, lw=0, rasterized=len(table) > MANY)
            draw_mean(plot, place, points, shown)
        plot.tick_params(axis="x", labelsize=8 if len(along.ticks) > 6 else 10)
        plot.axhline(middle, c="#666666", lw=0.8)
        plot.set(title=name, xticks=list(along.ticks), xticklabels=list(along.ticks.values()))
        if along.listed:
            plot.set_xlim(-0.6, len(along.ticks) - 0.4)
        plot.set_ylim(low - beyond, high + beyond)
        plot.yaxis.set_major_formatter(
            lambda value, _: tables.short_number(value) if measure.is_loop_metric else relative(value)
        )
    if not shares.empty:
        plot, backwards = plots[len(names)], shares.iloc[::-1]
        errors = np.clip([backwards["share"] - backwards["low"], backwards["high"] - backwards["share"]], 0, None)
        plot.barh(
            range(len(shares)), backwards["share"], xerr=errors, height=0.35, color=ORANGE, ecolor=BLACK, capsize=3
        )
        for place, name in enumerate(backwards.index):  # above its bar: beside it a long one would press all panels
            plot.text(0.01, place + 0.2, name, va="bottom", fontsize=8, clip_on=True)
        plot.set(title="importance (Optuna)", xlim=(0, 1), ylim=(-0.5, len(shares)), yticks=[])
        plot.grid(axis="y", visible=False)
    resampled = "Intervals of importances are of 90 %, by resampled trials."
    about = f"Importances take {FEWEST} trials." if shares.empty else resampled
    what = f"Best {measure.name}, and the median" if measure.is_loop_metric else "Perplexity against the median"
    return Picture(
        name=f"effects-{family}",
        title=f"{family}: what each dimension did",
        text=f"{what} of the trials {at_level(table['level'].iloc[0])}: each trial, and means"
        f"{', of a range by parts' if measure.is_loop_metric else ''}, of {OF_A_MEAN} or more with 95 % intervals. "
        "The other dimensions are not held equal; points "
        f"{'above' if measure.low_first else 'below'} the scale are cut. {about}",
        figure=figure,
        data=table[[*TRIAL_COLUMNS, *names, "level", *dict.fromkeys((measure.column, column))]],
    )


def precision(results: Results, family: str) -> Picture:
    """Draw efficiency by precision, and tokens a second over parameters. UserError: only one precision was tried."""
    table = comparable_measurements(results, family)
    names = sorted(table["precision"].dropna().unique())
    if len(names) < 2:
        raise UserError(f"precision: {family!r} tried only {', '.join(names) or 'none'}; there is nothing to compare")
    speeds = pd.concat([_speeds(study) for study in results.studies], ignore_index=True)
    table = table.merge(speeds, on=TRIAL_COLUMNS, how="left")
    figure, (quality, speed) = new_figure(1, 2, height=3.4)
    busy, many = [], len(table) > MANY
    for place, name in enumerate(names):
        rows = table[table["precision"] == name]
        points = rows["efficiency"].dropna().to_numpy()
        jitter = np.random.default_rng(0).uniform(-0.12, 0.12, len(points))
        quality.scatter(place + jitter, points, s=12, c=GREY, alpha=0.7, lw=0, rasterized=many)
        draw_mean(quality, place, points)
        if rows["mfu"].notna().any():
            busy.append(f"{name} {tables.share(rows['mfu'].mean(), 1)}")
        color, marker = (BLUE, ORANGE, GREEN, PURPLE)[place % 4], MARKERS[place % len(MARKERS)]
        speed.scatter(
            rows["parameters"], rows["tokens_per_second"], s=18, c=color, marker=marker, label=name, rasterized=many
        )
    quality.axhline(0, c="#666666", lw=0.8)
    quality.set(title="efficiency: below the curve is +", xticks=range(len(names)), xticklabels=names)
    quality.set_xlim(-0.6, len(names) - 0.4)
    speed.set(title="tokens a second", xlabel="parameters")
    if table["tokens_per_second"].notna().any():
        log_axis(speed.xaxis, table["parameters"], tables.short_count)
        log_axis(speed.yaxis, table["tokens_per_second"].dropna(), tables.short_count)
        speed.legend(loc="best")
    return Picture(
        name=f"precision-{family}",
        title=f"{family}: the precisions compared",
        text=f"Trials {at_level(table['level'].iloc[0])}: efficiency, and means, of {OF_A_MEAN} or more with 95 % "
        f"intervals. Of the device's peak at its precision training took (MFU): {', '.join(busy) or 'unknown'}.",
        figure=figure,
        data=table[
            [*TRIAL_COLUMNS, "precision", "level", "perplexity", "efficiency", "parameters", "tokens_per_second", "mfu"]
        ],
    )


def _speeds(study: Study) -> pd.DataFrame:
    table = study.read(
        """SELECT trial, AVG(tokens_per_second) AS tokens_per_second FROM reports
           WHERE tokens_per_second > 0 GROUP BY trial"""
    )
    return table.assign(study=study.name)
