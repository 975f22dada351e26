"""What the command prints: the rows of each kernel as they come, and the exit code."""

import json
from collections.abc import Iterable, Iterator

from kernels.benchmark import Row, measure
from kernels.settings import Settings
from kernels.table import show


def in_process(settings: Settings) -> Iterator[list[Row]]:
    """The rows of each kernel, one after the other."""
    for name in settings.kernels:
        yield measure(name, settings.sizes, settings.implementations, settings.seed)


def report(settings: Settings, measured: Iterable[list[Row]]) -> int:
    """Print what was measured. 1 where an implementation is wrong, else 0."""
    kept: list[Row] = []
    for rows in measured:
        kept += rows
        if not settings.json:
            show(rows)
    if settings.json:
        print(json.dumps(kept, indent=1))
    return int(any(row["correct"] == "FAIL" for row in kept))
