"""What the machine is, and what others take of it meanwhile."""

import os
import time
from pathlib import Path

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
STAT = Path("/proc/stat")
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
USUAL_LAST_CACHE = 32 << 20


def last_cache_bytes() -> int:
    """As the system tells it; where it does not, 32 MiB."""
    sizes = [file.read_text().strip() for file in CACHES.glob("index*/size")]
    known = [int(size[:-1]) * UNITS.get(size[-1], 1) for size in sizes if size[:-1].isdigit()]
    return max(known, default=0) or USUAL_LAST_CACHE


def memory_bytes() -> int:
    """All of it."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class Watch:
    """Cores that others took since it was made: other processes, and other machines on the same one."""

    def __init__(self) -> None:
        self.began, self.busy, self.own = time.perf_counter(), _busy_seconds(), time.process_time()

    def cores_taken(self) -> float | None:
        """Mean over the time; None where the system does not tell."""
        cores = self.cores()
        return None if cores is None else max(0.0, cores[0] - cores[1])

    def cores(self) -> tuple[float, float] | None:
        """Those of the machine that were busy, and of these the ones of this process; as above."""
        busy = _busy_seconds()
        if self.busy is None or busy is None:
            return None
        seconds = max(time.perf_counter() - self.began, 1e-9)
        return (busy - self.busy) / seconds, (time.process_time() - self.own) / seconds


def _busy_seconds() -> float | None:
    """Of all cores together, stolen time included; it counts in hundredths of a second."""
    try:
        user, nice, system, _, _, irq, softirq, steal = map(int, STAT.read_text().split("\n")[0].split()[1:9])
    except (OSError, ValueError):
        return None
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
