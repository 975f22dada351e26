"""The rows that an experiment left in a study's journal."""

import json
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.studies import Study
from tune.errors import UserError, called

PUBLISHED = Path(__file__).parent / "published"


def experiment_rows(study: Study, name: str) -> list[dict[str, Any]]:
    """The last row of each point that was measured. UserError where there is none."""
    query = "SELECT value FROM rows WHERE experiment = ? ORDER BY row"
    values = study.read(query, name)["value"] if study.has("rows", "value") else []
    found = {row["key"]: row for row in map(json.loads, values)}
    measured = [row for row in found.values() if "skipped" not in row]
    if not measured:
        raise UserError(f"study: {study.name!r} has no row of {name}; make one: {called('tune/experiment.py')} {name}")
    return measured


def published(name: str) -> pd.DataFrame:
    """The figures of a published report."""
    return pd.read_csv(PUBLISHED / f"{name}.csv")
