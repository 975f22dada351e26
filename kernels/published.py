"""The published report's times of the same functions, to stand beside ours."""

import csv
from functools import cache
from pathlib import Path

FILE = Path(__file__).resolve().parents[1] / "analysis" / "published" / "kernels.csv"
SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3}


@cache
def published_seconds() -> dict[tuple[str, str], float]:
    """By kernel and implementation, as they are called here. The report does not tell its sizes."""
    with FILE.open(newline="", encoding="utf-8") as file:
        return {
            (row["kernel"], row["implementation_here"]): float(row["time"]) * SECONDS[row["unit"]]
            for row in csv.DictReader(file)
        }
