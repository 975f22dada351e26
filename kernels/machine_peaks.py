"""What this machine does at most: its bandwidth and its products of matrices."""

from collections.abc import Mapping
from dataclasses import dataclass

from kernels import benchmark, timing
from kernels.kernel import THREADS
from kernels.machine import Watch, last_cache_bytes, memory_bytes
from kernels.settings import MEMORY_SHARE
from tune.machine import cpu_name

TIMES_CACHES = 4
"""The arrays of the copies are together so many times the last cache."""


@dataclass(frozen=True, kw_only=True)
class Peaks:
    """Of one device, by threads of the process that drives it: a GPU does with one.

    bytes_per_second: read and written by a copy; flops_per_second: of products of matrices, by precision.
    """

    bytes_per_second: Mapping[int, float]
    flops_per_second: Mapping[str, Mapping[int, float]]


Found = dict[str, Peaks]


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
