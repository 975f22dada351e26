"""The figures of the published reports, to stand beside ours: analysis/published/ says of each where it is from."""

import csv
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "analysis" / "published"


@cache
def published(name: str) -> tuple[dict[str, float | None], ...]:
    """The rows of a table of numbers; None where the report has none."""
    return tuple(_numbers(row) for row in _rows(name))


@cache
def published_by(name: str, *keys: str) -> dict[tuple[str, ...], dict[str, float | None]]:
    """The rows of a table by columns of words: all else are numbers."""
    return {tuple(row.pop(key) for key in keys): _numbers(row) for row in _rows(name)}


def _rows(name: str) -> list[dict[str, str]]:
    with (FOLDER / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _numbers(row: dict[str, str]) -> dict[str, float | None]:
    return {column: float(value) if value else None for column, value in row.items()}
