"""In place of a worker group under Ray: this process."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from model.config import Config
from tune.backend.worker_group import Message, RankSetup, Task, TaskContext
from tune.experiments import runner
from tune.experiments.base import Row
from tune.store.accounting import Hold


def place_of(config: Config, data: Any, folder: Path, seconds: float = 3600.0) -> TaskContext:
    """What a rank on a CPU is given of a task that must be over within so many seconds."""
    ends_at = time.monotonic() + seconds
    return TaskContext(config=config, data=data, device=torch.device("cpu"), folder=folder, ends_at=ends_at)


class ThisProcess:
    """A worker group that is this process; `hear` is told of each message before it is charged."""

    start_up_seconds = 0.1

    def __init__(self, devices: int, setup: RankSetup, gpus: int, hold: Hold) -> None:
        self.setup, self.hold = setup, hold

    def wait_until_ready(self) -> None:
        self.hold.charge("start")

    def hear(self, task: Task, message: Message) -> None: ...

    def do(self, task: Task) -> Row:
        config, folder = replace(self.setup.config, **task.changes), self.setup.folder / task.trial
        for message in self.setup.work(place_of(config, self.setup.data, folder, task.seconds), task.asked):
            self.hear(task, message)
            self.hold.charge(message.kind)
        assert message.row is not None
        return message.row

    def shut_down(self) -> None: ...


def without_ray(patch: pytest.MonkeyPatch, group: Callable[..., ThisProcess]) -> None:
    """Let experiments run with such a group, and no Ray."""
    patch.setattr(runner, "start_mailbox", lambda: None)
    patch.setattr(runner, "ray", SimpleNamespace(put=lambda data: data, shutdown=lambda: None))
    patch.setattr(runner, "WorkerGroup", group)
    patch.setattr(runner, "local_ray", lambda *_: nullcontext())
