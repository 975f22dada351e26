"""The driver sleeps: what works for it ends itself, and nothing is charged or spent beyond that, however long it is."""

import ctypes
import heapq
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from tests.forked import FORKING
from tests.model.conftest import prepared
from tests.tune.backend.leases import place, told
from tests.tune.search.world import World
from tune.backend import leased
from tune.backend import trainable as trial
from tune.backend.trainable import TrainingTrial
from tune.reports import Report
from tune.store import heartbeat
from tune.store.accounting import Assignment
from tune.store.heartbeat import (
    DRIVER,
    GRACE_SECONDS,
    HEARTBEAT_FOLDER,
    IDLE,
    WORKING,
    DriverHeartbeat,
    HeartbeatThread,
    Process,
    process_start_ticks,
    read_heartbeat,
    run_driver_heartbeat,
    set_exit_timer,
    write_heartbeat,
)

PATIENCE_SECONDS = 600.0
"""Within which a process that ends itself has done so, on any machine."""


class Sleepy:
    """A world whose driver is stopped at random. Its workers know their leases, and hear whether the driver lives.

    gone: when the worker of a slot ended itself.
    """

    def __init__(self, world: World, chance: random.Random, *, busy: bool = False) -> None:
        self.world, self.chance, self.busy = world, chance, busy
        (world.journal.folder / HEARTBEAT_FOLDER).mkdir()
        self.pulse = DriverHeartbeat(world.journal.folder, world.clock, world.accounting.ledger.can_wait)
        world.engine.silence = self.pulse.silence
        self.gone: dict[int, float] = {}
        self.slept = 0

    def run(self, share: float) -> None:
        """Until all is over; the driver sleeps before that share of the events, and once at least."""
        while True:
            self.pulse.beat()
            self.decide()
            if self.world.engine.is_done:
                return
            if not self.slept or self.chance.random() < share:
                self.sleep(self.chance.choice((0.3, 3.0, 12.0, 600.0)), busy=self.busy)
            elif self.world.events:
                end, _, assignment = heapq.heappop(self.world.events)
                while self.world.now < end:
                    self.world.now = min(end, self.world.now + GRACE_SECONDS / 2)
                    self.pulse.beat()
                self.world.end(assignment)

    def decide(self) -> None:
        """What a free slot does next, as often as there is one."""
        world = self.world
        while (assignment := world.engine.next_assignment()) is not None:
            world.live(assignment)
            heapq.heappush(world.events, (world.now + world.length(assignment), assignment.lease, assignment))
        assert world.accounting.ledger.spent <= world.accounting.ledger.cap

    def sleep(self, seconds: float, *, busy: bool) -> None:
        """Stopped anywhere, and woken: what its workers did and said meanwhile is heard in any order.

        busy: it is not stopped, as with a callback that waits for a server: its signs of life go on.
        """
        world, since = self.world, self.world.now
        awake, late = since + seconds, list[tuple[Assignment, float | None]]()
        self.slept += seconds > GRACE_SECONDS
        while busy and world.now < awake:
            world.now += GRACE_SECONDS / 2
            self.pulse.beat()
        if busy and (sign := read_heartbeat(world.journal.folder, DRIVER)) is not None:
            since, awake = sign.at, world.now
        busy = {to.slot for _, _, to in world.events}
        idle = [row["slot"] for row in world.journal.rows("SELECT slot FROM slots WHERE closed IS NULL")]
        if awake - since > GRACE_SECONDS:
            self.gone |= {slot: since + GRACE_SECONDS for slot in idle if slot not in busy}
        for event in sorted(world.events):
            end, _, to = event
            waits = self.chance.random() < 0.5  # for the word to go on, in the middle of its lease
            over = to.opened + to.seconds + GRACE_SECONDS / 2 if waits else max(end, since) + GRACE_SECONDS
            if over < awake and (waits or end <= awake):
                self.gone[to.slot] = world.now = over
                world.live(to, ended=IDLE)
            if over < awake if waits else end <= awake:
                world.events.remove(event)
                late.append((to, None if waits else end))
        heapq.heapify(world.events)
        world.now = awake
        if self.chance.random() < 0.5:
            world.engine.note_alive()
            world.engine.overdue()
        self.decide()
        self.chance.shuffle(late)
        for to, ended_at in late:
            if ended_at is None:
                world.engine.on_death(to.trial, "error: ActorDiedError")
            else:
                world.end(to, ended_at)
            assert world.accounting.ledger.spent <= world.accounting.ledger.cap


@pytest.mark.parametrize("busy", [False, True], ids=["sleeps", "busy"])
@pytest.mark.parametrize("cap, slots, seed", [(60, 1, 0), (240, 2, 3), (600, 4, 2)])
def test_however_long_and_often_the_driver_sleeps_or_is_busy_the_cap_holds(
    tmp_path: Path, cap: float, slots: int, seed: int, busy: bool
) -> None:
    """And each slot is charged for as long as a worker was there, and no trial is blamed."""
    world = World(tmp_path, cap=cap, slots=slots, seed=seed)
    sleepy = Sleepy(world, random.Random(seed), busy=busy)
    sleepy.run(0.3)
    assert 0.85 * cap <= world.accounting.ledger.spent <= cap
    closed = {row["slot"]: row["closed"] for row in world.journal.rows("SELECT slot, closed FROM slots")}
    assert {slot: closed[slot] for slot in sleepy.gone} == pytest.approx(sleepy.gone)
    held = world.total("SELECT TOTAL(closed - opened) FROM slots")
    assert world.total("SELECT TOTAL(seconds) FROM charges") == pytest.approx(held) == world.accounting.ledger.spent
    assert world.total("SELECT COUNT(*) FROM decisions WHERE action = 'died'") == 0
    assert world.total("SELECT COUNT(*) FROM charges WHERE seconds < -1e-6") == 0
    assert world.total("SELECT COUNT(*) FROM trials WHERE state = 'failed'") == 0


def test_a_trial_that_hung_while_the_driver_slept_has_hung(tmp_path: Path) -> None:
    world = World(tmp_path, cap=600, slots=1)
    assignment = world.engine.next_assignment()
    assert assignment is not None
    world.now += assignment.seconds + GRACE_SECONDS / 2
    world.live(assignment, ended=WORKING)
    gone, world.now = world.now, world.now + 600
    world.engine.on_death(assignment.trial, "error: ActorDiedError")
    assert world.accounting.ledger.spent == pytest.approx(gone)
    assert world.engine.trials[assignment.trial].deaths == 1
    (row,) = world.journal.rows("SELECT reason FROM decisions WHERE action = 'pause'")
    assert row["reason"].startswith("error: hung")


def test_a_worker_that_was_gone_before_its_lease_began_is_not_put_down_to_the_trial(tmp_path: Path) -> None:
    """The driver's disk was slow, not the driver: it took an idle worker for one that was still there."""
    world = World(tmp_path, cap=600, slots=1)
    first = world.engine.next_assignment()
    assert first is not None
    world.live(first)
    world.now += world.length(first)
    world.end(first)
    second = world.engine.next_assignment()
    assert second is not None and second.slot == first.slot
    world.now += 2
    world.engine.on_death(second.trial, "error: ActorDiedError")
    assert world.engine.trials[second.trial].deaths == 0
    assert world.total("SELECT TOTAL(charged) FROM leases WHERE lease = 2") == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("slept", [3.0, 600.0])
@pytest.mark.parametrize("asked", [True, False])
def test_a_lease_of_which_its_worker_was_never_told_is_charged_for_as_long_as_that_waited(
    tmp_path: Path, asked: bool, slept: float
) -> None:
    """As where a callback that hears of it is slow; whether the silence is heard of before its death or with it."""
    world = World(tmp_path, cap=600, slots=1)
    sleepy = Sleepy(world, random.Random(0))
    first = world.engine.next_assignment()
    assert first is not None
    world.live(first)
    world.now += world.length(first)
    sleepy.pulse.beat()
    world.end(first)
    second = world.engine.next_assignment()
    assert second is not None and second.slot == first.slot
    since, world.now = world.now, world.now + slept
    if asked:
        world.engine.next_assignment()
    world.engine.on_death(second.trial, "error: ActorDiedError")
    (slot,) = world.journal.rows("SELECT closed FROM slots WHERE slot = ?", second.slot)
    assert slot["closed"] == pytest.approx(since + GRACE_SECONDS) and not world.engine.trials[second.trial].deaths


def test_a_worker_that_hears_of_its_lease_after_its_driver_was_silent_is_charged_for_it(tmp_path: Path) -> None:
    """As on another machine, where it waits for longer than here: so much stays reserved, and its slot stays open."""
    world = World(tmp_path, cap=600, slots=1)
    sleepy = Sleepy(world, random.Random(0))
    first = world.taken()
    world.live(first)
    world.now += world.length(first)
    sleepy.pulse.beat()
    world.end(first)
    second, left = world.taken(), world.accounting.ledger.left
    world.now += 1
    assert world.engine.next_assignment() is None
    world.live(second)
    assert second.slot == first.slot and world.accounting.ledger.left == pytest.approx(left)
    opened, world.now = second.opened, world.now + world.length(second)
    sleepy.pulse.beat()
    world.end(second)
    assert world.total("SELECT charged FROM leases WHERE lease = 2") == pytest.approx(world.now - opened)
    assert world.accounting.idle_slots == 1 and not world.engine.trials[second.trial].deaths


@pytest.mark.parametrize(("asked", "reported"), [(True, False), (True, True), (False, False)])
def test_of_a_worker_that_ended_without_a_word_while_the_driver_slept_its_lease_and_grace_are_charged(
    tmp_path: Path, asked: bool, reported: bool
) -> None:
    """As one that the system ended, maybe after its last report; whether the silence is heard of before, or never."""
    world = World(tmp_path, cap=600, slots=1)
    pulse = DriverHeartbeat(world.journal.folder, world.clock)
    (tmp_path / HEARTBEAT_FOLDER).mkdir()
    lease = world.taken()
    world.live(lease)
    pulse.beat()
    world.now += 1e4
    if asked:
        world.engine.silence = pulse.silence
    if reported:
        world.end(lease, lease.opened + 5)
    else:
        world.engine.on_death(lease.trial, "error: ActorDiedError")
    assert world.spent == pytest.approx(lease.seconds + GRACE_SECONDS)
    assert world.total("SELECT TOTAL(seconds) FROM charges") == pytest.approx(world.spent)


def test_the_last_sign_of_life_on_an_earlier_lease_says_nothing_of_how_the_next_one_ended(tmp_path: Path) -> None:
    world = World(tmp_path, cap=600, slots=1, shares={"nanogpt": 1.0})
    first = world.taken()
    world.now += 5
    world.live(first, ended=IDLE)
    world.engine.on_death(first.trial, "error: ActorDiedError")
    again = world.taken()
    assert again.trial == first.trial
    world.now += 9
    world.engine.on_death(again.trial, "error: ActorDiedError")
    charged = [row["charged"] for row in world.rows("SELECT charged FROM leases ORDER BY lease")]
    assert charged == pytest.approx([5, 9]) and world.engine.trials[first.trial].deaths == 1


@pytest.mark.parametrize("slept", [GRACE_SECONDS * 0.75, 600.0])
def test_a_worker_waits_for_its_driver_for_the_grace_from_when_it_became_idle(tmp_path: Path, slept: float) -> None:
    """Where that was after the driver's last sign of life; one that is ended before is charged no longer than it was
    held."""
    world = World(tmp_path, cap=600, slots=1)
    lease = world.taken()
    world.now += world.length(lease)
    world.engine.silence = DriverHeartbeat(tmp_path, world.clock).silence
    world.now += GRACE_SECONDS / 2
    world.end(lease)
    idle, world.now = world.now, world.now + slept
    world.engine.next_assignment()
    closed = world.total("SELECT closed FROM slots WHERE slot = 0")
    assert closed == pytest.approx(idle + min(slept, GRACE_SECONDS))


def test_what_a_trial_reported_is_charged_where_no_sign_of_life_tells_of_its_lease(tmp_path: Path) -> None:
    """As of a worker whose disk is full."""
    world = World(tmp_path, cap=600, slots=1)
    first = world.taken()
    world.now += world.length(first)
    world.end(first)
    second = world.taken()
    world.now += 5
    world.engine.on_report(second.trial, Report(steps=5, tokens=5, training_seconds=0.5, seconds={"steps": 4.0}))
    world.engine.on_death(second.trial, "error: ActorDiedError")
    assert world.total("SELECT charged FROM leases WHERE lease = 2") == pytest.approx(4)
    assert world.total("SELECT MIN(seconds) FROM charges") >= 0


# The same with real processes


def drive(folder: Path, line: Connection) -> None:
    """A driver, of which this test needs no more than its signs of life."""
    with run_driver_heartbeat(folder, time.monotonic):
        line.send(Process.this_process())
        signal.pause()


def work(folder: Path, driver: Process, fault: str | None, line: Connection) -> None:
    """A worker that serves a lease, or hangs on it, and then waits for its driver."""
    text = "the cat sat on a mat and saw another bird " * 200
    data = prepared(text, text)
    where = place(folder, recipes={"nanogpt": dict}, evaluation_tokens={"nanogpt": 256}, driver=driver)

    def lease(seconds: float) -> dict[str, Any]:
        return told(trial=str(fault), opened=time.monotonic(), seconds=seconds, steps=2)

    worker = TrainingTrial.__new__(TrainingTrial)
    worker.setup(lease(600.0), {"nanogpt": data}, where, {})
    if fault is not None:
        trial.train = HANGS[fault]  # type: ignore[assignment]
        if fault == "sleeps":  # without the system's alarm, which may come first on a busy machine
            leased.set_exit_timer = lambda seconds: None  # type: ignore[assignment]
        worker.reset_config(lease(1.0))
    worker.step()
    line.send("idle")
    while True:
        signal.pause()


def sleep_on(*_: Any, **__: Any) -> Iterator[None]:
    """In Python, where other threads of the process run."""
    while True:
        signal.pause()
    yield


def hold_the_lock(*_: Any, **__: Any) -> Iterator[None]:
    """In C, where none does."""
    yield ctypes.PyDLL(None).sleep(1_000_000)


HANGS: dict[str, Callable[..., Iterator[None]]] = {"sleeps": sleep_on, "holds the lock": hold_the_lock}


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str | None, BaseProcess], Process]]:
    """Three workers of one driver that was stopped, once all of them ended: one was idle, two hung on their leases."""
    folder = tmp_path_factory.mktemp("study")
    (folder / HEARTBEAT_FOLDER).mkdir()
    line, end = FORKING.Pipe()
    driving = FORKING.Process(target=drive, args=(folder, end), daemon=True)
    driving.start()
    driver: Process = line.recv()
    workers: dict[str | None, BaseProcess] = {}
    for fault in (None, *HANGS):
        ours, theirs = FORKING.Pipe()
        workers[fault] = FORKING.Process(target=work, args=(folder, driver, fault, theirs), daemon=True)
        workers[fault].start()
        if fault is None:
            heard = ours
    assert heard.recv() == "idle"
    os.kill(driver.pid, signal.SIGSTOP)
    try:
        for worker in workers.values():
            worker.join(PATIENCE_SECONDS)
        yield folder, workers, driver
    finally:
        for process in (driving, *workers.values()):
            process.kill()


def test_a_worker_without_a_lease_ends_itself_when_its_driver_is_stopped(ended):
    folder, workers, driver = ended
    assert process_start_ticks(driver.pid) == driver.started, "the driver is there all the time"
    assert workers[None].exitcode == 1
    last, silent = read_heartbeat(folder, "None"), read_heartbeat(folder, DRIVER)
    assert last is not None and silent is not None
    assert last.ended == IDLE and last.at >= silent.at + GRACE_SECONDS


def test_one_on_another_machine_ends_itself_once_its_driver_says_that_nothing_paid_for_it_for_the_grace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not before, as a lease may end that pays for it again. This process is the driver, and gives signs of life."""
    (tmp_path / HEARTBEAT_FOLDER).mkdir()
    monkeypatch.setattr(heartbeat, "machine_boot_id", lambda: "elsewhere")
    paid = time.monotonic() + 1e6
    heart = HeartbeatThread(lambda: write_heartbeat(tmp_path, DRIVER, 0, paid, said=time.monotonic()))
    heart.start()
    ours, theirs = FORKING.Pipe()
    worker = FORKING.Process(target=work, args=(tmp_path, Process.this_process(), None, theirs), daemon=True)
    worker.start()
    try:
        assert ours.recv() == "idle"
        late = time.monotonic() + 2 * GRACE_SECONDS
        while worker.is_alive() and ((last := read_heartbeat(tmp_path, "None")) is None or last.at < late):
            worker.join(0.1)
        assert worker.is_alive()
        paid = 0.0
        worker.join(PATIENCE_SECONDS)
        last = read_heartbeat(tmp_path, "None")
        assert worker.exitcode == 1 and last is not None and last.ended == IDLE
    finally:
        heart.stop()
        worker.kill()


def test_a_worker_that_hangs_on_its_lease_ends_itself_when_its_grace_is_over(ended):
    folder, workers, _ = ended
    assert workers["sleeps"].exitcode == 1
    last = read_heartbeat(folder, "sleeps")
    assert last is not None and last.ended == WORKING


def test_where_python_does_not_run_the_system_ends_it(ended):
    _, workers, _ = ended
    assert workers["holds the lock"].exitcode == -signal.SIGALRM


def overslept(seconds: float) -> None:
    """A worker that hears of its lease when that is over."""
    set_exit_timer(seconds)
    while True:
        signal.pause()


@pytest.mark.parametrize("seconds", [0.0, -5.0])
def test_where_nothing_is_left_of_a_lease_and_its_grace_the_system_ends_it_at_once(seconds: float) -> None:
    worker = FORKING.Process(target=overslept, args=(seconds,), daemon=True)
    worker.start()
    try:
        worker.join(PATIENCE_SECONDS)
        assert worker.exitcode == -signal.SIGALRM
    finally:
        worker.kill()
