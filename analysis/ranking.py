"""Rank trials by perplexity per parameter and by what that question means to ask."""

from dataclasses import dataclass

import pandas as pd

from analysis.results import EFFICIENCY, Results
from analysis.trials import POOL, TRIAL

ORDERS = {
    "quotient": ("perplexity_per_million", True),
    "perplexity": ("perplexity", True),
    "parameters": ("parameters", True),
    "efficiency": ("efficiency", False),
    "device-seconds": ("device_seconds", True),
    "memory": ("memory_bytes", True),
}
"""The choices of --by: the column each sorts, and whether low is good."""
SECTIONS = ("decayed", "rung", "unranked", "failed")
"""In this order: after their decay, waiting or stopped at a rung, without a rung yet, broken."""
MEASURED = [
    *("perplexity", "bits_per_character", "test_perplexity", "training_seconds", "steps", "tokens"),
    *("final", "rung", "rung_seconds"),
]
FIRST = [
    *("study", "trial", "family", "corpus", "vocabulary", "smoke_test", "section", "rung", "rung_seconds", "place"),
    "config",
]
COLUMNS = [
    *("perplexity", "parameters", "perplexity_per_million", "bits_per_character", "test_perplexity"),
    *EFFICIENCY,
    *("efficiency_at", "front", "device_seconds", "training_seconds"),
    *("steps", "tokens", "memory_bytes", "mfu", "state", "reason", "sha256"),
]


def ranking(results: Results, *, by: str = "quotient") -> pd.DataFrame:
    """One row a trial, best first inside each section: its highest rung, or its decay. Columns: FIRST,
    the dimensions of the space, COLUMNS.

    Front and efficiency are those among all trials that completed the same rung, whether or not they went on from it;
    efficiency at the highest rung that a trial shares with enough others for a curve (`efficiency_at`).
    """
    reached = results.reached
    last = reached.drop_duplicates(TRIAL, keep="last")
    curved = reached[reached["efficiency"].notna()].drop_duplicates(TRIAL, keep="last")
    curved = curved.assign(efficiency_at=curved["level"])
    table = results.trials.merge(last[[*TRIAL, *MEASURED, "front"]], on=TRIAL, how="left")
    table = table.merge(curved[[*TRIAL, *EFFICIENCY, "efficiency_at"]], on=TRIAL, how="left")
    table["front"] = table["front"].eq(True) & ~table["failed"]
    table["perplexity_per_million"] = table["perplexity"] / (table["parameters"] / 1e6)
    table["section"] = "rung"
    table.loc[table["final"].eq(True), "section"] = "decayed"
    table.loc[table["perplexity"].isna(), "section"] = "unranked"
    table.loc[table["failed"], "section"] = "failed"
    return _ordered(table, by)[[*FIRST, *results.dimensions, *COLUMNS, "group"]]


def _ordered(table: pd.DataFrame, by: str) -> pd.DataFrame:
    column, low_first = ORDERS[by]
    keys = pd.DataFrame(
        {
            "pool": table.groupby(POOL, sort=False, dropna=False).ngroup(),
            "section": table["section"].map(SECTIONS.index),
            "seconds": -table["rung_seconds"].where(table["section"] == "rung"),
            "rung": -table["rung"].where(table["section"] == "rung"),
            "device": table["device"].where(table["section"] == "rung"),
        }
    )
    groups = keys.groupby(list(keys), sort=False, dropna=False).ngroup()
    keys["by"] = table[column] if low_first else -table[column]
    keys["perplexity"] = table["perplexity"]
    order = keys.sort_values(list(keys), kind="stable", na_position="last").index
    table = table.loc[order].assign(
        place=groups.loc[order].groupby(groups.loc[order]).cumcount() + 1, group=groups.loc[order]
    )
    table.loc[table["section"].isin(("unranked", "failed")), "place"] = float("nan")
    return table.reset_index(drop=True)


@dataclass(frozen=True, kw_only=True)
class Answers:
    """The three answers for one family and one text; each a row of the ranking, or None where there is none yet."""

    quotient: pd.Series | None
    efficiency: pd.Series | None
    perplexity: pd.Series | None


def answers(pool: pd.DataFrame) -> Answers:
    """Each the best of the highest level at which it is known: for efficiency, the highest with a fitted curve."""
    known = pool[~pool["section"].isin(("unranked", "failed"))]

    def best(column: str, *, among: str, low: bool) -> pd.Series | None:
        rows = known[known[column].notna()]
        if rows.empty:
            return None
        first = rows[rows[among] == rows[among].iloc[0]][column]
        return pool.loc[first.idxmin() if low else first.idxmax()]

    return Answers(
        quotient=best("perplexity_per_million", among="group", low=True),
        efficiency=best("efficiency", among="efficiency_at", low=False),
        perplexity=best("perplexity", among="group", low=True),
    )
