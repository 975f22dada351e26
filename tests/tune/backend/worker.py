"""The worker of a user's loop, without a Ray around it, and the leases that it is given."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.tune.backend.leases import place, told
from tune.backend import loop_trial
from tune.backend.loop_trial import LoopTrial
from tune.load import Loop
from tune.loop import output_of
from tune.reports import Metric, Report, from_row
from tune.store.heartbeat import cancel_exit_timer

LOSS = Metric(name="loss", tie=0.0)
HEAD = "import json, os, sys, time\nimport tune.loop as ration\n"
COUNTS = """
def train(config):
    step = 0
    if (saved := ration.checkpoint()) is not None:
        step = json.loads((saved / "state.json").read_text())
    while not ration.done():
        step += 1
        time.sleep(0.002)
        save = lambda folder: (folder / "state.json").write_text(json.dumps(step))
        ration.report(loss=1 / step, step=step, other=step, save=save)
"""


class Worker:
    """A worker, and the leases that it is given."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.lease, self.patch = folder / "study", 0, monkeypatch
        (self.folder / "heartbeats").mkdir(parents=True)
        self.code = folder / "code"
        self.code.mkdir()
        self.trial = LoopTrial.__new__(LoopTrial)
        monkeypatch.setattr("tune.backend.leased.HeartbeatThread", self.heart)
        self.place = place(self.folder)

    def heart(self, live: Callable[[], float]) -> Any:
        """One that beats when it is told to."""
        self.live = live
        return SimpleNamespace(start=lambda: None)

    def loop(self, source: str, function: str | None = "train", **more: Any) -> Loop:
        file = self.code / "mine.py"
        file.write_text(HEAD + ("" if function else "ration.config(width=1)\n") + source)
        return Loop(folder=self.code, file=file, function=function, metric=LOSS, **more)

    def lease_of(self, trial: str = "t001", seconds: float = 60.0, **goal: Any) -> dict[str, Any]:
        """What the driver says of a lease that begins now."""
        self.lease += 1
        return told(None, trial=trial, family="loop", config={"width": 4}, lease=self.lease, seconds=seconds, **goal)

    def begins(self, loop: str | Loop, function: str | None = "train", **lease: Any) -> Report:
        """With its first lease, of a loop or its source; the last report of that."""
        loop = self.loop(loop, function) if isinstance(loop, str) else loop
        self.trial.setup(self.lease_of(**lease), self.place, loop)
        return self.ends()

    def goes_on(self, *lease: str, **more: Any) -> Report:
        """With its next lease; the last report of that."""
        self.trial.reset_config(self.lease_of(*lease, **more))
        return self.ends()

    def ends(self) -> Report:
        """The last report of the lease."""
        while True:
            report = from_row(json.loads(self.trial.step()["report"]))
            if report.ended:
                return report

    def runs_out(self, seconds: float) -> Report:
        """The last report of a lease of so many seconds, half a second before the end of which it is by now."""
        later = SimpleNamespace(monotonic=lambda: time.monotonic() + seconds - 0.5)
        with self.patch.context() as patch:
            patch.setattr(loop_trial, "time", later)
            return self.ends()

    @property
    def output(self) -> str:
        return (self.folder / output_of("t001")).read_text()


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    made = Worker(tmp_path, monkeypatch)
    yield made
    made.trial.cleanup()
    cancel_exit_timer()
