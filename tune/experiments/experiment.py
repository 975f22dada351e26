"""What an experiment is: points that are measured one by one, and what their rows say together."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tune.devices import Devices
from tune.distributed import Work

Row = dict[str, Any]
"""JSON-able: what was `asked`, on how many `devices`, and what came of it; `skipped`: why nothing did."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One measurement. asked: what the work is told, JSON-able, and what tells it from the others.

    seconds: on each device, that it is worth; least: that it must have.
    """

    devices: int
    asked: dict[str, Any]
    seconds: float
    least: float

    def given(self, share: float) -> float:
        """Seconds on each device: the least with a share of 0, what it is worth with 1."""
        return self.least + share * (self.seconds - self.least)

    @property
    def key(self) -> str:
        """Tells it from the others."""
        return json.dumps([self.devices, self.asked], sort_keys=True)


@dataclass(frozen=True, kw_only=True)
class Table:
    """One of the tables that an experiment ends with."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


def nothing(rows: Sequence[Row]) -> list[Any]:
    """Where an experiment has none."""
    return []


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A controlled comparison under a cap.

    points: what is to be measured on these devices; work: how; it runs on all devices of a point alike; line: what a
    row says, in short; tables, conclusions: what the rows that there are say together.
    """

    name: str
    about: str
    points: Callable[[Devices], list[Point]]
    work: Work
    line: Callable[[Row], str]
    tables: Callable[[Sequence[Row]], list[Table]]
    conclusions: Callable[[Sequence[Row]], list[str]] = field(default=nothing)
