"""The command behind run.py: the flags, the rows of each kernel as they come, and the exit code."""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence

from kernels.benchmark import Row, measure
from kernels.settings import Settings, UnaffordableError, parse
from kernels.table import show
from tune.errors import UserError


def asked(argv: Sequence[str]) -> Settings:
    """What the flags say. SystemExit with code 2, after one line, where they are wrong."""
    try:
        return parse(argv)
    except UserError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None


def in_process(settings: Settings) -> Iterator[list[Row]]:
    """The rows of each kernel, one after the other."""
    for name in settings.kernels:
        yield measure(name, settings.sizes, settings.implementations, settings.seed)


def report(settings: Settings, measured: Iterable[list[Row]]) -> int:
    """Print what was measured. 1 where an implementation is wrong, 2 where a study cannot begin, 130 after Ctrl-C."""
    kept: list[Row] = []
    try:
        for rows in measured:
            kept += rows
            if not settings.as_json:
                show(rows)
    except UnaffordableError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("ended by SIGINT", file=sys.stderr)
        return 130
    if settings.as_json:
        print(json.dumps(kept, indent=1))
    return int(any(row["correct"] == "FAIL" for row in kept))
