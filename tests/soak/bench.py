"""The bench of a soak: where its studies lie, its seeded chance, and the row of the table that each part fills."""

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.soak.observer import Observer


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table: what was looked at, what is asked, what was measured, and whether that is what is asked.

    details: the single measurements, for the JSON beside the table.
    """

    what: str
    asked: str
    measured: str
    kept: bool
    details: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What the parts of a soak share. short: the small form."""

    folder: Path
    chance: random.Random
    observer: Observer
    short: bool

    def study(self, name: str) -> Path:
        """Where a study of this soak lies, under a name of its own."""
        return self.folder / name
