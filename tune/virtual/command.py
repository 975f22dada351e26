"""The command: flags in, rows out, as JSON or for reading; exit code 2 and one line where something is wrong."""

import json
import sys
from collections.abc import Sequence

from tune.virtual.cells import replay
from tune.virtual.report import report
from tune.virtual.settings import parse


def main(argv: Sequence[str] | None = None) -> int:
    """Replay as the flags say and print what came out; exit code 2 and one line where they are wrong."""
    try:
        settings = parse(sys.argv[1:] if argv is None else argv)
        rows = replay(settings)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if settings.json:
        print(json.dumps(rows, indent=1))
    else:
        print(report(rows))
    return 0
