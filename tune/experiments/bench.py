"""An experiment at work: the points without a row yet, each on a crew of processes, all of it inside the cap."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import ray

from model.config import Config, Data
from tune.books import Books
from tune.devices import Devices
from tune.dimensions import DIMENSIONS
from tune.distributed import Crew, Orders, Task, new_desk
from tune.experiments.board import Board
from tune.experiments.experiment import Experiment, Point, Row
from tune.experiments.grounds import END_SECONDS, START_SECONDS, affordable_points, affordable_share, crews
from tune.experiments.tables import show
from tune.holds import Hold, affordable

LATE_SECONDS = 60.0
"""Of a lease beyond what a crew should take, where the cap has them: on a busy machine processes start late."""
TOO_LATE = "the cap was spent before: give a larger --budget with --resume"


@dataclass(frozen=True, kw_only=True)
class Bench:
    """folder: the study's; write: takes a line for the user. A Ray is up."""

    experiment: Experiment
    points: Sequence[Point]
    config: Config
    data: Data
    devices: Devices
    books: Books
    folder: Path
    write: Callable[[str], None]

    @cached_property
    def board(self) -> Board:
        return Board(self.folder / "tensorboard" / self.experiment.name)

    def rows(self) -> list[Row]:
        """The last row of each point, in the order of the points."""
        query = "SELECT value FROM rows WHERE experiment = ? ORDER BY row"
        stored = self.books.journal.rows(query, self.experiment.name)
        found = {row["key"]: row for row in (json.loads(each["value"]) for each in stored)}
        return [found[point.key] for point in self.points if point.key in found]

    def measure(self) -> None:
        """Give each point its row."""
        done = {row["key"] for row in self.rows() if "skipped" not in row}
        left = [point for group in crews(self.points) for point in group if point.key not in done]
        data = ray.put(self.data)
        while count := affordable_points(left, self.books.ledger.left):
            share = affordable_share(left[:count], self.books.ledger.left)
            left = left[self._measured(crews(left[:count])[0], share, data):]
        for point in left:
            self._keep(point, {"skipped": TOO_LATE})

    def conclude(self) -> None:
        """Tell what the rows say together."""
        rows = self.rows()
        tables, conclusions = self.experiment.tables(rows), self.experiment.conclusions(rows)
        show(tables, conclusions, self.write)
        self.board.concluded(tables, conclusions)

    def _measured(self, group: Sequence[Point], share: float, data: Any) -> int:
        """How many of the first points of a group have a row now."""
        devices, done = group[0].devices, 0
        seconds = START_SECONDS + END_SECONDS + sum(point.given(share) for point in group) + LATE_SECONDS
        seconds = min(seconds, affordable(self.books, devices))
        first = self._trial(group[0])
        with Hold(self.books, first, self.experiment.name, devices=devices, seconds=seconds) as hold:
            try:
                with self._crew(devices, hold, data) as crew:
                    crew.come_up()
                    while done < len(group):
                        seconds = min(group[done].given(share), hold.left - END_SECONDS)
                        self._ask(crew, group[done], seconds)
                        done += 1
            except RuntimeError as error:
                hold.charge("lost")
                self._keep(group[done], {"skipped": str(error)})
                done += 1
        return done

    def _ask(self, crew: Crew, point: Point, seconds: float) -> None:
        if seconds < point.least:
            self._keep(point, {"skipped": TOO_LATE})
            return
        crew.hold.trial = trial = self._trial(point)
        row = crew.do(Task(asked=point.asked, changes=point.config, trial=trial, seconds=seconds))
        self._keep(point, row | {"start_up_seconds": crew.start_up_seconds})
        if "parameters" in row:
            self.books.journal.update("trials", trial, {"parameters": row["parameters"]})

    @contextmanager
    def _crew(self, devices: int, hold: Hold, data: Any) -> Iterator[Crew]:
        """Processes on a hold, gone before it ends: dismissed, or with their Ray where they do not listen."""
        desk, line = new_desk()
        folder = self.folder / "checkpoints"
        orders = Orders(work=self.experiment.work, line=line, config=self.config, data=data, folder=folder)
        crew = Crew(devices, orders, desk, self.devices.gpus, hold)
        try:
            yield crew
            crew.dismiss()
        except RuntimeError:
            raise
        except BaseException:
            ray.shutdown()
            raise

    def _trial(self, point: Point) -> str:
        """A point's configuration on its devices as a trial: the one that was begun, or a new one."""
        journal = self.books.journal
        own = {name: getattr(self.config, name) for name in DIMENSIONS}
        config = json.dumps({**own, **point.config, "devices": point.devices})
        known = journal.rows("SELECT trial FROM trials WHERE config = ?", config)
        if known:
            return str(known[0]["trial"])
        trial = f"t{len(journal.rows('SELECT trial FROM trials')) + 1:03d}"
        row = {"trial": trial, "family": self.config.family, "config": config, "state": "running"}
        journal.insert("trials", row | {"created": self.books.clock()})
        return trial

    def _keep(self, point: Point, row: Row) -> None:
        whole = {"key": point.key, "devices": point.devices, "asked": point.asked, "config": dict(point.config)} | row
        value = {"at": self.books.clock(), "experiment": self.experiment.name, "value": json.dumps(whole)}
        self.books.journal.insert("rows", value)
        self.board.measured(whole)
        told = f"skipped: {row['skipped']}" if "skipped" in row else self.experiment.line(whole)
        self.write(f"{point.devices} x {point.text}: {told}")
        self.books.journal.update("trials", self._trial(point), {"state": "finished"})
