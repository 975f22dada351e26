"""To whom the points of an experiment are put down: to trials of their own, or to one that a search found."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from model.config import Config
from tune.dimensions import DIMENSIONS
from tune.experiments.experiment import Point, Row
from tune.journal import Journal


@dataclass(frozen=True, kw_only=True)
class Account:
    """trial: whose the leases of a point are; charged: whose the charges, None: no trial's; folder: of checkpoints."""

    trial: str
    charged: str | None
    folder: str


class Trials(Protocol):
    """Of the points of an experiment."""

    def account(self, point: Point) -> Account:
        """To whom a point is put down."""

    def measured(self, point: Point, row: Row) -> None:
        """A point has its row."""

    def theirs(self, row: Row) -> bool:
        """Whether a row in the journal is of these trials."""


class OwnTrials:
    """Each configuration on its devices is a trial: the one that was begun, or a new one."""

    def __init__(self, journal: Journal, config: Config, clock: Callable[[], float]) -> None:
        self._journal, self._config, self._clock = journal, config, clock

    def account(self, point: Point) -> Account:
        """A trial that runs."""
        own = {name: getattr(self._config, name) for name in DIMENSIONS}
        config = json.dumps({**own, **point.config, "devices": point.devices})
        known = self._journal.rows("SELECT trial FROM trials WHERE config = ?", config)
        trial = str(known[0]["trial"]) if known else self._new(config)
        return Account(trial=trial, charged=trial, folder=trial)

    def measured(self, point: Point, row: Row) -> None:
        """The trial is over, as far as one knows."""
        known = {"parameters": row["parameters"]} if "parameters" in row else {}
        self._journal.update("trials", self.account(point).trial, {"state": "finished"} | known)

    def theirs(self, row: Row) -> bool:
        """All are."""
        return True

    def _new(self, config: str) -> str:
        trial = f"t{len(self._journal.rows('SELECT trial FROM trials')) + 1:03d}"
        row = {"trial": trial, "family": self._config.family, "config": config, "state": "running"}
        self._journal.insert("trials", row | {"created": self._clock()})
        return trial


@dataclass(frozen=True)
class FoundTrial:
    """One that a search found: it holds the leases, and is charged for what the search did with it only."""

    trial: str

    def account(self, point: Point) -> Account:
        """Checkpoints are kept apart from the trial's, and those of each number of devices from the others'."""
        return Account(trial=self.trial, charged=None, folder=f"{self.trial}-on-{point.devices}")

    def measured(self, point: Point, row: Row) -> None:
        """The search has settled what became of it."""

    def theirs(self, row: Row) -> bool:
        """Another may have been the best before."""
        return bool(row.get("trial") == self.trial)
