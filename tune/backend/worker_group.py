"""Worker groups: processes under Ray Train that work on one thing together, from the first task until they are
dismissed.

The driver puts a task in the mailbox; the first rank takes it from there, tells the others, and reports their progress.
If a process dies, Ray Train restarts all of them, and they take up the task that is still there."""

import asyncio
import math
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import ray
import ray.train
import torch
import torch.distributed as dist
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

from model.config import Config, Data
from model.families import Family, register_family
from model.training.ddp import ranks
from tune.errors import UserError, parse_traceback
from tune.store.accounting import Hold
from tune.store.heartbeat import GRACE_SECONDS, opened_monotonic, set_exit_timer

LOOK_SECONDS = 0.02
"""Seconds between two looks of the first rank at the mailbox, while it has nothing to do."""
PATIENCE_SECONDS = 1.0
"""Seconds between two checks of the driver whether the processes live."""
SHUTDOWN_SECONDS = 3.0
"""Seconds at the end of a lease, kept to end processes that are still at work."""
DEATHS = 2
"""How often the processes of one group are restarted at most."""


@dataclass(frozen=True, kw_only=True)
class TaskContext:
    """What a rank needs for a task, and until when. ends_at: by the monotonic clock; folder: of the trial, for
    checkpoints."""

    config: Config
    data: Data
    device: torch.device
    folder: Path
    ends_at: float

    def seconds_left(self) -> float:
        """Seconds until the task must be over."""
        return self.ends_at - time.monotonic()


@dataclass(frozen=True, kw_only=True)
class Task:
    """Task of a group. asked: JSON-able; changes: fields of the group's config that it replaces; trial: its name;
    seconds: in which it must be over."""

    asked: dict[str, Any]
    trial: str
    seconds: float
    changes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Message:
    """Message of a rank: what the seconds since the last one were spent on, and the row that ends a task."""

    kind: str
    row: dict[str, Any] | None = None


Work = Callable[[TaskContext, dict[str, Any]], Iterator[Message]]
"""Function that every rank runs alike; what it yields on the first one counts. UserError, raised on all ranks: the task
cannot be done."""


class TaskMailbox:
    """The task that is to be done, which stays until its row arrives, and the messages about it."""

    def __init__(self) -> None:
        self._task: Task | None = None
        self._said: asyncio.Queue[Message | None] = asyncio.Queue()

    async def put_task(self, task: Task) -> None:
        self._task = task

    async def task(self) -> Task | None:
        return self._task

    async def post(self, message: Message | None) -> None:
        """Add a message. None: the processes are up."""
        if message is not None and message.row is not None:
            self._task = None
        self._said.put_nowait(message)

    async def next_message(self) -> Message | None:
        """Wait for the next message, and return it."""
        return await self._said.get()


@dataclass(frozen=True)
class RemoteMailbox:
    """Access to the mailbox, which is an actor of Ray's."""

    actor: Any

    def task(self) -> Task | None:
        return ray.get(self.actor.task.remote())

    def post(self, message: Message | None) -> None:
        ray.get(self.actor.post.remote(message))


def start_mailbox() -> RemoteMailbox:
    """Return the access to a new mailbox."""
    return RemoteMailbox(ray.remote(num_cpus=0)(TaskMailbox).remote())


@dataclass(frozen=True, kw_only=True)
class RankSetup:
    """What each process of a group is told when it starts.

    data: a reference into the object store; folder: the study's, of checkpoints, in which each trial has its own;
    families: a user's; ends: the end of the hold, as Hold.moment has it, at which a process ends itself that was not
    dismissed; None: it has no hold.
    """

    work: Work
    mailbox: RemoteMailbox
    config: Config
    data: Any
    folder: Path
    families: Mapping[str, Family] = field(default_factory=dict)
    ends: Mapping[str, Any] | None = None


STOP_TASK = Task(asked={"dismissed": True}, trial="", seconds=0.0)


def run_rank(setup: RankSetup) -> None:
    """Run one rank: task after task, but no longer than its hold; after the grace the system ends it."""
    ends = math.inf if setup.ends is None else opened_monotonic(setup.folder.parent, **setup.ends)
    if setup.ends is not None:
        set_exit_timer(ends + GRACE_SECONDS - time.monotonic())
    for name, family in setup.families.items():
        register_family(name, family)
    torch.set_num_threads(1)
    data = ray.get(setup.data) if isinstance(setup.data, ray.ObjectRef) else setup.data
    device = ray.train.torch.get_device()
    first = ray.train.get_context().get_world_rank() == 0
    say = setup.mailbox.post if first else lambda said: None
    say(None)
    while (task := _next_task(setup.mailbox, first, ends)) != STOP_TASK:
        over = min(ends, time.monotonic() + task.seconds)
        try:
            config = replace(setup.config, **task.changes)
            place = TaskContext(config=config, data=data, device=device, folder=setup.folder / task.trial, ends_at=over)
            for message in setup.work(place, task.asked):
                say(message)
        except UserError as error:
            say(Message(kind="steps", row={"skipped": str(error)}))


def _next_task(mailbox: RemoteMailbox, first: bool, ends: float) -> Task:
    """Return the first rank's next task on all ranks; STOP_TASK towards the end of the hold, so that all end in
    time."""
    found: list[Any] = [None]
    while first and found[0] is None:
        found[0] = mailbox.task() if time.monotonic() < ends - SHUTDOWN_SECONDS else STOP_TASK
        if found[0] is None:
            time.sleep(LOOK_SECONDS)
    if ranks() > 1:
        dist.broadcast_object_list(found, src=0)
    return cast(Task, found[0])


class Trainer(TorchTrainer):
    """TorchTrainer without two actors of Ray's, whose end would be waited for on all devices of a group. One hands out
    Ray's own data sets, of which there are none. The other frees what a lost driver held, which here ends with this
    driver's own Ray: it asks a server that does not run (tune/backend/session.py) whether the driver lives, and takes
    12 s to end."""

    def _create_default_callbacks(self) -> list[Any]:
        needless = {"DatasetsCallback", "PlacementGroupCleanerCallback"}
        return [each for each in super()._create_default_callbacks() if type(each).__name__ not in needless]


def death_reason(error: BaseException) -> str:
    """Return in one line why processes died, from the error of Ray Train's: what one of them raised, else its first
    line that is no heading."""
    found, lines = parse_traceback(str(error)), map(str.strip, str(error).splitlines())
    return found[1] if found else next((line for line in lines if line[-1:] not in ("", ":")), type(error).__name__)


class LeaseOver(Exception):
    """The lease ends while the processes are still at work."""


@dataclass
class WorkerGroup:
    """Group of `count` processes on a hold of as many devices, which is charged for what they say.

    gpus: 0: they work on CPUs; else each has one to itself.
    start_up_seconds: until the processes were up. watch: is called every second while they work.
    """

    count: int
    setup: RankSetup
    gpus: int
    hold: Hold
    start_up_seconds: float = 0.0
    watch: Callable[[], None] = lambda: None
    _error: list[BaseException] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._fit, daemon=True, name="ray-train")
        self._thread.start()

    def wait_until_ready(self) -> None:
        """Wait until the processes can work. RuntimeError: they died too often, or the mailbox did. LeaseOver: the
        lease ends first."""
        assert self._next_message() is None, "nothing was asked for yet"
        self.hold.charge("start")
        self.start_up_seconds = time.monotonic() - self._began

    def do(self, task: Task) -> dict[str, Any]:
        """Let the group do a task; return the row that it ends with. RuntimeError, LeaseOver: as in
        `wait_until_ready`."""
        self._put_task(task)
        while (message := self._next_message()) is None or message.row is None:
            self.hold.charge("lost" if message is None else message.kind)
        self.hold.charge(message.kind)
        return message.row

    def shut_down(self) -> None:
        """Let the processes end. LeaseOver: they do not in time."""
        with suppress(RuntimeError):  # the mailbox died, and they with it
            self._put_task(STOP_TASK)
        self._wait_for_end()

    def _wait_for_end(self) -> None:
        self._thread.join(self._patience)
        if self._thread.is_alive():
            raise LeaseOver

    def _mailbox_died(self) -> RuntimeError:
        """Wait for the end of the processes, which cannot do without the mailbox either; return what to raise."""
        self._wait_for_end()
        return RuntimeError("the process of their mailbox died")

    @property
    def _patience(self) -> float:
        """Seconds for which a wait may last."""
        return max(0.0, self.hold.seconds_left - SHUTDOWN_SECONDS)

    def _put_task(self, task: Task) -> None:
        try:
            ray.get(self.setup.mailbox.actor.put_task.remote(task), timeout=self._patience)
        except ray.exceptions.GetTimeoutError:
            raise LeaseOver from None
        except ray.exceptions.RayActorError as error:
            raise self._mailbox_died() from error

    def _next_message(self) -> Message | None:
        waiting = self.setup.mailbox.actor.next_message.remote()
        while not ray.wait([waiting], timeout=min(PATIENCE_SECONDS, self._patience))[0]:
            if not self._thread.is_alive():
                why = death_reason(self._error[0]) if self._error else "no reason"
                raise RuntimeError(f"the {self.count} processes died: {why}")
            if not self._patience:
                raise LeaseOver
            self.watch()
        try:
            return ray.get(waiting)
        except ray.exceptions.RayActorError as error:
            raise self._mailbox_died() from error

    def _fit(self) -> None:
        needs = {"CPU": 1.0} | ({"GPU": 1.0} if self.gpus else {})
        with tempfile.TemporaryDirectory(prefix="ration-") as scratch:
            try:
                Trainer(
                    run_rank,
                    train_loop_config=self.setup,
                    scaling_config=ScalingConfig(
                        num_workers=self.count, use_gpu=bool(self.gpus), resources_per_worker=needs
                    ),
                    torch_config=TorchConfig(backend="nccl" if self.gpus else "gloo"),
                    run_config=RunConfig(
                        name="train", storage_path=scratch, failure_config=FailureConfig(max_failures=DEATHS)
                    ),
                ).fit()
            except (Exception, SystemExit) as error:  # the latter where Ray is shut down meanwhile
                self._error.append(error)
