"""Rank trials by perplexity per parameter and by what that question means to ask.

What counts of a trial, and which of them compare, tune.store.queries says; here it is done over several studies, and
with what takes a curve fitted to all sizes.
"""

from dataclasses import dataclass

import pandas as pd

from analysis.study import EFFICIENCY, LEVEL, POOL, TRIAL, Results
from tune.store.queries import SECTIONS, level_text, measured_text

ORDERS = {
    "quotient": ("perplexity_per_million", True),
    "perplexity": ("perplexity", True),
    "parameters": ("parameters", True),
    "efficiency": ("efficiency", False),
    "device-seconds": ("device_seconds", True),
    "memory": ("memory_bytes", True),
}
"""The choices of --by: the column each sorts, and whether low is good."""
MEASURED = [
    *("perplexity", "bits_per_character", "test_perplexity", "training_seconds", "steps", "tokens"),
    *("final", "rung", "level", "rung_seconds", "on_whole", "subset"),
]
FIRST = [
    *("study", "trial", "family", "corpus", "vocabulary", "smoke_test", "section", "rung", "rung_seconds", "place"),
    "config",
]
COLUMNS = [
    *("perplexity", "subset", "parameters", "perplexity_per_million", "bits_per_character", "test_perplexity"),
    *EFFICIENCY,
    *("efficiency_at", "front", "device_seconds", "training_seconds"),
    *("steps", "tokens", "memory_bytes", "mfu", "state", "reason", "sha256", "final", "on_whole"),
]


def ranking(results: Results, *, by: str = "quotient") -> pd.DataFrame:
    """One row a trial, best first inside each section: its highest rung, or its decay. Columns: FIRST,
    the dimensions of the space, COLUMNS.

    Front and efficiency are those among all trials that completed the same rung, whether or not they went on from it;
    efficiency at the highest rung that a trial shares with enough others for a curve (`efficiency_at`). subset: target
    tokens of the validation subset that was measured; NaN: of the whole split, or not written down (`on_whole`).
    """
    reached = results.reached
    last = reached.drop_duplicates(TRIAL, keep="last")
    curved = reached[reached["efficiency"].notna()].drop_duplicates(TRIAL, keep="last")
    curved = curved.assign(efficiency_at=curved["level"])
    table = results.trials.merge(last[[*TRIAL, *MEASURED, "front"]], on=TRIAL, how="left")
    table = table.merge(curved[[*TRIAL, *EFFICIENCY, "efficiency_at"]], on=TRIAL, how="left")
    table[["front", "final", "on_whole"]] = table[["front", "final", "on_whole"]].eq(True)
    table["perplexity_per_million"] = table["perplexity"] / (table["parameters"] / 1e6)
    return _ordered(table, by)[[*FIRST, *results.dimensions, *COLUMNS, "group"]]


def _levels(table: pd.DataFrame, section: pd.Series) -> pd.DataFrame:
    """What sorts rows by text, section and level, the furthest first, as tune.store.queries does for one study."""
    rung = section == "rung"
    return pd.DataFrame(
        {
            "pool": table.groupby(POOL, sort=False, dropna=False).ngroup(),
            "section": section.map(SECTIONS.index),
            "seconds": -table["rung_seconds"].where(rung),
            "rung": -table["rung"].where(rung),
            "device": table["device"].where(rung),
            "on_whole": ~table["on_whole"],
            "subset": -table["subset"],
        }
    )


def _ordered(table: pd.DataFrame, by: str) -> pd.DataFrame:
    column, low_first = ORDERS[by]
    keys = _levels(table, table["section"])
    groups = keys.groupby(list(keys), sort=False, dropna=False).ngroup()
    keys["by"] = table[column] if low_first else -table[column]
    keys["perplexity"] = table["perplexity"]
    order = keys.sort_values(list(keys), kind="stable", na_position="last").index
    table = table.loc[order].assign(
        place=groups.loc[order].groupby(groups.loc[order]).cumcount() + 1, group=groups.loc[order]
    )
    table.loc[table["section"].isin(("unranked", "failed")), "place"] = float("nan")
    return table.reset_index(drop=True)


def where(row: pd.Series) -> str:
    """at rung 2, on 3,872 validation tokens: of a row of the ranking, or of Results.reached"""
    return ", ".join(filter(None, (level_text(row), measured_text(row))))


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What one family and text has to offer: the winner, and three answers of one level.

    winner: the row of the ranking with the lowest perplexity at the furthest level. quotient, efficiency, perplexity:
    each the best of the `among` trials that completed one level, as a row of Results.reached; that is the furthest
    level with a fitted curve, else the furthest, where efficiency is None.
    """

    winner: pd.Series
    among: int
    quotient: pd.Series
    efficiency: pd.Series | None
    perplexity: pd.Series


def answers(results: Results, pool: pd.DataFrame) -> Answers | None:
    """Of rows of a ranking that compare; None where no trial completed a rung yet."""
    reached = results.reached.merge(pool[TRIAL], on=TRIAL)
    if reached.empty:
        return None
    first = pool[pool["group"] == pool["group"].iloc[0]]
    keys = _levels(reached, reached["final"].map({True: "decayed", False: "rung"}))
    furthest_first = reached.loc[keys.sort_values(list(keys), kind="stable", na_position="last").index]
    levels = [rows for _, rows in furthest_first.groupby(LEVEL, sort=False, dropna=False)]
    rows = next((rows for rows in levels if rows["efficiency"].notna().any()), levels[0])
    curved = rows["efficiency"].notna().any()
    return Answers(
        winner=first.loc[first["perplexity"].idxmin()],
        among=len(rows),
        quotient=rows.loc[(rows["perplexity"] / rows["parameters"]).idxmin()],
        efficiency=rows.loc[rows["efficiency"].idxmax()] if curved else None,
        perplexity=rows.loc[rows["perplexity"].idxmin()],
    )
