"""The laws of signs of life: a process is known by them, and a driver elsewhere lives as long as its own go on."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tune.search.simulator import Clock
from tune.store import heartbeat as heartbeats
from tune.store.heartbeat import (  # fmt: skip
    DRIVER,
    FOLDER,
    LOOK_SECONDS,
    SILENCE_SECONDS,
    Driver,
    DriverWatch,
    Pulse,
    beat,
    last_beat,
    opened_here,
    started,
    still_there,
)


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """A folder for signs of life."""
    (tmp_path / FOLDER).mkdir()
    return tmp_path


class Elsewhere:
    """A driver on another machine, and the watch on it that a trial here has."""

    def __init__(self, study: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
        self.study, self.patch = study, monkeypatch
        self.watch = DriverWatch(replace(Driver.here(), boot="elsewhere"), study, clock)
        self.beats(0.0)

    def beats(self, at: float) -> None:
        """A sign of life of the driver."""
        self.does(lambda: beat(self.study, DRIVER, 0, at))

    def does(self, what: Callable[[], object]) -> None:
        """There."""
        with self.patch.context() as patch:
            patch.setattr(heartbeats, "boot", lambda: "elsewhere")
            what()


@pytest.fixture
def elsewhere(study: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Elsewhere:
    return Elsewhere(study, clock, monkeypatch)


def test_one_that_beats_lives_and_one_that_is_silent_is_gone(elsewhere: Elsewhere, clock: Clock) -> None:
    for second in range(40):
        elsewhere.beats(float(second))
        clock.now = second * LOOK_SECONDS
        assert elsewhere.watch.alive()
    clock.now += SILENCE_SECONDS / 2
    assert elsewhere.watch.alive()
    clock.now += SILENCE_SECONDS
    assert not elsewhere.watch.alive()


def test_a_busy_one_that_pays_for_no_idle_worker_any_more_lives(
    elsewhere: Elsewhere, study: Path, clock: Clock
) -> None:
    """And what it held it held until the last time that this was paid for; a lease of later is as old as it is."""
    pulse = Pulse(study, clock, lambda seconds: clock.now < LOOK_SECONDS)
    for _ in range(40):
        elsewhere.does(pulse.beat)
        assert elsewhere.watch.alive()
        clock.now += LOOK_SECONDS
    last = last_beat(study, DRIVER)
    assert last is not None and last.at == 0.0
    before = time.monotonic()
    opened = opened_here(study, last.said - 3, boot="elsewhere", monotonic=0.0)
    assert before - 3 <= opened <= time.monotonic() - 3


def test_another_driver_of_the_same_study_is_not_the_one(elsewhere: Elsewhere, study: Path, clock: Clock) -> None:
    """Its study was resumed here: a trial of the one before must not go on."""
    clock.now = LOOK_SECONDS
    assert elsewhere.watch.alive()
    beat(study, DRIVER, 0, 1.0)
    clock.now = 2 * LOOK_SECONDS
    assert not elsewhere.watch.alive()


def test_only_a_worker_of_rays_on_this_machine_is_ever_taken_for_a_trial(study: Path) -> None:
    """A sign of life that names another living process must not get it killed."""
    beat(study, "t001", 1, 1.0)
    mine = last_beat(study, "t001")
    assert mine is not None and mine.boot == heartbeats.boot() and not still_there(mine)
    words, both = [sys.executable, "-c", "print(flush=True); input()", "ray::Trial"], subprocess.PIPE
    with subprocess.Popen(words, stdin=both, stdout=both) as worker:
        assert worker.stdout is not None and worker.stdout.readline()
        found = replace(mine, pid=worker.pid, started=started(worker.pid))
        assert still_there(found)
        assert not still_there(replace(found, boot="elsewhere")) and not still_there(replace(found, started=1))
        worker.communicate(b"\n")
    assert not still_there(found)


def test_a_process_that_died_and_was_not_buried_is_gone() -> None:
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert started(process.pid) is None
    assert started(os.getpid()) is not None


def test_a_damaged_heartbeat_is_none(study: Path) -> None:
    for text in ("", "{", "[]", '{"lease": 1}', '{"lease": 1, "at": "x", "pid": 1, "started": 2}'):
        (study / FOLDER / "t001").write_text(text)
        assert last_beat(study, "t001") is None
