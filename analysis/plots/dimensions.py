"""What each dimension did, at one rung: its effect with intervals, importance by Optuna; the precisions compared."""

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import optuna
import pandas as pd
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

from analysis import tables
from analysis.study import LEVEL, TRIAL, Results, Study
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
    axes,
    level_text,
    levels,
    log_axis,
)
from tune.errors import UserError
from tune.store.queries import DECAY

ENOUGH = 20  # trials at a rung for effects
FEWEST = 8  # trials for an importance
GOOD = (0.2, 0.4, 0.6)  # shares of the trials that count as good for an importance
DRAWS = 20  # of the trials, for the interval of an importance
MOST = 200  # trials a draw
RESAMPLES = 1000
INTERVAL = (5.0, 95.0)


def one_level(results: Results, family: str) -> pd.DataFrame:
    """Measurements that compare, at the highest rung that ENOUGH trials completed, else at the one that most did."""
    table = results.of(family)
    counts = table[table["level"] != DECAY]["level"].value_counts().reindex(levels(table["level"].unique()))
    enough = counts[counts >= ENOUGH]
    rows = table[table["level"] == (enough.index[-1] if len(enough) else counts.idxmax())]
    alike = rows.groupby(LEVEL, dropna=False).ngroup()
    return rows[alike == alike.mode()[0]]


def per_cent(log_ratio: Any) -> Any:
    return 100 * np.expm1(log_ratio)


def mean_interval(values: np.ndarray) -> tuple[float, float, float]:
    """Mean and its bootstrap interval."""
    draws = np.random.default_rng(0).choice(values, (RESAMPLES, len(values))).mean(axis=1)
    low, high = np.percentile(draws, INTERVAL)
    return float(values.mean()), float(low), float(high)


def importances(table: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Rows share, low, high, one for each of these dimensions, the most important first; none for too few trials.

    Shares add up to 1: PED-ANOVA (Watanabe et al. 2023, arXiv:2304.10255), the mean over what counts as good, with the
    interval of resampled trials.
    """
    varied = [name for name in names if table[name].nunique() > 1]
    if len(table) < FEWEST or not varied:
        return pd.DataFrame(columns=["share", "low", "high"])
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    shares = pd.Series(_shares(table, varied))
    random = np.random.default_rng(0)
    draws = [random.integers(len(table), size=min(len(table), MOST)) for _ in range(DRAWS)]
    resampled = pd.DataFrame([_shares(table.iloc[rows], varied) for rows in draws])
    low, high = np.percentile(resampled[shares.index], INTERVAL, axis=0)
    return pd.DataFrame({"share": shares, "low": low, "high": high}).sort_values("share", ascending=False)


def _shares(table: pd.DataFrame, varied: list[str]) -> dict[str, float]:
    choices: dict[str, BaseDistribution] = {
        name: CategoricalDistribution(sorted(table[name].unique().tolist())) for name in varied
    }
    study = optuna.create_study()
    study.add_trials(
        optuna.trial.create_trial(params=params, distributions=choices, value=value)
        for params, value in zip(table[varied].to_dict("records"), np.log(table["perplexity"]), strict=True)
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Target and region quantiles")  # in a draw of few different trials
        found = [
            get_param_importances(study, evaluator=PedAnovaImportanceEvaluator(target_quantile=good)) for good in GOOD
        ]
    return {name: float(np.mean([each[name] for each in found])) for name in varied}


def effects(results: Results, family: str) -> Picture:
    """One panel a dimension and one of importances. UserError when no trial completed a rung."""
    table = one_level(results, family)
    table = table.assign(log_ratio=np.log(table["perplexity"] / table["perplexity"].median()))
    table["above_median"] = per_cent(table["log_ratio"])
    names = [name for name in results.dimensions if table[name].notna().any()]
    rows = math.ceil((len(names) + 1) / 2)
    figure, plots = axes(rows, 2, height=7.6 * rows / 3)
    for plot in plots[len(names) : -1]:
        plot.set_axis_off()
    low, high = np.percentile(table["above_median"], (0, 95))
    for plot, name in zip(plots, names, strict=False):
        values = sorted(table[name].dropna().unique())
        jitter = np.random.default_rng(0)
        for place, value in enumerate(values):
            points = table[table[name] == value]["log_ratio"].to_numpy()
            places = place + jitter.uniform(-0.15, 0.15, len(points))
            plot.scatter(places, per_cent(points), s=10, c=GREY, alpha=0.6, lw=0, rasterized=len(table) > MANY)
            if len(points) > 1:
                mean, below, above = map(per_cent, mean_interval(points))
                plot.errorbar(place, mean, [[mean - below], [above - mean]], fmt="o", c=BLUE, ms=5, lw=1.6, capsize=3)
        labels = [value if isinstance(value, str) else f"{value:g}" for value in values]
        plot.tick_params(axis="x", labelsize=8 if len(values) > 6 else 10)
        plot.axhline(0, c="#666666", lw=0.8)
        plot.set(title=name, xticks=range(len(values)), xticklabels=labels, xlim=(-0.6, len(values) - 0.4))
        plot.set_ylim(low - 0.05 * (high - low) - 1, high + 0.05 * (high - low) + 1)
        plot.yaxis.set_major_formatter(lambda value, _: f"{value:+.4g} %" if value else "0 %")
    shares = importances(table, names)
    backwards = shares.iloc[::-1]
    errors = np.clip([backwards["share"] - backwards["low"], backwards["high"] - backwards["share"]], 0, None)
    plots[-1].barh(backwards.index, backwards["share"], xerr=errors, color=ORANGE, ecolor=BLACK, capsize=3)
    plots[-1].set(title="importance (Optuna)" if len(shares) else "importance: too few trials", xlim=(0, 1))
    plots[-1].grid(axis="y", visible=False)
    if shares.empty:
        plots[-1].set_axis_off()
    level = level_text(table["level"].iloc[0])
    text = (
        f"Perplexity against the median of the {len(table)} trials at {level}: each trial, and means with 90 % "
        "intervals. The other dimensions are not held equal; points above the scale are cut."
    )
    if len(shares):
        text += f" Most important for being among the best: {shares.index[0]} ({shares['share'].iloc[0]:.0%})."
    return Picture(
        name=f"effects-{family}",
        title=f"{family}: what each dimension did",
        text=text,
        figure=figure,
        data=table[[*TRIAL, *names, "level", "perplexity", "above_median"]],
    )


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
            busy.append(f"{name} {tables.share(rows['mfu'].mean(), 1)}")
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
        log_axis(speed.xaxis, table["parameters"], tables.short_count)
        log_axis(speed.yaxis, table["tokens_per_second"].dropna(), tables.short_count)
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
