"""What the command prints: the rows of each kernel as they come, and the exit code."""

import json
from collections.abc import Iterable, Iterator

from kernels.benchmark import Row, measure
from kernels.settings import Settings
from kernels.table import of_the_report, show, tables
from tune.published import against_itself
from tune.table_text import NOTHING, Table


def in_process(settings: Settings) -> Iterator[list[Row]]:
    """The rows of each kernel, one after the other."""
    for name in settings.kernels:
        yield measure(name, settings.sizes, settings.implementations, settings.seed)


def report(settings: Settings, measured: Iterable[list[Row]]) -> int:
    """Print what was measured. 1 where an implementation is wrong, else 0."""
    kept: list[Row] = []
    made: list[Table] = []
    for rows in measured:
        kept += rows
        made += tables(rows)
        if not (settings.json or settings.form):
            for table in tables(rows):
                show(table)
    compared = any(of_the_report(row) != NOTHING for row in kept)
    found = against_itself("kernels") if compared else []
    if settings.json:
        print(json.dumps(kept, indent=1))
    elif settings.form:
        print(settings.written([*made, *found]))
    else:
        for table in found:
            show(table)
    return int(any(row["correct"] == "FAIL" for row in kept))
