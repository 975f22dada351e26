"""Open studies by their journals, also of one that runs or was killed."""

import json
import math
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from tune.errors import UserError, called
from tune.journal import FILE, connect

RUNS = Path("runs")
KERNELS = "kernels"
"""The fact that a study of kernels has: their names."""
CONTROL = r"[\x00-\x1f\x7f-\x9f]|\\u00(?:[01][0-9a-fA-F]|7[fF]|[89][0-9a-fA-F])"
"""Characters that steer a terminal, and how JSON writes them: a stranger's names are shown without."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """One study's folder and what its journal says about it as a whole (the table `study`).

    until: measurements are taken up to this moment of the study's clock.
    """

    folder: Path
    name: str
    facts: dict[str, Any]
    until: float = math.inf

    def read(self, sql: str, *values: str | float) -> pd.DataFrame:
        return read(self.folder, sql, *values)

    def has(self, table: str, column: str) -> bool:
        """Whether the journal's version writes that."""
        return not self.read("SELECT 1 FROM pragma_table_info(?) WHERE name = ?", table, column).empty

    def corpus(self, family: str) -> dict[str, Any]:
        """name, sha256, builtin, vocabulary of the family's text, as far as they were written"""
        return self.facts.get("corpora", {}).get(family, {})

    @property
    def device(self) -> str:
        """What its device-seconds are seconds of."""
        return str(self.facts.get("devices", {}).get("name", ""))

    def rung_seconds(self, family: str, rung: int) -> float:
        """Seconds of training at that rung; NaN where the journal has none."""
        ladder = self.facts.get("rung_seconds", {}).get(family, [])
        return float(ladder[rung]) if rung < len(ladder) else float("nan")


def read(folder: Path, sql: str, *values: str | float) -> pd.DataFrame:
    """The rows of a query; `values` are its question marks. UserError when the journal cannot be read."""
    connection = connect(folder)
    connection.row_factory = None
    try:
        table = pd.read_sql_query(sql, connection, params=values)
        return table.replace(CONTROL, "?", regex=True)
    except (pd.errors.DatabaseError, sqlite3.Error) as error:
        reason = str(error).splitlines()[-1]
        raise UserError(f"study: {str(folder)!r}: its journal.db cannot be read: {reason}") from error
    finally:
        connection.close()


def open_study(folder: Path) -> Study:
    """UserError for a folder without a journal, a damaged one, or a study in which no trial was started."""
    study = _opened(folder)
    if study.read("SELECT COUNT(*) AS trials FROM trials")["trials"].item() == 0:
        raise UserError(f"study: {str(folder)!r} has no trial yet; wait for its first, or name another study")
    return study


def open_kernels(folder: Path) -> Study:
    """A study of kernels. UserError for a folder without a journal, a damaged one, or another study."""
    study = _opened(folder)
    if KERNELS not in study.facts:
        raise UserError(f"study: {str(folder)!r} is none of kernels; make one: {called('kernels/run.py')} --budget 10m")
    return study


def _opened(folder: Path) -> Study:
    facts = read(folder, "SELECT key, value FROM study")
    values = {key: json.loads(value) for key, value in facts.itertuples(index=False)}
    return Study(folder=folder, name=folder.resolve().name, facts=values)


def newest(runs: Path, *, kernels: bool = False) -> Path:
    """The study in `runs` whose journal was written last, of trials or of kernels. UserError when there is none."""
    folders = [path.parent for path in runs.glob(f"*/{FILE}") if _of_kernels(path.parent) == kernels]
    if not folders:
        command = f"{called('kernels/run.py')} --budget 10m" if kernels else f"{called('tune/run.py')} --budget 4m"
        raise UserError(f"study: no study in {str(runs)!r}; name its folder, or make one: {command}")
    return max(folders, key=lambda folder: max(path.stat().st_mtime for path in folder.glob(f"{FILE}*")))


def _of_kernels(folder: Path) -> bool:
    """False of a damaged one too, so that who asks for the newest hears of it."""
    try:
        return KERNELS in _opened(folder).facts
    except UserError:
        return False


def open_studies(folders: Sequence[Path]) -> list[Study]:
    """Those named, or the newest in runs/. UserError when two have one name."""
    studies = [open_study(folder) for folder in folders or [newest(RUNS)]]
    names = [study.name for study in studies]
    if len(set(names)) < len(names):
        raise UserError(
            f"study: {', '.join(names)}: each name may stand once; rename a folder, or name each study once"
        )
    return studies
