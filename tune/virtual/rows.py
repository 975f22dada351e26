"""Rows that were computed before, kept in a file: a replay that was cut goes on where it was."""

import json
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

from tune.errors import UserError

Row = dict[str, Any]
ASKED = (
    *("table", "scheduler", "budget", "cap_seconds", "workers", "deadline", "seeds"),
    *("suggest", "memory_limit", "diverge", "start_up", "thaw"),
)
"""The part of a row that says what was asked for; the rest is what was found."""


class Rows:
    """Rows by what was asked for. With a path each one is appended there, a JSON object a line, once it is known."""

    def __init__(self, path: Path | None) -> None:
        """UserError: the file at `path` cannot be read or written, or holds something else."""
        self._path = path
        self._rows: dict[Hashable, Row] = {}
        if path is None:
            return
        try:
            path.touch()
            text = path.read_text(encoding="utf-8")
            whole = text[: text.rfind("\n") + 1]
            for line in whole.splitlines():
                row = json.loads(line)
                self._rows[_key(row)] = row
            if whole != text:
                path.write_text(whole, encoding="utf-8")
        except OSError as error:
            raise UserError(
                f"--rows: '{path}' cannot be used ({error.strerror}); name a file to keep rows in"
            ) from error
        except (ValueError, TypeError, KeyError) as error:
            raise UserError(f"--rows: '{path}' holds something else than rows; name another file") from error

    def find(self, asked: Mapping[str, Any]) -> Row | None:
        """The row that was kept for this, if any."""
        return self._rows.get(_key(asked))

    def keep(self, row: Row) -> None:
        """Keep a row, at once."""
        self._rows[_key(row)] = row
        if self._path:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


def _key(asked: Mapping[str, Any]) -> Hashable:
    return tuple(asked[name] for name in ASKED)
