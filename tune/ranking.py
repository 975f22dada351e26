"""The ranking that a search returns: every trial as a row of a pandas DataFrame, read from the journal."""

import json
from contextlib import closing
from pathlib import Path

import pandas as pd

from tune.journal import connect

REACHED = """
    SELECT * FROM (
        SELECT *, ROW_NUMBER() OVER (
            PARTITION BY trial ORDER BY final DESC, IFNULL(rung, -1) DESC, report DESC) AS place
        FROM reports WHERE (final OR rung IS NOT NULL) AND perplexity IS NOT NULL)
    WHERE place = 1"""
"""Of a journal, the report of each trial at the furthest level that it completed: a rung, or its decay."""
BROKEN = ("diverged", "memory", "error")
"""Reasons that are no choice of the search; the journal's text may go on after the word."""
FAILED = " OR ".join(["state = 'failed'", *(f"IFNULL(reason, '') LIKE '{word}%'" for word in BROKEN)])
"""Of a row of trials: it has no place among the others."""
TRIALS = f"""
    SELECT family, trials.trial, config, state, IFNULL(reason, '') AS reason, {FAILED} AS failed, parameters, final,
           highest AS rung, perplexity, bits_per_character, test_perplexity, IFNULL(paid, 0.0) AS device_seconds,
           most AS memory_bytes
    FROM trials LEFT JOIN ({REACHED}) USING (trial)
    LEFT JOIN (SELECT trial, SUM(seconds) AS paid FROM charges GROUP BY trial) USING (trial)
    LEFT JOIN (SELECT trial, MAX(rung) AS highest, MAX(memory_bytes) AS most FROM reports GROUP BY trial) USING (trial)
    ORDER BY trials.trial"""
SECTIONS = ("decayed", "rung", "unranked", "failed")
"""In this order: after their decay, waiting or stopped at a rung, without a rung yet, broken."""
MEASURED = ["rung", "perplexity", "bits_per_character", "test_perplexity"]
COLUMNS = [
    *("perplexity", "parameters", "perplexity_per_million", "bits_per_character", "test_perplexity"),
    *("device_seconds", "memory_bytes", "state", "reason"),
]


def ranking(study: Path) -> pd.DataFrame:
    """One row a trial of the study in this folder, by family, the winner first: who came furthest, and is best there.

    Columns: family, section, rung, trial, the dimensions of the space, COLUMNS; all as analysis/rank.py names them.
    """
    with closing(connect(study)) as journal:
        journal.row_factory = None
        table = pd.read_sql_query(TRIALS, journal)
    configs = pd.DataFrame([json.loads(config) for config in table.pop("config")], index=table.index)
    failed = table.pop("failed").astype(bool)
    table = table.astype(dict.fromkeys([*MEASURED, "parameters", "device_seconds", "memory_bytes"], float))
    table.loc[failed, MEASURED] = float("nan")
    table["perplexity_per_million"] = table["perplexity"] / (table["parameters"] / 1e6)
    table["section"] = "rung"
    table.loc[table["final"] == 1, "section"] = "decayed"
    table.loc[table["perplexity"].isna(), "section"] = "unranked"
    table.loc[failed, "section"] = "failed"
    level = -table["rung"].where(table["section"] == "rung")
    keys = table.assign(section=table["section"].map(SECTIONS.index), rung=level)
    order = keys.sort_values(["family", "section", "rung", "perplexity"], kind="stable").index
    whole = table[["family", "section", "rung", "trial"]].join(configs).join(table[COLUMNS])
    return whole.loc[order].reset_index(drop=True).astype({"rung": "Int64"})
