"""This machine's energy and load while a study runs on it, where they can be read: of processors and their memory by
RAPL and /proc, of NVIDIA GPUs by NVML. Whatever else runs on the machine counts too.
"""

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from tune.machine import PROC, TICKS, core_seconds, descendants, stat_of
from tune.reports import Report
from tune.search.engine import Engine, Listener
from tune.settings import Settings
from tune.store.journal import ENERGY, Journal

POWERCAP = Path("/sys/class/powercap")
NOTED_SECONDS = 30.0
"""Seconds between two readings: a counter of RAPL wraps after some minutes, and a kill loses what follows the last.
"""


class Counter:
    """A counter of energy. read: returns the joules so far, which begin again at 0 after `wraps`; inf: at an unknown
    reading."""

    def __init__(self, *, read: Callable[[], float], wraps: float = math.inf) -> None:
        self.read, self.wraps, self._before = read, wraps, read()

    def since_last(self) -> float:
        """Return the joules since the last call; 0 where it began again at an unknown reading."""
        before, self._before = self._before, self.read()
        again = self._before < before and math.isinf(self.wraps)
        return 0.0 if again else (self._before - before) % self.wraps


def rapl_counters(root: Path = POWERCAP) -> Iterator[Counter]:
    """Yield the counter of each processor, and of memory where it has its own."""
    for zone in sorted(root.glob("intel-rapl:*")):  # AMD's have that name too
        with suppress(OSError, ValueError):
            if (zone / "name").read_text().startswith(("package", "dram")):
                yield Counter(read=_reader(zone / "energy_uj"), wraps=_reader(zone / "max_energy_range_uj")())


def _reader(file: Path) -> Callable[[], float]:
    return lambda: int(file.read_text()) / 1e6


def visible_gpus() -> Iterator[tuple[Any, Any]]:
    """Yield NVML and its handle of each GPU that this process may use; nothing where NVML cannot be used."""
    with suppress(Exception):  # NVML's own errors have no name before it is imported
        library = import_module("pynvml")
        library.nvmlInit()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        for number in range(library.nvmlDeviceGetCount()):
            device = library.nvmlDeviceGetHandleByIndex(number)
            named = {str(number), str(library.nvmlDeviceGetUUID(device))}
            if visible is None or named & {each.strip() for each in visible.split(",")}:
                yield library, device


def nvml_counters() -> Iterator[Counter]:
    """Yield the counter of each GPU that this process may use."""
    for library, device in visible_gpus():
        with suppress(Exception):
            millijoules = partial(library.nvmlDeviceGetTotalEnergyConsumption, device)
            yield Counter(read=lambda read=millijoules: read() / 1000)  # type: ignore[misc]


class Energy(Listener):
    """A listener that keeps the energy of a study in the journal, summed over its runs."""

    def __init__(self, journal: Journal, counters: list[Counter], clock: Callable[[], float] = time.monotonic) -> None:
        rows = journal.rows("SELECT value + 0.0 AS joules FROM study WHERE key = ?", ENERGY)
        self._joules = float(rows[0]["joules"]) if rows else 0.0
        self._journal, self._clock, self._noted = journal, clock, clock()
        self._counters = counters

    def on_decision(self, engine: Engine, trial: str | None, action: str, reason: str) -> None:
        self._measure()

    def on_report(self, engine: Engine, trial: str, report: Report) -> None:
        self._measure()

    def on_close(self, engine: Engine) -> None:
        self.note()

    def _measure(self) -> None:
        if self._clock() - self._noted >= NOTED_SECONDS:
            self.note()

    def note(self) -> None:
        """Add the energy since the last time. A counter that cannot be read counts up to its last reading, and once it
        can again, from there on."""
        self._noted = self._clock()
        for counter in self._counters:
            with suppress(Exception):
                self._joules += counter.since_last()
        self._journal.write_facts(**{ENERGY: self._joules})


def energy_listeners(journal: Journal, settings: Settings) -> list[Listener]:
    """Return the listener that keeps the energy; none where nothing can be read, or the trials run on a cluster."""
    counters = [] if settings.address else [*rapl_counters(), *nvml_counters()]
    return [Energy(journal, counters)] if counters else []


LOOK_SECONDS = 5.0
"""Least seconds between two looks at how busy the machine is."""
PAGE = os.sysconf("SC_PAGE_SIZE")
Readings = Mapping[str, float]


class System:
    """How busy this machine is; callers call `figures` when they are awake anyway. Processors' figures are of the time
    since the look before, memory and the GPUs' of the moment."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, proc: Path = PROC, power: Path = POWERCAP) -> None:
        self._clock, self._proc = clock, proc
        self._gpus, self._counters = list(visible_gpus()), list(rapl_counters(power))
        self._looked, self._cores = clock(), core_seconds(proc)
        self._metered = self._looked  # when all counters were last read
        self._used = {pid: seconds for pid, (seconds, _) in self._study().items()}

    def figures(self) -> Readings | None:
        """Return the figures by name; None: it is too early for another look."""
        passed = self._clock() - self._looked
        if passed < LOOK_SECONDS:
            return None
        self._looked += passed
        return {**self._cpu(passed), **self._power(), **self._gpu()}

    def _cpu(self, passed: float) -> Readings:
        found: dict[str, float] = {}
        before, self._cores = self._cores, core_seconds(self._proc)
        if before and self._cores and self._cores[1] > before[1]:
            found["cores_busy_share"] = (self._cores[0] - before[0]) / (self._cores[1] - before[1])
        study = self._study()
        if study:
            used = sum(max(0.0, seconds - self._used.get(pid, 0.0)) for pid, (seconds, _) in study.items())
            found["study_cores"] = used / passed
            found["study_memory_bytes"] = sum(taken for _, taken in study.values())
        self._used = {pid: seconds for pid, (seconds, _) in study.items()}
        return found

    def _power(self) -> Readings:
        with suppress(OSError, ValueError):
            joules = [counter.since_last() for counter in self._counters]
            passed, self._metered = self._looked - self._metered, self._looked
            return {"processor_watts": sum(joules) / passed} if joules else {}
        return {}

    def _gpu(self) -> Readings:
        found: dict[str, float] = {}
        for number, (library, device) in enumerate(self._gpus):
            with suppress(Exception):
                found[f"gpu{number}_busy_share"] = library.nvmlDeviceGetUtilizationRates(device).gpu / 100
            with suppress(Exception):
                found[f"gpu{number}_memory_bytes"] = library.nvmlDeviceGetMemoryInfo(device).used
            with suppress(Exception):
                found[f"gpu{number}_watts"] = library.nvmlDeviceGetPowerUsage(device) / 1000
        return found

    def _study(self) -> dict[int, tuple[float, float]]:
        """Return for this process and all its descendants the seconds of CPU time and the resident bytes; memory that
        several share counts in each."""
        found = dict[int, tuple[float, float]]()
        for pid in (os.getpid(), *descendants(os.getpid(), self._proc)):
            if fields := stat_of(pid, self._proc):
                found[pid] = (int(fields[11]) + int(fields[12])) / TICKS, int(fields[21]) * PAGE
        return found
