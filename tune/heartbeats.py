"""Signs of life of the driver and of trials: until when each used what it holds, for when nobody is there to tell."""

import contextlib
import functools
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = "heartbeats"
DRIVER = "driver"
BEAT_SECONDS = 0.5
"""Between two signs of life: no charge after a kill is off by more than about this."""

SILENCE_SECONDS = 10.0
"""A driver on another machine that gave no sign of life for so long is gone."""
LOOK_SECONDS = 1.0
"""Between two looks at its signs of life, which may lie on a network disk."""


class Heart(threading.Thread):
    """Calls `beat` twice a second, whatever else the process does. A disk that is full does not stop it."""

    def __init__(self, beat: Callable[[], None]) -> None:
        super().__init__(daemon=True, name="heart")
        self._call = beat
        self._stopped = threading.Event()

    def run(self) -> None:
        """Until `stop`."""
        while True:
            with contextlib.suppress(OSError):
                self._call()
            if self._stopped.wait(BEAT_SECONDS):
                return

    def stop(self) -> None:
        """Beat no more."""
        self._stopped.set()
        self.join()


@contextmanager
def beating(folder: Path, clock: Callable[[], float]) -> Iterator[None]:
    """The driver's own signs of life, on the study's clock: what it holds is held until the last of them."""
    heart = Heart(lambda: beat(folder, DRIVER, 0, clock()))
    heart.start()
    try:
        yield
    finally:
        heart.stop()


def beat(folder: Path, name: str, lease: int, at: float) -> None:
    """Write down that a trial, or the driver, used its lease until `at`, on the study's clock."""
    path = folder / FOLDER / name
    new = path.with_suffix(".new")
    here = {"pid": os.getpid(), "started": started(os.getpid()), "boot": boot()}
    new.write_text(json.dumps({"lease": lease, "at": at} | here))
    new.replace(path)


def last_beat(folder: Path, name: str) -> dict[str, Any] | None:
    """The last sign of life of a trial, or of the driver; None where there is none that can be read."""
    try:
        found = json.loads((folder / FOLDER / name).read_text())
        at = float(found["at"])
        whole = {key: int(found[key]) for key in ("lease", "pid", "started")}
        return {"at": at, "boot": str(found["boot"])} | whole if math.isfinite(at) else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return None


def started(pid: int) -> int | None:
    """When a process of this machine was started, in clock ticks since boot; None where there is none that lives."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def still_there(found: dict[str, Any]) -> bool:
    """Whether the very process that gave this sign of life lives on this machine, and is a worker of Ray's."""
    if found["boot"] != boot() or started(found["pid"]) != found["started"]:
        return False
    try:
        return b"ray::" in Path(f"/proc/{found['pid']}/cmdline").read_bytes()
    except OSError:
        return False


@functools.cache
def boot() -> str:
    """This machine since its start: where it is the same, so are processes and the monotonic clock."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@dataclass(frozen=True, kw_only=True)
class Driver:
    """The process that runs a search: its machine since that one's start, its id, and when it was started in ticks."""

    boot: str
    pid: int
    started: int | None

    @classmethod
    def here(cls) -> "Driver":
        """This process."""
        return cls(boot=boot(), pid=os.getpid(), started=started(os.getpid()))


class DriverWatch:
    """Whether a driver lives: seen on its own machine, elsewhere by its signs of life in the study's folder."""

    def __init__(self, driver: Driver, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._driver, self._folder, self._clock = driver, folder, clock
        self._at: float | None = None
        self._heard = self._looked = clock()
        self._replaced = False

    def alive(self) -> bool:
        """Without it no trial goes on."""
        if self._driver.boot == boot():
            return started(self._driver.pid) == self._driver.started
        if self._clock() - self._looked >= LOOK_SECONDS:
            self._looked = self._clock()
            self._look()
        return not self._replaced and self._clock() - self._heard < SILENCE_SECONDS

    def _look(self) -> None:
        found = last_beat(self._folder, DRIVER)
        if found is None or found["at"] == self._at:
            return
        self._replaced = (found["boot"], found["pid"], found["started"]) != (
            self._driver.boot, self._driver.pid, self._driver.started
        )  # fmt: skip
        self._at, self._heard = found["at"], self._looked
