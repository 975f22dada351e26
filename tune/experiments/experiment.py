"""What an experiment is: points that are measured one by one, and what their rows say together."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tune.devices import Devices
from tune.distributed import Work
from tune.experiments.settings import ExperimentSettings

Row = dict[str, Any]
"""JSON-able: what was `asked`, on how many `devices`, and what came of it; `skipped`: why nothing did."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One measurement. asked: what the work is told, JSON-able; config: what of the study's configuration it changes.

    seconds: on each device, that it is worth; least: that it must have.
    """

    devices: int
    asked: dict[str, Any]
    seconds: float
    least: float
    config: Mapping[str, Any] = field(default_factory=dict)

    def given(self, share: float) -> float:
        """Seconds on each device: the least with a share of 0, what it is worth with 1."""
        return self.least + share * (self.seconds - self.least)

    @property
    def text(self) -> str:
        """What is asked for and of which configuration, in words."""
        return ", ".join(f"{name} {value}" for name, value in {**self.asked, **self.config}.items())

    @property
    def key(self) -> str:
        """Tells it from the others."""
        return json.dumps([self.devices, self.asked, *([self.config] if self.config else [])], sort_keys=True)


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

    points: what is to be measured on these devices, the most important first; work: how; it runs on all devices of a
    point alike; line: what a row says, in short; tables, conclusions: what the rows that there are say together;
    families: those it can be of, the one that it is of by default first; sets: dimensions of the space whose values are
    the points' own, so that --fix cannot hold them.
    """

    name: str
    about: str
    points: Callable[[Devices, ExperimentSettings], list[Point]]
    work: Work
    line: Callable[[Row], str]
    tables: Callable[[Sequence[Row]], list[Table]]
    conclusions: Callable[[Sequence[Row]], list[str]] = field(default=nothing)
    families: tuple[str, ...] = ("nanogpt", "translation")
    sets: tuple[str, ...] = ()
