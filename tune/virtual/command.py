"""The command: flags in, rows out, as JSON or for reading; exit code 2 and one line where something is wrong."""

import json
import sys
from collections.abc import Sequence

from tune.errors import UserError
from tune.virtual.cells import replay
from tune.virtual.report import report
from tune.virtual.settings import parse
from tune.virtual.tables import load

CUT_SHORT = (
    "warning: {table.name}: {table.cut_short} of {curves} trials were paused or ended early, and end so in the replay: "
    "what more training would have made of them is not known, and regrets say little of which scheduler is better"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Replay as the flags say and print what came out; exit code 2 and one line where they are wrong."""
    try:
        settings = parse(sys.argv[1:] if argv is None else argv)
        tables = [table for path in settings.tables for table in load(path)]
        for table in tables:
            if table.cut_short:
                print(CUT_SHORT.format(table=table, curves=len(table.curves)), file=sys.stderr)
        rows = replay(tables, settings)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    if settings.json:
        print(json.dumps(rows, indent=1))
    else:
        print(report(rows))
    return 0
