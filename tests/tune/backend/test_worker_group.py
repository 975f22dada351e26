"""The life of a rank under Ray Train, in its local mode: in this process, or in two as torchrun would begin them."""

import dataclasses
import os
import random
import signal
import socket
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from model.config import Config
from model.data.dataset import TextData
from tests.forked import FORKING
from tests.model.conftest import prepared
from tests.tune.search.world import add_trial
from tune.backend import worker_group as distributed
from tune.backend.worker_group import STOP_TASK, LeaseOver, Message, RankSetup, Task, WorkerGroup
from tune.experiments import parallel_timing
from tune.experiments.scaling import work
from tune.store.accounting import Accounting, Hold, Ledger
from tune.store.heartbeat import machine_boot_id
from tune.store.journal import Journal

PATIENCE_SECONDS = 600.0
"""Within which a process that ends itself has done so, on any machine."""
CONFIG = Config(family="nanogpt", d_model=16, heads=4, layers=2, context=16, batch_tokens=128, dropout=0.0)
GRADIENTS, TRAINING = {"measure": "gradients"}, {"measure": "training", "steps": 6, "every": 2}


@pytest.fixture(scope="module")
def data() -> TextData:
    words = random.Random(0).choices(["the", "cat", "sat", "on", "a", "mat", "and", "saw", "another", "bird"], k=2000)
    text = " ".join(words)
    return prepared(text, text[:900])


@dataclasses.dataclass
class Tasks:
    """A line to nobody: one task after the other, and what is said is kept."""

    tasks: list[Task]
    said: list[Message | None] = dataclasses.field(default_factory=list)

    def task(self) -> Task:
        return self.tasks[0]

    def post(self, said: Message | None) -> None:
        self.said.append(said)
        if said is not None and said.row is not None:
            self.tasks.pop(0)


def served(asked: list[dict[str, Any]], data: TextData, folder: Path, **changes: Any) -> list[Message | None]:
    """What a rank says of these tasks; `changes` to the configuration."""
    line = Tasks([*(Task(asked=each, trial="t001", seconds=60.0, changes=changes) for each in asked), STOP_TASK])
    rank_of(RankSetup(work=work, mailbox=line, config=CONFIG, data=data, folder=folder))
    return line.said


def rank_of(setup: RankSetup) -> None:
    """The life of a rank, in this process."""
    from ray.train import ScalingConfig
    from ray.train.torch import TorchTrainer

    from tune.backend.worker_group import run_rank

    TorchTrainer(run_rank, train_loop_config=setup, scaling_config=ScalingConfig(num_workers=0)).fit()


def rows(said: list[Message | None]) -> list[dict[str, Any]]:
    return [each.row for each in said if each is not None and each.row is not None]


def as_rank(rank: int, count: int, port: int, line: Any, *arguments: Any) -> None:
    """A process as torchrun would begin it."""
    words = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in words.items()}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
    parallel_timing.TURN_SECONDS, parallel_timing.MOST_ROUNDS = 0.01, 5
    line.send(served(*arguments))


@pytest.fixture(scope="module")
def of_two(data: TextData, tmp_path_factory: pytest.TempPathFactory) -> list[list[Message | None]]:
    """What each of two ranks says: of the gradients, of training, and of a task that cannot be done."""
    folder = tmp_path_factory.mktemp("trial")
    asked = [GRADIENTS, TRAINING, {"measure": "steps", "rows": 1}]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    lines = []
    for rank in range(2):
        line, end = FORKING.Pipe()
        FORKING.Process(target=as_rank, args=(rank, 2, port, end, asked, data, folder), daemon=True).start()
        end.close()
        lines.append(line)
    return [line.recv() for line in lines]


@pytest.fixture(scope="module")
def alone(data: TextData, tmp_path_factory: pytest.TempPathFactory) -> list[Message | None]:
    """What the only rank says of training."""
    return served([TRAINING], data, tmp_path_factory.mktemp("alone"))


def test_the_first_rank_speaks_for_all(of_two):
    first, other = of_two
    assert other == [] and first[0] is None and len(rows(first)) == 3


def test_gradients_are_those_of_one_process_and_bit_equal(of_two):
    found = rows(of_two[0])[0]
    assert found["bit_equal"] and found["against_whole_batch"] < 1e-6
    assert {count for count, distance in found["accumulated"] if distance < 1e-6} == {2, 4, 8}


def test_two_devices_learn_what_one_learns(of_two, alone):
    (one,), two = rows(alone), rows(of_two[0])[1]
    assert two["valid_loss"] == pytest.approx(one["valid_loss"], abs=1e-4)
    assert (two["steps"], two["tokens"]) == (one["steps"], one["tokens"]) == (6, 6 * 128)


def test_a_task_that_cannot_be_is_a_row_with_its_reason(of_two):
    assert "16 are 1 rows, too few for 2 devices" in rows(of_two[0])[2]["skipped"]


def test_training_goes_on_from_its_checkpoint_and_ends_where_it_would_have_ended(alone, data, tmp_path):
    first = {"measure": "training", "steps": 4, "every": 2}
    (whole,) = rows(alone)
    _, rest = rows(served([first, TRAINING], data, tmp_path))
    assert rest["valid_loss"] == whole["valid_loss"] and rest["tokens"] == whole["tokens"]


def test_every_word_says_what_its_seconds_went_to(alone):
    assert [None if each is None else each.kind for each in alone] == [None, "start", *["steps"] * 3, "evaluation"]


def test_a_task_has_its_own_configuration_and_a_wrong_one_is_a_row_with_its_reason(alone, data, tmp_path):
    (plain,), (wider,) = rows(alone), rows(served([TRAINING], data, tmp_path / "wider", d_model=32))
    assert wider["parameters"] > plain["parameters"]
    (refused,) = rows(served([TRAINING], data, tmp_path, heads=5))
    assert "5 does not divide d_model 16" in refused["skipped"]


def rank_on_a_hold(folder: Path, hangs: bool) -> None:
    """A rank whose driver has no task for it: towards the end of its hold, or it hangs until that is over."""
    distributed.SHUTDOWN_SECONDS = seconds = 1.0 if hangs else PATIENCE_SECONDS
    line = SimpleNamespace(task=lambda: None, post=lambda said: threading.Event().wait() if hangs else None)
    ends = {"opened": 0.0, "boot": machine_boot_id(), "monotonic": time.monotonic() + seconds}
    rank_of(RankSetup(work=work, mailbox=line, config=CONFIG, data=None, folder=folder, ends=ends))
    os._exit(0)


def test_a_rank_ends_with_its_hold_whatever_becomes_of_its_driver(tmp_path: Path) -> None:
    """One that has nothing to do goes home in time; one that hangs is ended by the system."""
    ranks = [FORKING.Process(target=rank_on_a_hold, args=(tmp_path, hangs), daemon=True) for hangs in (False, True)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(PATIENCE_SECONDS)
    idle, hung = [rank.exitcode for rank in ranks]
    for rank in ranks:
        rank.kill()
    assert (idle, hung) == (0, -signal.SIGALRM)


def test_no_process_of_rays_is_waited_for_that_has_nothing_to_do_here() -> None:
    rays, ours = (
        {type(each).__name__ for each in trainer(distributed.run_rank)._create_default_callbacks()}
        for trainer in (distributed.TorchTrainer, distributed.Trainer)
    )
    assert rays - ours == {"DatasetsCallback", "PlacementGroupCleanerCallback"}


def test_processes_that_hang_at_their_end_are_waited_for_no_longer_than_their_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path, new=True)
    add_trial(journal, state="running")
    hung = threading.Event()
    trainer = SimpleNamespace(fit=lambda: hung.wait(PATIENCE_SECONDS))
    monkeypatch.setattr(distributed, "Trainer", lambda *_, **__: trainer)
    monkeypatch.setattr(distributed, "ray", SimpleNamespace(get=lambda done, timeout: done))
    monkeypatch.setattr(distributed, "SHUTDOWN_SECONDS", 0.2)
    accounting = Accounting(journal, Ledger(cap=900, clock=time.monotonic), time.monotonic)
    actor = SimpleNamespace(put_task=SimpleNamespace(remote=lambda task: None))
    setup: Any = SimpleNamespace(mailbox=SimpleNamespace(actor=actor))
    with pytest.raises(LeaseOver), Hold(accounting, "t001", "scaling", devices=1, seconds=0.4) as hold:
        WorkerGroup(1, setup, 0, hold).shut_down()
    hung.set()
    journal.close()


@pytest.mark.parametrize("hang", [False, True])
@pytest.mark.parametrize("asked", ["wait_until_ready", "do", "shut_down"])
def test_processes_whose_mailbox_died_are_gone_before_that_is_told_else_overdue(
    monkeypatch: pytest.MonkeyPatch, asked: str, hang: bool
) -> None:
    died, ended = threading.Event(), threading.Event()

    def fit() -> None:
        died.wait(PATIENCE_SECONDS)
        ended.set()

    def get(done: object, timeout: float = 0.0) -> None:
        if not hang:
            died.set()
        raise ray.exceptions.ActorDiedError

    fake = SimpleNamespace(get=get, wait=lambda waiting, timeout: (waiting, []), exceptions=ray.exceptions)
    monkeypatch.setattr(distributed, "Trainer", lambda *_, **__: SimpleNamespace(fit=fit))
    monkeypatch.setattr(distributed, "ray", fake)
    method = SimpleNamespace(remote=lambda *_: None)
    setup: Any = SimpleNamespace(mailbox=SimpleNamespace(actor=SimpleNamespace(put_task=method, next_message=method)))
    hold: Any = SimpleNamespace(seconds_left=0.0 if hang else 2 * PATIENCE_SECONDS)
    group = WorkerGroup(2, setup, 0, hold)
    told = pytest.raises(LeaseOver) if hang else pytest.raises(RuntimeError, match="mailbox")
    with nullcontext() if asked == "shut_down" and not hang else told:
        getattr(group, asked)(*([STOP_TASK] if asked == "do" else []))
    assert ended.is_set() != hang
    died.set()


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ('Traceback:\n  File "/x/mine.py", line 3, in a\n    b\nValueError: c\nd', "ValueError: c"),
        ("The actor died.\nIts node is gone.", "The actor died."),
    ],
)
def test_why_processes_died_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch, said: str, why: str) -> None:
    def fit() -> None:
        raise RuntimeError(f"Training failed due to worker errors:\n[Rank 0 Error Snippet]:\n{said}\n")

    monkeypatch.setattr(distributed, "Trainer", lambda *_, **__: SimpleNamespace(fit=fit))
    monkeypatch.setattr(distributed, "ray", SimpleNamespace(wait=lambda *_, **__: ([], [])))
    actor = SimpleNamespace(next_message=SimpleNamespace(remote=lambda: None))
    setup: Any = SimpleNamespace(mailbox=SimpleNamespace(actor=actor))
    hold: Any = SimpleNamespace(seconds_left=PATIENCE_SECONDS)
    with pytest.raises(RuntimeError, match=rf"^the 2 processes died: {why}[^\n]*$"):
        WorkerGroup(2, setup, 0, hold).wait_until_ready()
