"""The ranking that a search returns: every trial as a row of a pandas DataFrame, read from the journal."""

import json
import math
from contextlib import closing
from pathlib import Path

import pandas as pd

from tune.store.journal import connect
from tune.store.queries import in_order

COLUMNS = [
    *("perplexity", "subset", "parameters", "perplexity_per_million", "bits_per_character", "test_perplexity"),
    *("device_seconds", "memory_bytes"),
]
"""Of the ranking, as numbers; subset: NaN where the perplexity is of the whole split."""


def ranking(study: Path) -> pd.DataFrame:
    """One row a trial of the study in this folder, by family, the winner first: who came furthest, and is best there.

    Columns: family, section, rung, trial, the dimensions of the space, COLUMNS, state, reason; all as analysis/rank.py
    names them.
    """
    with closing(connect(study)) as journal:
        journal.row_factory = None
        table = pd.read_sql_query(in_order(), journal, params=(math.inf,))
    configs = pd.DataFrame([json.loads(config) for config in table["config"]], index=table.index)
    table = table.astype(dict.fromkeys(COLUMNS, float))
    first, last = ["family", "section", "rung", "trial"], [*COLUMNS, "state", "reason"]
    return table[first].join(configs).join(table[last]).astype({"rung": "Int64"})
