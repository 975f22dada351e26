"""The laws of signs of life: a process is known by them, and a driver elsewhere lives as long as its own go on."""

import errno
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
    GRACE_SECONDS,
    HEARTBEAT_FOLDER,
    LOOK_SECONDS,
    SILENCE_SECONDS,
    DriverHeartbeat,
    DriverWatch,
    HeartbeatThread,
    Process,
    is_worker_alive,
    opened_monotonic,
    process_start_ticks,
    read_heartbeat,
    write_heartbeat,
)


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """A folder for signs of life."""
    (tmp_path / HEARTBEAT_FOLDER).mkdir()
    return tmp_path


class Elsewhere:
    """A driver on another machine, and the watch on it that a trial here has."""

    def __init__(self, study: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
        self.study, self.patch = study, monkeypatch
        self.watch = DriverWatch(replace(Process.this_process(), boot="elsewhere"), study, clock)
        self.beats(0.0)

    def beats(self, at: float) -> None:
        """A sign of life of the driver."""
        self.does(lambda: write_heartbeat(self.study, DRIVER, 0, at))

    def does(self, what: Callable[[], object]) -> None:
        """There."""
        with self.patch.context() as patch:
            patch.setattr(heartbeats, "machine_boot_id", lambda: "elsewhere")
            what()


@pytest.fixture
def elsewhere(study: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Elsewhere:
    return Elsewhere(study, clock, monkeypatch)


def test_one_that_beats_lives_and_one_that_is_silent_is_gone(elsewhere: Elsewhere, clock: Clock) -> None:
    for second in range(40):
        elsewhere.beats(float(second))
        clock.now = second * LOOK_SECONDS
        assert elsewhere.watch.is_alive()
    clock.now += SILENCE_SECONDS / 2
    assert elsewhere.watch.is_alive()
    clock.now += SILENCE_SECONDS
    assert not elsewhere.watch.is_alive()


def test_a_busy_one_that_pays_for_no_idle_worker_any_more_lives(
    elsewhere: Elsewhere, study: Path, clock: Clock
) -> None:
    """And what it held it held until the last time that this was paid for; a lease of later is as old as it is."""
    pulse = DriverHeartbeat(study, clock, lambda seconds: clock.now < LOOK_SECONDS)
    for _ in range(40):
        elsewhere.does(pulse.beat)
        assert elsewhere.watch.is_alive()
        clock.now += LOOK_SECONDS
    last = read_heartbeat(study, DRIVER)
    assert last is not None and last.at == 0.0
    before = time.monotonic()
    opened = opened_monotonic(study, last.said - 3, boot="elsewhere", monotonic=0.0)
    assert before - 3 <= opened <= time.monotonic() - 3


@pytest.mark.parametrize("beats", [0, 1, 3])
def test_a_silence_is_known_once_and_from_its_beginning_whichever_wakes_first_the_heart_or_who_asks(
    study: Path, clock: Clock, beats: int
) -> None:
    """Of several, as of a machine that sleeps often, the first: what waited then has ended itself."""
    pulse = DriverHeartbeat(study, clock)
    clock.now = since = GRACE_SECONDS / 2
    pulse.beat()
    for _ in range(2):
        clock.now += 600
        for _ in range(beats):
            pulse.beat()
    assert pulse.silence() == since and pulse.silence() is None


def test_a_disk_that_is_full_for_a_while_does_not_stop_a_heart(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would not end its process with the lease any more."""
    monkeypatch.setattr(heartbeats, "BEAT_SECONDS", 0.0)
    faults = iter((OSError(errno.ENOSPC, ""), OSError(errno.ENOSPC, ""), EOFError("the end of this test")))

    def full_at_first() -> float:
        raise next(faults)

    with pytest.raises(EOFError):
        HeartbeatThread(full_at_first).run()


def test_a_driver_of_this_machine_lives_as_long_as_its_very_process(study: Path, clock: Clock) -> None:
    """No longer, and none that has its number later is it."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        driver = Process(boot=heartbeats.machine_boot_id(), pid=process.pid, started=process_start_ticks(process.pid))
        watch = DriverWatch(driver, study, clock)
        assert watch.is_alive() and not DriverWatch(replace(driver, started=1), study, clock).is_alive()
    assert not watch.is_alive()


def test_a_driver_in_another_container_of_this_machine_lives_by_its_signs_of_life(study: Path) -> None:
    """Its processes are not seen from here: on Kubernetes, several pods may share a machine."""
    driver = Process.this_process()
    write_heartbeat(study, DRIVER, 0, 1.0)
    code = f"""
from pathlib import Path
from tune.store.heartbeat import *
print(DriverWatch({driver}, Path({str(study)!r})).is_alive())"""
    words = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", sys.executable, "-c", code]
    seen = subprocess.run(words, capture_output=True, text=True, check=False)
    if seen.stderr.startswith("unshare: "):
        pytest.skip("this machine gives no process a container")
    assert seen.stdout == "True\n"


@pytest.mark.parametrize("beats", [0, 1])
def test_no_lease_of_a_driver_on_another_machine_begins_in_the_future(study: Path, beats: int) -> None:
    """It would last as much longer; opened after the driver's last sign of life, or where none can be read."""
    for _ in range(beats):
        write_heartbeat(study, DRIVER, 0, 1.0)
    assert opened_monotonic(study, 1e9, boot="elsewhere", monotonic=0.0) <= time.monotonic()


def test_another_driver_of_the_same_study_is_not_the_one(elsewhere: Elsewhere, study: Path, clock: Clock) -> None:
    """Its study was resumed here: a trial of the one before must not go on."""
    clock.now = LOOK_SECONDS
    assert elsewhere.watch.is_alive()
    write_heartbeat(study, DRIVER, 0, 1.0)
    clock.now = 2 * LOOK_SECONDS
    assert not elsewhere.watch.is_alive()


def test_only_a_worker_of_rays_on_this_machine_is_ever_taken_for_a_trial(study: Path) -> None:
    """A sign of life that names another living process must not get it killed."""
    write_heartbeat(study, "t001", 1, 1.0)
    sign = read_heartbeat(study, "t001")
    assert sign is not None and sign.by == Process.this_process() and not is_worker_alive(sign.by)
    words, both = [sys.executable, "-c", "print(flush=True); input()", "ray::Trial"], subprocess.PIPE
    with subprocess.Popen(words, stdin=both, stdout=both) as worker:
        assert worker.stdout is not None and worker.stdout.readline()
        found = replace(sign.by, pid=worker.pid, started=process_start_ticks(worker.pid))
        assert is_worker_alive(found)
        assert not is_worker_alive(replace(found, boot="elsewhere")) and not is_worker_alive(replace(found, started=1))
        worker.communicate(b"\n")
    assert not is_worker_alive(found)


def test_a_process_that_died_and_was_not_buried_is_gone() -> None:
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert process_start_ticks(process.pid) is None
    assert process_start_ticks(os.getpid()) is not None


def test_a_damaged_heartbeat_is_none(study: Path) -> None:
    whole = '{{"lease": 1, "at": {}, "pid": 1, "started": 2, "boot": ""}}'
    (study / HEARTBEAT_FOLDER / "t001").write_text(whole.format(1))
    assert read_heartbeat(study, "t001") is not None
    for text in ("", "{", "[]", '{"lease": 1}', *map(whole.format, ('"x"', "NaN", "Infinity"))):
        (study / HEARTBEAT_FOLDER / "t001").write_text(text)
        assert read_heartbeat(study, "t001") is None
