"""The energy that this machine took while a study ran, where its counters can be read: of processors and their memory
by RAPL, of NVIDIA's GPUs by NVML. What else the machine did meanwhile is in it too.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from tune.reports import Report
from tune.search.engine import Engine, Listener
from tune.settings import Settings
from tune.store.journal import ENERGY, Journal

POWERCAP = Path("/sys/class/powercap")
NOTED_SECONDS = 30.0
"""Between two looks: a counter of RAPL begins anew after some minutes, and what follows the last one is lost by a kill.
"""


@dataclass(frozen=True, kw_only=True)
class Counter:
    """read: joules so far, which begin anew at `wraps`."""

    read: Callable[[], float]
    wraps: float


def rapl(root: Path = POWERCAP) -> Iterator[Counter]:
    """Of each processor, and of memory where that has its own."""
    for zone in sorted(root.glob("intel-rapl:*")):  # AMD's bear that name too
        with suppress(OSError, ValueError):
            if (zone / "name").read_text().startswith(("package", "dram")):
                counter = Counter(read=_reader(zone / "energy_uj"), wraps=_reader(zone / "max_energy_range_uj")())
                counter.read()
                yield counter


def _reader(file: Path) -> Callable[[], float]:
    return lambda: int(file.read_text()) / 1e6


def nvml() -> Iterator[Counter]:
    """Of each GPU that this process may use."""
    with suppress(Exception):  # its own errors, which are known only where it can be imported
        library = import_module("pynvml")
        library.nvmlInit()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        for number in range(library.nvmlDeviceGetCount()):
            device = library.nvmlDeviceGetHandleByIndex(number)
            named = {str(number), str(library.nvmlDeviceGetUUID(device))}
            if visible is None or named & {each.strip() for each in visible.split(",")}:
                library.nvmlDeviceGetTotalEnergyConsumption(device)
                yield Counter(read=_joules(library, device), wraps=float("inf"))


def _joules(library: object, device: object) -> Callable[[], float]:
    return lambda: library.nvmlDeviceGetTotalEnergyConsumption(device) / 1000  # type: ignore[attr-defined]


class Energy(Listener):
    """Keeps in the journal what counters say of a study, of its earlier runs too."""

    def __init__(self, journal: Journal, counters: list[Counter], clock: Callable[[], float] = time.monotonic) -> None:
        rows = journal.rows("SELECT value + 0.0 AS joules FROM study WHERE key = ?", ENERGY)
        self._joules = float(rows[0]["joules"]) if rows else 0.0
        self._journal, self._clock, self._noted = journal, clock, clock()
        self._counters = [(counter, counter.read()) for counter in counters]

    def decided(self, engine: Engine, trial: str | None, action: str, reason: str) -> None:
        self._look()

    def reported(self, engine: Engine, trial: str, report: Report) -> None:
        self._look()

    def closed(self, engine: Engine) -> None:
        self.note()

    def _look(self) -> None:
        if self._clock() - self._noted >= NOTED_SECONDS:
            self.note()

    def note(self) -> None:
        """What was taken since the last time; a counter that can be read no more counts up to there."""
        self._noted, read = self._clock(), []
        for counter, before in self._counters:
            with suppress(Exception):
                now = counter.read()
                if now >= before or counter.wraps < float("inf"):
                    self._joules += (now - before) % counter.wraps
                read.append((counter, now))
        self._counters = read
        self._journal.note(**{ENERGY: self._joules})


def energy_noted(journal: Journal, settings: Settings) -> list[Listener]:
    """Who keeps it: nobody where nothing can be read, or the trials run on a cluster's machines."""
    counters = [] if settings.address else [*rapl(), *nvml()]
    return [Energy(journal, counters)] if counters else []
