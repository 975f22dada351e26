"""In place of a worker group under Ray: this process."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from tune.backend.worker_group import Message, RankSetup, Task, TaskContext
from tune.experiments import runner
from tune.experiments.base import Row
from tune.store.accounting import Hold


class ThisProcess:
    """A worker group that is this process; `hear` is told of each message before it is charged."""

    start_up_seconds = 0.1

    def __init__(self, devices: int, setup: RankSetup, gpus: int, hold: Hold) -> None:
        self.setup, self.hold = setup, hold

    def wait_until_ready(self) -> None:
        self.hold.charge("start")

    def hear(self, task: Task, message: Message) -> None: ...

    def do(self, task: Task) -> Row:
        context = TaskContext(
            config=replace(self.setup.config, **task.changes), data=self.setup.data, device=torch.device("cpu"),
            folder=self.setup.folder / task.trial, ends_at=time.monotonic() + task.seconds,
        )  # fmt: skip
        for message in self.setup.work(context, task.asked):
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
