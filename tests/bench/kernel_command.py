"""The command behind `python tests/bench/kernels.py`: figures of one process, and of a Ray task against it."""

import argparse
from pathlib import Path

from tests.bench.kernel_figures import figures, inside_ray
from tests.bench.table import keep, show


def main(arguments: list[str]) -> int:
    """Measure, print a table of each part, and keep the rows in a file. 1 where a floor was not reached."""
    parser = argparse.ArgumentParser(prog="python tests/bench/kernels.py", description=__doc__)
    parser.add_argument("--short", action="store_true", help="arrays in the caches only, to see that it works")
    parser.add_argument("--json", type=Path, help="keep the rows here too")
    flags = parser.parse_args(arguments)
    missed = False
    for measure in (figures(short=flags.short), inside_ray(short=flags.short)):
        rows = list(measure)
        show(rows)
        missed = missed or any(row.reached is False for row in rows)
        if flags.json:
            keep(rows, flags.json)
    return int(missed)
