"""The ranking that a search returns: every trial as a row of a pandas DataFrame, read from the journal."""

import json
import math
from collections.abc import Collection
from contextlib import closing
from pathlib import Path

import pandas as pd

from tune.reports import Metric
from tune.store.journal import connect
from tune.store.queries import ranking_query

COLUMNS = [
    *("perplexity", "subset", "parameters", "perplexity_per_million", "bits_per_character", "test_perplexity"),
    *("device_seconds", "memory_bytes"),
]
"""Columns of numbers in a ranking; subset: NaN where the perplexity is of the whole split."""
OWN_COLUMNS = ["steps", "training_seconds", "device_seconds"]
"""Columns of numbers in the ranking of a user's loop, beside those that it reported."""
RESERVED_NAMES = frozenset(
    {
        *("study", "family", "corpus", "sha256", "vocabulary", "judged_context", "smoke_test", "device", "section"),
        *("rung", "place"),
        *("rung_seconds", "level", "group", "trial", "config", "words", "state", "reason", "failed", "anew", "created"),
        *("at", "final", "own", "on_whole", "averaged", "loss", "numbers", "tokens", "checkpoint", "mfu", "front"),
        *("efficiency", "efficiency_low", "efficiency_high", "efficiency_at", "subset_perplexity"),
        *COLUMNS, *OWN_COLUMNS,
    }
)  # fmt: skip
"""Names of our columns, here and in analysis/."""


def comparison_column(metric: Metric | None) -> str:
    """Return the column by which trials are compared: perplexity, or `best_` and the metric for a user's loop."""
    return "perplexity" if metric is None else f"best_{metric.name}"


def config_columns(texts: pd.Series, metric: Metric | None) -> pd.DataFrame:
    """Return a column for each dimension of these configurations, named after it, with `config_` in front where a
    column of ours has that name."""
    found = pd.DataFrame([json.loads(text) for text in texts], index=texts.index)
    taken = {*RESERVED_NAMES, comparison_column(metric)}
    return found.rename(columns={name: f"config_{name}" for name in found if name in taken})


def reported_columns(texts: pd.Series, metric: Metric, dimensions: Collection[str]) -> pd.DataFrame:
    """Return a column for each number that a user's loop reported, named after it, with `reported_` in front where
    another column has that name."""
    found = pd.DataFrame([json.loads(text) if isinstance(text, str) else {} for text in texts], index=texts.index)
    taken = {*RESERVED_NAMES, *dimensions, comparison_column(metric)}
    return found.rename(columns={name: f"reported_{name}" for name in found if name in taken}).astype(float)


def ranking(study: Path, metric: Metric | None = None) -> pd.DataFrame:
    """Return the ranking of the study in this folder, one row a trial, by family, the winner first: the best of those
    that came furthest; for a user's loop, the one with the best metric.

    Columns: family, section, rung, trial, the dimensions of the space, COLUMNS, state, reason; all as analysis/rank.py
    names them. For a user's loop, so that a print shows what matters: trial, `best_` and the metric, the dimensions,
    what else it reported last, OWN_COLUMNS, and then the others but for COLUMNS.
    """
    with closing(connect(study)) as journal:
        journal.row_factory = None
        table = pd.read_sql_query(ranking_query(), journal, params=(math.inf,))
    configs, columns = config_columns(table["config"], metric), COLUMNS
    first, last = ["family", "section", "rung", "trial"], [*COLUMNS, "state", "reason"]
    if metric is not None:
        best, reported = comparison_column(metric), reported_columns(table["numbers"], metric, configs.columns)
        table = table.assign(**{best: table["loss"].astype(float).map(metric.to_reported)}).join(reported)
        columns = [best, *reported, *OWN_COLUMNS]
        first, last = ["trial", best], [*columns[1:], "state", "reason", "family", "section", "rung"]
    table = table.astype(dict.fromkeys(columns, float) | {"rung": "Int64"})
    return table[first].join(configs).join(table[last])
