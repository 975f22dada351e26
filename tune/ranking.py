"""The ranking that a search returns: every trial as a row of a pandas DataFrame, read from the journal."""

import json
import math
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


def ranking(study: Path, metric: Metric | None = None) -> pd.DataFrame:
    """One row a trial of the study in this folder, by family, the winner first: who came furthest, and is best there;
    of a user's loop, who has the best metric.

    Columns: family, section, rung, trial, the dimensions of the space, COLUMNS, state, reason; all as analysis/rank.py
    names them. Of a user's loop, in the place of COLUMNS: `best_` and the metric, what else it reported last,
    OWN_COLUMNS.
    """
    with closing(connect(study)) as journal:
        journal.row_factory = None
        table = pd.read_sql_query(in_order(), journal, params=(math.inf,))
    configs = pd.DataFrame([json.loads(config) for config in table["config"]], index=table.index)
    columns, own = COLUMNS, {*table.columns} - {"config"}
    if metric is not None:
        told = pd.DataFrame(
            [json.loads(text) if isinstance(text, str) else {} for text in table["numbers"]], index=table.index
        )
        told.insert(0, f"best_{metric.name}", [metric.own(loss) for loss in table["loss"].astype(float)])
        configs = configs.rename(
            columns={name: f"config_{name}" for name in configs if name in own | {*told.columns[:1]}}
        )
        told = told.rename(columns={name: f"reported_{name}" for name in told if name in own | {*configs}})
        table, columns = table.join(told), [*told.columns, *OWN_COLUMNS]
    table = table.astype(dict.fromkeys(columns, float))
    first, last = ["family", "section", "rung", "trial"], [*columns, "state", "reason"]
    return table[first].join(configs).join(table[last]).astype({"rung": "Int64"})
