"""A driver that is killed while its processes train, and one that goes on with its study: without Ray, the group of
processes being the driver itself.
"""

import os
import signal
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

from tests.forked import FORKING
from tests.soak.accounts import number
from tests.tune.experiments.test_runner import CAP, EVERY, POINTS, STEPS, rows, settings
from tune.backend.worker_group import RankSetup, Task, TaskContext
from tune.experiments import parallel_timing, runner
from tune.experiments.base import Row
from tune.experiments.scaling import SCALING
from tune.store.accounting import Hold


class Group:
    """It is killed, with its driver, at the first checkpoint of a training, where none was there before."""

    start_up_seconds = 0.1
    said: ClassVar[list[str]] = []

    def __init__(self, devices: int, setup: RankSetup, actor: Any, gpus: float, hold: Hold) -> None:
        self.setup, self.hold = setup, hold

    def wait_until_ready(self) -> None:
        self.hold.charge("start")

    def do(self, task: Task) -> Row:
        folder, ends = self.setup.folder / task.trial, time.monotonic() + task.seconds
        first, cpu = not folder.exists(), torch.device("cpu")
        place = TaskContext(config=self.setup.config, data=self.setup.data, device=cpu, folder=folder, ends_at=ends)
        for said in self.setup.work(place, task.asked):
            if first and said.kind == "steps" and task.asked["measure"] == "training":
                os.kill(os.getpid(), signal.SIGKILL)
            self.said.append(said.kind)
            self.hold.charge(said.kind)
        assert said.row is not None
        return said.row

    def shut_down(self) -> None: ...


def run(out: Path, **more: Any) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "start_mailbox", lambda: (None, None))
        patch.setattr(runner, "ray", SimpleNamespace(put=lambda data: data, shutdown=lambda: None))
        patch.setattr(runner, "WorkerGroup", Group)
        patch.setattr(runner, "local_ray", lambda *_: nullcontext())
        patch.setattr(parallel_timing, "TURN_SECONDS", 0.01)
        patch.setattr(parallel_timing, "MOST_ROUNDS", 5)
        alone = replace(SCALING, points=lambda *_: POINTS, tables=lambda rows: [])
        return runner.run_experiment(alone, settings(out, **more))


def test_what_was_measured_stays_what_was_held_is_charged_and_training_goes_on_from_its_checkpoint(
    tmp_path: Path,
) -> None:
    study = tmp_path / "study"
    first = FORKING.Process(target=run, args=(study,))
    first.start()
    first.join()
    assert first.exitcode == -signal.SIGKILL
    (steps,) = rows(study)
    assert run(study, resume=study) == 0
    again, trained = rows(study)
    assert again == steps and "skipped" not in steps and trained["steps"] == STEPS
    assert Group.said == ["start", *["steps"] * (STEPS // EVERY - 1), "evaluation"]
    assert number(study, "SELECT COUNT(*) FROM leases") == 2 * 2, "a lease for each device, of each driver"
    held = number(study, "SELECT SUM(closed - opened) FROM slots")
    assert number(study, "SELECT COUNT(*) FROM slots WHERE closed IS NULL") == 0
    assert number(study, "SELECT SUM(seconds) FROM charges") == pytest.approx(held, abs=0.1) and held <= CAP
