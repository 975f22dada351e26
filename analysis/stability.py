"""Stability of the ranking: a study at half of its spending against its end, by each measure that trials are ranked
by."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis import tables
from analysis.settings import RankSettings
from analysis.study import LEVEL_COLUMNS, Results, Study, families
from tune.errors import UserError
from tune.store.queries import DECAY

FEWEST = 3  # trials to compare two orders
MEASURES = {"efficiency": 1, "perplexity_per_million": -1, "perplexity": -1}
"""Columns that trials are ranked by; 1: high is good, -1: low is."""
COLUMNS = ["family", "measure", "then", "end", "trials", "tau", "tau_of_size", "leader", "leader_at_end"]


def moment(study: Study, share: float) -> float:
    """Return the time on the study's clock when this share of all its charges had been made. UserError: it has none."""
    charges = study.read("SELECT at, seconds FROM charges ORDER BY at, charge")
    if charges.empty:
        raise UserError(f"study: {str(study.folder)!r} was charged nothing yet; wait for its first segment to end")
    paid = charges["seconds"].cumsum()
    return float(charges["at"][paid.searchsorted(share * paid.iloc[-1])])


def stability(study: Study, share: float = 0.5) -> pd.DataFrame:
    """Return a row for each family and measure: COLUMNS. They say whether the order of trials when this share of the
    device-seconds had been charged (`then`) predicts the order of those trained further.

    end: the furthest level that FEWEST trials or more reached since then; then: the furthest level at which as many of
    them were compared already; trials: their number; tau: Kendall's tau-b between their two orders (NaN for too few
    trials); tau_of_size: between the order at the end and that by size, largest best; leader: the best then;
    leader_at_end: its place among the same trials at the end.
    """
    early, late = (_reached(each) for each in (replace(study, until=moment(study, share)), study))
    done = set(zip(early["trial"], early["level"], strict=True))
    rows: list[tuple[object, ...]] = []
    for family in Results(studies=[study]).trials["family"].unique():
        for measure, sign in MEASURES.items():
            known = (table[(table["family"] == family) & table[measure].notna()] for table in (early, late))
            levels = _levels(done, *known)
            if levels is None:
                rows.append((family, measure, None, None, 0, np.nan, np.nan, None, None))
                continue
            first, last = (sign * levels[f"{measure}_{when}"].to_numpy(float) for when in ("then", "end"))
            of_size = tau(last, levels["parameters_end"].to_numpy(float))
            leader, place = levels.iloc[int(first.argmax())]["trial"], int((last > last[first.argmax()]).sum()) + 1
            then, end = levels["level_then"].iloc[0], levels["level_end"].iloc[0]
            rows.append((family, measure, then, end, len(levels), tau(first, last), of_size, leader, place))
    return pd.DataFrame(rows, columns=COLUMNS)


def _reached(study: Study) -> pd.DataFrame:
    """Return a row for each trial and level, the furthest first."""
    table = Results(studies=[study]).reached.iloc[::-1]
    return table.assign(perplexity_per_million=table["perplexity"] / (table["parameters"] / 1e6))


def _levels(done: set[tuple[str, str]], early: pd.DataFrame, late: pd.DataFrame) -> pd.DataFrame | None:
    """Return the same trials at one level then and at a further one at the end, each the furthest that enough have.

    done: each trial and level reached by then, whether or not the measure was known there.
    """
    since = late[[key not in done for key in zip(late["trial"], late["level"], strict=True)] or slice(0)]
    for _, end in since.groupby(LEVEL_COLUMNS, sort=False, dropna=False):
        both = early.merge(end, on="trial", suffixes=("_then", "_end"))
        for _, then in both.groupby([f"{name}_then" for name in LEVEL_COLUMNS], sort=False, dropna=False):
            if len(then) >= FEWEST:
                return then
    return None


def tau(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    """Return Kendall's tau-b (1945), in which ties count for neither side; NaN below FEWEST values or if all are
    tied."""
    agreed = untied = untied_too = 0
    for place in range(len(first) - 1):
        one, two = (np.sign(values[place] - values[place + 1 :]) for values in (first, second))
        agreed += int(one @ two)
        untied += int(np.abs(one).sum())
        untied_too += int(np.abs(two).sum())
    return agreed / (untied * untied_too) ** 0.5 if len(first) >= FEWEST and untied * untied_too else float("nan")


TOO_FEW = f"too few trials: it takes {FEWEST} that completed a rung by then and a further one since"
ABOUT = (
    "The same trials at one rung then and at a further one that they reached since, as far as three of them or more "
    "got. Tau of size: how far the order at the end is that by size alone, the largest first."
)


def show_stability(study: Study, settings: RankSettings) -> int:
    """Print the table in the format that is asked for. UserError: the study does not serve."""
    assert settings.stability is not None
    found = stability(study, settings.stability)
    found = found[found["family"].isin(families(Results(studies=[study]), settings.family))]
    title = f"{study.name}: after {settings.stability:.0%} of its spending, against its end"
    table = tables.as_text(title, stability_table(found), ABOUT)
    if settings.json:
        print(json.dumps(json.loads(found.to_json(orient="records", double_precision=15)), indent=1))
    elif settings.format:
        print(settings.render([table]))
    elif not found["trials"].any():
        print(f"{title}: {TOO_FEW}")
    else:
        tables.draw(table)
    return 0


def stability_table(found: pd.DataFrame) -> pd.DataFrame:
    """Return the rows as people read them."""

    def signed(value: float) -> str:
        return tables.EMPTY_CELL if pd.isna(value) else f"{value:+.2f}"

    return pd.DataFrame(
        {
            "family": found["family"],
            "measure": found["measure"].str.replace("_", " "),
            "order then": found["then"].replace(DECAY, "the decay").fillna(tables.EMPTY_CELL),
            "order at the end": found["end"].replace(DECAY, "the decay").fillna(tables.EMPTY_CELL),
            "trials": found["trials"].astype(str),
            "Kendall's tau": found["tau"].map(signed),
            "tau of size": found["tau_of_size"].map(signed),
            "best then": [
                tables.EMPTY_CELL if pd.isna(place) else f"{leader}, at the end {place:.0f}"
                for leader, place in zip(found["leader"], found["leader_at_end"], strict=True)
            ],
        }
    )
