"""The ranking that a search returns: every trial as a row of a pandas DataFrame, read from the journal."""

import json
import math
from collections.abc import Collection
from contextlib import closing
from pathlib import Path

import pandas as pd

from tune.reports import Metric
from tune.store.journal import connect
from tune.store.queries import in_order

COLUMNS = [
    *("perplexity", "subset", "parameters", "perplexity_per_million", "bits_per_character", "test_perplexity"),
    *("device_seconds", "memory_bytes"),
]
"""Of the ranking, as numbers; subset: NaN where the perplexity is of the whole split."""
OWN_COLUMNS = ["steps", "training_seconds", "device_seconds"]
"""The same of a user's loop, beside what it reported."""
TAKEN = frozenset(
    {
        *("study", "family", "corpus", "sha256", "vocabulary", "smoke_test", "device", "section", "rung", "place"),
        *("rung_seconds", "level", "group", "trial", "config", "words", "state", "reason", "failed", "anew", "created"),
        *("at", "final", "own", "on_whole", "averaged", "loss", "numbers", "tokens", "checkpoint", "mfu", "front"),
        *("efficiency", "efficiency_low", "efficiency_high", "efficiency_at", "subset_perplexity"),
        *COLUMNS, *OWN_COLUMNS,
    }
)  # fmt: skip
"""Columns of ours, here and in analysis/."""


def compared(metric: Metric | None) -> str:
    """The column by which trials are compared: of a user's loop `best_` and its metric."""
    return "perplexity" if metric is None else f"best_{metric.name}"


def configurations(texts: pd.Series, metric: Metric | None) -> pd.DataFrame:
    """A column for each dimension of these, under its own name where no column of ours has that."""
    found = pd.DataFrame([json.loads(text) for text in texts], index=texts.index)
    taken = {*TAKEN, compared(metric)}
    return found.rename(columns={name: f"config_{name}" for name in found if name in taken})


def reported(texts: pd.Series, metric: Metric, dimensions: Collection[str]) -> pd.DataFrame:
    """The same for each number that a user's loop told, beside its configurations."""
    found = pd.DataFrame([json.loads(text) if isinstance(text, str) else {} for text in texts], index=texts.index)
    taken = {*TAKEN, *dimensions, compared(metric)}
    return found.rename(columns={name: f"reported_{name}" for name in found if name in taken}).astype(float)


def ranking(study: Path, metric: Metric | None = None) -> pd.DataFrame:
    """One row a trial of the study in this folder, by family, the winner first: who came furthest, and is best there;
    of a user's loop, who has the best metric.

    Columns: family, section, rung, trial, the dimensions of the space, COLUMNS, state, reason; all as analysis/rank.py
    names them. Of a user's loop, so that a print shows what it is about: trial, `best_` and the metric, the dimensions,
    what else it reported last, OWN_COLUMNS, and then the others but for COLUMNS.
    """
    with closing(connect(study)) as journal:
        journal.row_factory = None
        table = pd.read_sql_query(in_order(), journal, params=(math.inf,))
    configs, columns = configurations(table["config"], metric), COLUMNS
    first, last = ["family", "section", "rung", "trial"], [*COLUMNS, "state", "reason"]
    if metric is not None:
        told = reported(table["numbers"], metric, configs.columns)
        table = table.assign(**{compared(metric): table["loss"].astype(float).map(metric.own)}).join(told)
        columns = [compared(metric), *told, *OWN_COLUMNS]
        first, last = ["trial", compared(metric)], [*told, *OWN_COLUMNS, "state", "reason", "family", "section", "rung"]
    table = table.astype(dict.fromkeys(columns, float) | {"rung": "Int64"})
    return table[first].join(configs).join(table[last])
