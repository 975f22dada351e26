"""Signs of life of the driver and of trials: until when each used what it holds, for when nobody is there to tell."""

import contextlib
import json
import math
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FOLDER = "heartbeats"
DRIVER = "driver"
BEAT_SECONDS = 0.5
"""Between two signs of life: no charge after a kill is off by more than about this."""


class Heart(threading.Thread):
    """Calls `beat` twice a second, whatever else the process does. A disk that is full does not stop it."""

    def __init__(self, beat: Callable[[], None]) -> None:
        super().__init__(daemon=True, name="heart")
        self._call = beat
        self._stopped = threading.Event()

    def run(self) -> None:
        """Until `stop`."""
        while not self._stopped.wait(BEAT_SECONDS):
            with contextlib.suppress(OSError):
                self._call()

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
    new.write_text(json.dumps({"lease": lease, "at": at, "pid": os.getpid(), "started": started(os.getpid())}))
    new.replace(path)


def last_beat(folder: Path, name: str) -> dict[str, Any] | None:
    """The last sign of life of a trial, or of the driver; None where there is none that can be read."""
    try:
        found = json.loads((folder / FOLDER / name).read_text())
        at = float(found["at"])
        return {"at": at} | {key: int(found[key]) for key in ("lease", "pid", "started")} if math.isfinite(at) else None
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
    """Whether the very process that gave this sign of life lives, and is a worker of Ray's."""
    if started(found["pid"]) != found["started"]:
        return False
    try:
        return b"ray::" in Path(f"/proc/{found['pid']}/cmdline").read_bytes()
    except OSError:
        return False
