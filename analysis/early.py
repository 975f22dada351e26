"""A study at half of its spending against its end: which measure of worth ranks its trials alike at both."""

from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.ranking import ranking
from analysis.results import Results
from analysis.studies import Study
from analysis.trials import TRIAL
from tune.errors import UserError

FEWEST = 3  # trials that have an order
MEASURES = {"efficiency": 1, "perplexity_per_million": -1, "perplexity": -1}
"""Columns of a ranking, and whether high is good."""
COLUMNS = ["family", "measure", "trials", "moved", "tau", "tau_of_size", "leader", "leader_at_end"]


def moment(study: Study, share: float) -> float:
    """On the study's clock, when this share of what it was charged in all had been charged."""
    charges = study.read("SELECT at, seconds FROM charges ORDER BY at, charge")
    if charges.empty:
        raise UserError(f"study: {str(study.folder)!r} was charged nothing yet; wait for its first stretch to end")
    paid = charges["seconds"].cumsum()
    return float(charges["at"][paid.searchsorted(share * paid.iloc[-1])])


def stability(study: Study, share: float = 0.5) -> pd.DataFrame:
    """A row a family and measure: COLUMNS. Each trial counts with the furthest that it had reached at each moment: when
    this share of the device-seconds had been charged, and at the end.

    trials: those measured at both; moved: how many of them were trained on in between; tau: Kendall's tau-b between
    their orders (NaN for too few trials); tau_of_size: between the order at the end and that by size, largest best;
    leader: the best then, leader_at_end: its place among the same trials at the end.
    """
    early, late = (ranking(Results(studies=[each])) for each in (replace(study, until=moment(study, share)), study))
    both = early.merge(late, on=[*TRIAL, "family"], suffixes=("_then", "_end"))
    both = both[~both["section_end"].isin(("failed", "unranked"))]
    rows = []
    for family, table in both.groupby("family", sort=False):
        for measure, sign in MEASURES.items():
            known = table.dropna(subset=[f"{measure}_then", f"{measure}_end"])
            first, last = (sign * known[f"{measure}_{when}"].to_numpy(float) for when in ("then", "end"))
            enough = len(known) >= FEWEST
            leader = known.iloc[int(first.argmax())]["trial"] if enough else None
            place = int((last > last[first.argmax()]).sum()) + 1 if enough else None
            moved = int((known["steps_then"] != known["steps_end"]).sum())
            of_size = tau(last, known["parameters_end"].to_numpy(float))
            rows.append((family, measure, len(known), moved, tau(first, last), of_size, leader, place))
    return pd.DataFrame(rows, columns=COLUMNS)


def tau(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    """Kendall's tau-b (1945), by which ties count for neither side; NaN below FEWEST values or where all are tied."""
    agreed = untied = untied_too = 0
    for place in range(len(first) - 1):
        one, two = (np.sign(values[place] - values[place + 1 :]) for values in (first, second))
        agreed += int(one @ two)
        untied += int(np.abs(one).sum())
        untied_too += int(np.abs(two).sum())
    return agreed / (untied * untied_too) ** 0.5 if len(first) >= FEWEST and untied * untied_too else float("nan")
