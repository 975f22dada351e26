"""The operating system's view of trial processes: which there are, since when they work, and what they use.

It knows nothing of journals: a trial process is a grandchild of a search's driver that came to call itself a worker of
Ray's with something to do. It serves from its last rest on before that (Ray starts some processes ahead, which wait
for work), until it is gone. While Ray boots it, nobody sees for whom.
"""

import os
import signal
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from tune.machine import stat_of

PERIOD_SECONDS = 0.2
REST_SECONDS, REST_CPU_SHARE = 0.6, 0.05
"""A process that used less of a core than this for so long was waiting for work."""
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(kw_only=True)
class Process:
    """A process as it was seen: all times on the monotonic clock, CPU seconds since its start."""

    pid: int
    begun: float
    parent: int
    worked: float | None = None
    booted: float | None = None
    seen: list[tuple[float, float]] = field(default_factory=list)
    gone: float | None = None

    @property
    def serves_from(self) -> float:
        """Since when it has worked on what it came to be for: the end of its last rest before it said so."""
        assert self.worked is not None, "it never worked"
        before = [sample for sample in self.seen if sample[0] <= self.worked]
        begun = self.begun
        for at, cpu in before:
            rested = next((earlier for earlier in reversed(before) if earlier[0] <= at - REST_SECONDS), None)
            if rested and cpu - rested[1] < REST_CPU_SHARE * (at - rested[0]):
                begun = at
        return begun

    @property
    def booting(self) -> float:
        """Seconds of its service in which Ray booted it: ahead, as a worker for whoever comes, or for who had come."""
        return max(0.0, (self.booted or self.begun) - self.serves_from)

    @property
    def served_until(self) -> float:
        """When it was gone, or was last seen."""
        return self.gone if self.gone is not None else self.seen[-1][0]

    def kill(self) -> None:
        """SIGKILL."""
        os.kill(self.pid, signal.SIGKILL)

    def cpu_after(self, moment: float) -> float:
        """CPU seconds that it used after a moment, as far as it was seen."""
        later = [cpu for at, cpu in self.seen if at >= moment]
        return later[-1] - later[0] if later else 0.0


class Observer(threading.Thread):
    """Looks at the processes of the searches it was told of several times a second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self._drivers: set[int] = set()
        self._processes: dict[tuple[int, int], Process] = {}

    def run(self) -> None:
        """Until `end`."""
        while not self._ended.wait(PERIOD_SECONDS):
            self.look()

    def end(self) -> None:
        """Look no more."""
        self._ended.set()

    def watch(self, driver: int) -> None:
        """From now on the processes of the search whose driver has this process id are of interest."""
        with self._lock:
            self._drivers.add(driver)

    def look(self) -> None:
        """Take note of the drivers' children and grandchildren that there are now."""
        with self._lock:
            now = time.monotonic()
            stats = {int(name): stat for name in os.listdir("/proc") if name.isdigit() and (stat := _stat(int(name)))}
            here = set()
            for pid, (parent, ticks, cpu) in stats.items():
                key = pid, ticks
                if key not in self._processes:
                    if parent not in self._drivers and stats.get(parent, (0,))[0] not in self._drivers:
                        continue
                    self._processes[key] = Process(pid=pid, begun=_monotonic(ticks), parent=parent)
                here.add(key)
                process = self._processes[key]
                process.seen.append((now, cpu))
                if process.worked is None:
                    title = _title(pid)
                    if process.booted is None and title.startswith(b"ray::"):
                        process.booted = now
                    if title.startswith(b"ray::ResourceTrainable"):
                        process.worked = now
            for key, process in self._processes.items():
                if key not in here and process.gone is None:
                    process.gone = now

    def trials(self, driver: int) -> list[Process]:
        """The trial processes of the search whose driver has this process id, in the order in which they served."""
        with self._lock:
            children = {process.pid for process in self._processes.values() if process.parent == driver}
            found = [each for each in self._processes.values() if each.parent in children and each.worked is not None]
            return sorted(found, key=lambda process: process.serves_from)

    def alive(self, driver: int) -> list[Process]:
        """All processes of that search, Ray's own too, that are still there; its driver is not one of them."""
        with self._lock:
            self.look()
            children = {process.pid for process in self._processes.values() if process.parent == driver}
            parents = {driver, *children}
            return [each for each in self._processes.values() if each.gone is None and each.parent in parents]


def _stat(pid: int) -> tuple[int, int, float] | None:
    """Parent, start in clock ticks since boot and CPU seconds of a process; None where it is gone or a zombie."""
    fields = stat_of(pid)
    if not fields or fields[0] in "ZX":
        return None
    return int(fields[1]), int(fields[19]), (int(fields[11]) + int(fields[12])) / TICKS


def _monotonic(ticks: int) -> float:
    """A moment in clock ticks since boot, on the monotonic clock."""
    return ticks / TICKS + time.clock_gettime(time.CLOCK_MONOTONIC) - time.clock_gettime(time.CLOCK_BOOTTIME)


def _title(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
