"""What each dimension did, at one rung: its effect with intervals, and its importance by Optuna."""

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import optuna
import pandas as pd
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

from analysis.figures.picture import BLACK, BLUE, GREY, MANY, ORANGE, Picture, axes, level_text, levels
from analysis.results import Results
from analysis.trials import LEVEL, TRIAL
from tune.queries import DECAY

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
