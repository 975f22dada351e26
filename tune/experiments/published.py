"""The figures of the published reports, to stand beside ours: analysis/published/ says of each where it is from."""

import csv
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "analysis" / "published"


@cache
def published(name: str) -> tuple[dict[str, float | None], ...]:
    """The rows of a table of numbers; None where the report has none."""
    with (FOLDER / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return tuple(
            {column: float(value) if value else None for column, value in row.items()} for row in csv.DictReader(file)
        )
