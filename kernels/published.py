"""The published report's times of the same functions, to stand beside ours."""

import csv
from functools import cache
from pathlib import Path

FILE = Path(__file__).resolve().parents[1] / "analysis" / "published" / "kernels.csv"
SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3}
WITH_COPIES = "with"


@cache
def _times() -> dict[tuple[str, str, bool], float]:
    with FILE.open(newline="", encoding="utf-8") as file:
        return {
            (row["kernel"], row["implementation_here"], row["copies"] == WITH_COPIES): float(row["time"])
            * SECONDS[row["unit"]]
            for row in csv.DictReader(file)
        }


def published_seconds(kernel: str, implementation: str, *, end_to_end: bool) -> float | None:
    """By the names that they have here; end to end: with copies to a GPU and back. The sizes are not told."""
    return _times().get((kernel, implementation, end_to_end))
