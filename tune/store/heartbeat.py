"""Signs of life of the driver and of trials: after a kill they tell until when each used what it held."""

import contextlib
import functools
import json
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tune.machine import stat_of, write_whole

HEARTBEAT_FOLDER = "heartbeats"
DRIVER = "driver"
BEAT_SECONDS = 0.5
"""Seconds between two signs of life: no charge after a kill is off by more than about this."""

GRACE_SECONDS = 0.8
"""Seconds that are kept for each open slot beyond its lease: for the last report, and until its worker has ended itself
where nobody answers; as many for a worker without a lease."""

SILENCE_SECONDS = 10.0
"""Seconds without a sign of life after which a driver on another machine is gone."""
WORKING, IDLE = "working", "idle"
"""What a worker was doing when it ended itself: the first is a trial that hangs, the second waited for its driver."""
LOOK_SECONDS = 1.0
"""Seconds between two looks at a driver's signs of life, which may lie on a network disk."""


class HeartbeatThread(threading.Thread):
    """A thread that calls `beat` twice a second, or after the seconds that it returned where these are fewer, whatever
    else the process does. A full disk does not stop it."""

    def __init__(self, beat: Callable[[], float | None]) -> None:
        super().__init__(daemon=True, name="heart")
        self._call = beat
        self._stopped = threading.Event()

    def run(self) -> None:
        """Call `beat` until `stop`."""
        while True:
            soon = None
            with contextlib.suppress(OSError):
                soon = self._call()
            if self._stopped.wait(BEAT_SECONDS if soon is None else min(BEAT_SECONDS, soon)):
                return

    def stop(self) -> None:
        """Stop calling `beat`, and wait for the thread to end."""
        self._stopped.set()
        self.join()


class DriverHeartbeat:
    """The driver's own signs of life, on the study's clock: what it holds is held until the last of them.

    Where none comes for the grace, because the driver was stopped or its disk was, workers without a lease end
    themselves. pays(seconds): whether what is left pays for these workers for so long. Where the driver is busy and it
    does not, a sign says only that the driver lives: what it holds is held until the sign before.
    """

    def __init__(
        self, folder: Path, clock: Callable[[], float], pays: Callable[[float], bool] = lambda seconds: True
    ) -> None:
        self._folder, self._clock, self._pays = folder, clock, pays
        self._lock = threading.Lock()
        self._last = clock()
        self._silent_since: float | None = None

    def beat(self) -> float:
        """Give one more sign. Returns the seconds to the next, few enough that a late one or two are no silence."""
        now, soon = self._clock(), GRACE_SECONDS / 3
        if not self._pays(soon):
            write_heartbeat(self._folder, DRIVER, 0, self._last, said=now)
            return soon
        write_heartbeat(self._folder, DRIVER, 0, now)
        with self._lock:
            self._note_silence(now)
            self._last = now
        return soon

    def silence(self) -> float | None:
        """Return since when there was none for longer than the grace; None where that did not happen since the last
        call."""
        with self._lock:
            self._note_silence(self._clock())
            since, self._silent_since = self._silent_since, None
        return since

    def _note_silence(self, now: float) -> None:
        if now - self._last > GRACE_SECONDS:
            self._silent_since = self._last if self._silent_since is None else self._silent_since
            self._last = now


@contextmanager
def run_driver_heartbeat(
    folder: Path, clock: Callable[[], float], pays: Callable[[float], bool] = lambda seconds: True
) -> Iterator[DriverHeartbeat]:
    """Keep up the driver's pulse while the `with` block lasts."""
    pulse = DriverHeartbeat(folder, clock, pays)
    heart = HeartbeatThread(pulse.beat)
    heart.start()
    try:
        yield pulse
    finally:
        heart.stop()


@dataclass(frozen=True, kw_only=True)
class Process:
    """A process, of a search or of a trial: `machine_boot_id` there, its id, and when it was started, in clock
    ticks."""

    boot: str
    pid: int
    started: int | None

    @classmethod
    def this_process(cls) -> "Process":
        """Return this process."""
        return cls(boot=machine_boot_id(), pid=os.getpid(), started=process_start_ticks(os.getpid()))


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """A sign of life: by which process, and until when it used which lease, on the study's clock; said, ended: as in
    `write_heartbeat`."""

    lease: int
    at: float
    said: float
    ended: str | None
    by: Process


def write_heartbeat(
    folder: Path, name: str, lease: int, at: float, ended: str | None = None, *, said: float | None = None
) -> None:
    """Write down that a trial used its lease until `at`, on the study's clock, or the driver what it holds.

    ended: WORKING or IDLE in the last sign of life of a worker that ends itself; said: when the sign is given (None: at
    `at`), where a driver lives that nothing pays any more for workers without a lease.
    """
    sign = {"lease": lease, "at": at, "said": at if said is None else said, "ended": ended}
    write_whole(folder / HEARTBEAT_FOLDER / name, json.dumps(sign | vars(Process.this_process())))


def set_exit_timer(seconds: float) -> None:
    """Have the system end this process so many seconds from now, or at once, whatever it does then, even where it holds
    Python's lock and no thread of ours runs; but not where it never returns from the kernel. The next call replaces
    this one, and `cancel_exit_timer` cancels it."""
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-6))


def cancel_exit_timer() -> None:
    """Cancel `set_exit_timer`: this process ends when it likes."""
    signal.setitimer(signal.ITIMER_REAL, 0.0)


def read_heartbeat(folder: Path, name: str) -> Heartbeat | None:
    """Return the last sign of life of a trial, or of the driver; None where there is none that can be read."""
    try:
        found = json.loads((folder / HEARTBEAT_FOLDER / name).read_text())
        at, said = float(found["at"]), float(found.get("said", found["at"]))
        by = Process(boot=str(found["boot"]), pid=int(found["pid"]), started=int(found["started"]))
        sign = Heartbeat(lease=int(found["lease"]), at=at, said=said, ended=found.get("ended"), by=by)
        return sign if math.isfinite(at) and math.isfinite(said) else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return None


def process_start_ticks(pid: int) -> int | None:
    """Return when a process of this machine was started, in clock ticks since boot; None where there is none that
    lives."""
    fields = stat_of(pid)
    return int(fields[19]) if fields and fields[0] not in "ZX" else None


def is_worker_alive(process: Process) -> bool:
    """Whether this very process lives on this machine, and is a worker of Ray's."""
    if process.boot != machine_boot_id() or process_start_ticks(process.pid) != process.started:
        return False
    try:
        return b"ray::" in Path(f"/proc/{process.pid}/cmdline").read_bytes()
    except OSError:
        return False


def kill_worker(folder: Path, trial: str) -> None:
    """End the process that gave a trial's last sign of life, where it lives on this machine."""
    beat = read_heartbeat(folder, trial)
    if beat and is_worker_alive(beat.by):
        with contextlib.suppress(ProcessLookupError):
            os.kill(beat.by.pid, signal.SIGKILL)


@functools.cache
def machine_boot_id() -> str:
    """Return the id of this machine's boot and of the processes that are seen from here, as containers of one machine
    do not see each other's: where it is the same, so are processes and the monotonic clock."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"


def opened_monotonic(folder: Path, opened: float, *, boot: str, monotonic: float) -> float:
    """Return when a lease was opened, on this machine's monotonic clock.

    If another machine opened it, whose clock means nothing here, the driver's last sign of life tells the study's time.
    """
    if boot == machine_boot_id():
        return monotonic
    driver = read_heartbeat(folder, DRIVER)
    return time.monotonic() - max(0.0, driver.said - opened if driver else 0.0)


class DriverWatch:
    """Tells whether a driver lives: seen on its own machine, elsewhere by its signs of life in the study's folder."""

    def __init__(self, driver: Process, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._driver, self._folder, self._clock = driver, folder, clock
        self._said: float | None = None
        self._heard = self._looked = clock()
        self._replaced = False

    def is_alive(self) -> bool:
        """Whether it lives: without it no trial goes on."""
        if self._driver.boot == machine_boot_id():
            return process_start_ticks(self._driver.pid) == self._driver.started
        if self._clock() - self._looked >= LOOK_SECONDS:
            self._looked = self._clock()
            self._read()
        return not self._replaced and self._clock() - self._heard < SILENCE_SECONDS

    def _read(self) -> None:
        found = read_heartbeat(self._folder, DRIVER)
        if found is None or found.said == self._said:
            return
        self._replaced = found.by != self._driver
        self._said, self._heard = found.said, self._looked
