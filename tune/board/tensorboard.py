"""TensorBoard's part of a search: it hears of each decision and each report, and writes them down."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model.bleu import Score
from tune.board import hparams
from tune.board.ledger_run import LedgerRun
from tune.board.trial_run import TrialRun
from tune.dimensions import Dimensions, label
from tune.journal import Journal
from tune.planner import Planner
from tune.settings import Settings
from tune.stopwatch import Stopwatch


class TensorBoard:
    """A run for each trial, and one for the ledger, in `folder`; a study that goes on goes on in the same runs.

    dimensions: of all its families; watch: what it took while the search ran.
    """

    def __init__(self, folder: Path, journal: Journal, settings: Settings, dimensions: Dimensions) -> None:
        self._folder, self._journal, self._dimensions, self.watch = folder, journal, dimensions, Stopwatch()
        self._ledger = LedgerRun(folder, journal, settings, dimensions)
        self._trials: dict[str, TrialRun] = {}

    def decided(self, planner: Planner, trial: str | None, action: str, reason: str) -> None:
        """A trial that starts has its row of HParams at once, so that no end can lose it."""
        with self.watch:
            if trial is not None:
                self._run(planner, trial).decided(action, reason, planner.books.clock())
            if trial is not None and action == "stop":
                self._ledger.ended(trial)
            self._ledger.write(planner)

    def reported(self, planner: Planner, trial: str, row: Mapping[str, Any]) -> None:
        """A row of the journal's table `reports`."""
        with self.watch:
            self._trials[trial].reported(row, planner.books.clock())
            self._ledger.reported(planner, trial, row)

    def close(self, planner: Planner) -> None:
        """The last pictures and the final ranking."""
        self._ledger.close(planner)

    def translated(self, planner: Planner, trial: str, score: Score) -> None:
        """How well a winner translates."""
        self._run(planner, trial).translated(score)

    def _run(self, planner: Planner, trial: str) -> TrialRun:
        """That of a trial; a new one begins with its row of HParams."""
        if trial not in self._trials:
            record = planner.trials[trial]
            begun = hparams.begun(self._dimensions, record.family, record.config)
            name = f"{record.family}/{trial} {label(record.config)}"
            self._trials[trial] = TrialRun(self._folder / name, self._journal, trial, begun)
        return self._trials[trial]
