"""Tables in files: JSON lines, one configuration each, and studies' journals."""

import json
import math
from pathlib import Path

from tune.errors import UserError
from tune.virtual.curves import Curve, Table
from tune.virtual.journals import from_journal

KEYS = ("config", "parameters", "seconds_per_report", "valid_loss")


def load(path: Path) -> list[Table]:
    """The tables in a file: one of a JSON-lines file, one a family of a journal. UserError where it is neither."""
    try:
        with path.open("rb") as file:
            journal = file.read(16) == b"SQLite format 3\0"
        tables = from_journal(path) if journal else [from_lines(path)]
    except OSError as error:
        raise UserError(
            f"table: '{path}' cannot be read ({error.strerror}); name a .jsonl table or a study's journal.db"
        ) from error
    except UnicodeDecodeError as error:
        raise UserError(f"table: '{path}' is not UTF-8 text; name a .jsonl table or a study's journal.db") from error
    for table in tables:
        if not table.curves or not math.isfinite(table.best_loss):
            raise UserError(f"table: '{path}' has no curve with a finite loss; replay needs at least one")
    return tables


def from_lines(path: Path) -> Table:
    """One JSON object a line, each a configuration."""
    curves = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.strip():
            curves.append(_curve(line, f"table: '{path}' line {number}"))
    if not curves:
        raise UserError(f"table: '{path}' is empty; one JSON object a line is needed, with {', '.join(KEYS)}")
    return Table(name=path.stem, curves=tuple(curves))


def _curve(line: str, where: str) -> Curve:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(
            f"{where} is not JSON ({error.msg}); write one object a line with {', '.join(KEYS)}"
        ) from error
    missing = [key for key in KEYS if not isinstance(row, dict) or key not in row]
    if missing:
        raise UserError(f"{where} has no {missing[0]}; each line needs {', '.join(KEYS)}")
    try:
        losses = tuple(math.nan if loss is None else float(loss) for loss in row["valid_loss"])
        seconds, parameters, steps = (
            float(row["seconds_per_report"]),
            int(row["parameters"]),
            float(row.get("steps_per_report", 1.0)),
        )
        memory = None if row.get("memory_mb") is None else float(row["memory_mb"]) * 1e6
    except (TypeError, ValueError) as error:
        raise UserError(f"{where} holds something that is not a number ({error})") from error
    if not losses or not 0 < seconds < math.inf or not isinstance(row["config"], dict):
        raise UserError(f"{where} needs a config object, at least one loss and seconds_per_report above 0")
    return Curve(
        config=row["config"],
        parameters=parameters,
        seconds_per_report=seconds,
        losses=losses,
        steps_per_report=steps,
        memory_bytes=memory,
    )
