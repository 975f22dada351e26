"""The figures of the published reports, to stand beside ours: analysis/published/ says of each where it is from."""

import csv
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[2] / "analysis" / "published"


@cache
def published(name: str) -> tuple[dict[str, Any], ...]:
    """The rows of a table: numbers, words where the report has words, None where it has nothing."""
    with (FOLDER / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return tuple({column: _value(text) for column, text in row.items()} for row in csv.DictReader(file))


def published_by(name: str, *keys: str) -> dict[tuple[str, ...], dict[str, Any]]:
    """The same by columns of words, without these."""
    return {
        tuple(row[key] for key in keys): {column: row[column] for column in row.keys() - set(keys)}
        for row in published(name)
    }


def _value(text: str) -> float | str | None:
    try:
        return float(text) if text else None
    except ValueError:
        return text
