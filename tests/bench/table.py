"""The table that a benchmark leaves: what was measured, against what, what was asked, what came out."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, kw_only=True)
class Row:
    """One figure."""

    what: str
    against: str
    asked: str
    measured: str
    reached: bool | None = None
    """None: nothing was asked."""


def not_native(what: str, asked: str) -> Row:
    """Of a contender that this processor cannot time, since it lacks the instructions."""
    return Row(what=what, against="", asked=asked, measured="its precision is not native to this processor")


def show(rows: Iterable[Row]) -> None:
    """Print them; a row that falls short says so."""
    table = Table(box=None, header_style="dim", pad_edge=False)
    for name in ("what", "against", "asked", "measured", ""):
        table.add_column(name, overflow="fold")
    for row in rows:
        mark = "" if row.reached is None else "reached" if row.reached else "short"
        table.add_row(row.what, row.against, row.asked, row.measured, mark)
    Console(width=180, highlight=False).print(table)


def keep(row: Row, file: Path) -> None:
    """Write it as JSON, beside the others that the file has."""
    kept = json.loads(file.read_text()) if file.exists() else []
    others = [each for each in kept if (each["what"], each["against"]) != (row.what, row.against)]
    file.write_text(json.dumps([*others, asdict(row)], indent=1, ensure_ascii=False))
