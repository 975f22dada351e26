"""What this machine does at most, measured in a process of its own and kept for the searches on it."""

import multiprocessing
import sys
from collections.abc import Callable, Mapping

from kernels import benchmark, timing
from kernels.kernel import THREADS
from kernels.machine import Watch, last_cache_bytes, memory_bytes
from kernels.registry import KERNELS
from kernels.settings import MEMORY_SHARE, Settings
from model.cost.machine_peaks import Peaks, cpu_name, keep, kept

TIMES_CACHES = 4
"""The arrays of the copies are together so many times the last cache."""
Found = dict[str, Peaks]


def wanted(settings: Settings) -> bool:
    """Whether a run measures them: where none are kept, and where it is a run of all kernels."""
    return kept(cpu_name()) is None or set(settings.kernels) == set(KERNELS)


def measured() -> Found | None:
    """Of the CPU and, where there is one, the GPU, by their names. None where others took the machine each time.

    It changes switches of torch and of the C library, so a process that times anything else must not call it.
    """
    for _ in range(timing.TRIES):
        watch = Watch()
        found = _measured()
        if not timing.disturbed(watch):
            return found
    return None


def apart() -> Found | None:
    """The same, in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as process:
        return process.apply(measured)


def renew(measure: Callable[[], Found | None]) -> Found:
    """Measure, keep, and say so; what is not known comes back as nothing."""
    found = measure()
    if found is None:
        print("peaks: others took the machine, so none were kept: run this again when it is quiet", file=sys.stderr)
        return {}
    try:
        print(f"peaks: kept in {keep(found)}", file=sys.stderr)
    except OSError as error:
        print(f"peaks: not kept: {error}", file=sys.stderr)
    return found


def _measured() -> Found:
    from kernels import torch_references  # seconds to import

    moved = min(TIMES_CACHES * last_cache_bytes(), memory_bytes() // MEMORY_SHARE)
    values = timing.in_turns(benchmark.peak_contenders(moved, (benchmark.ONE, benchmark.ALL, benchmark.GPU)))

    def peaks(device: str, places: Mapping[int, str]) -> Peaks:
        rates = {threads: benchmark.bandwidth(values, moved, place) for threads, place in places.items()}
        return Peaks(
            bytes_per_second={threads: rate for threads, rate in rates.items() if rate is not None},
            flops_per_second=torch_references.products(device, list(places)),
        )

    found = {cpu_name(): peaks("cpu", {1: benchmark.ONE, THREADS: benchmark.ALL})}
    if (gpu := torch_references.gpu_name()) is not None:
        found[gpu] = peaks("cuda", {1: benchmark.GPU})
    return found
