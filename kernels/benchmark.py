"""All kernels by name; builds, checks and times their implementations, beside the machine's own bandwidth and published
times; and measures the peaks of the machine, its bandwidth and its matrix products.
"""

import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import numba
import numpy as np

from kernels import arrays, cuda, monte_carlo_pi, row_kernels, timing, verify
from kernels.arrays import COPY, numba_loop, numba_streaming
from kernels.kernel import THREADS, Bind, Call, Implementation, Inputs, Kernel, UnavailableError, align_to_cache_line
from kernels.settings import MEMORY_SHARE, Settings, last_cache_bytes, memory_bytes
from kernels.timing import Values, Watch
from tune.flags import invalid
from tune.machine import cpu_name
from tune.published import published

KERNELS = {each.name: each for family in (arrays, monte_carlo_pi, row_kernels, cuda) for each in family.KERNELS}
SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3}
WITH_COPIES = "with"


@cache
def published_times() -> dict[tuple[str, str, bool], float]:
    """Return published seconds by kernel and implementation, as named here, and by whether copies to a GPU and back are
    included. The sizes were not published."""
    return {
        (row["kernel"], row["implementation_here"], row["copies"] == WITH_COPIES): row["time"] * SECONDS[row["unit"]]
        for row in published("kernels")
    }


ONE, ALL, GPU = "one thread", "all threads", "gpu"
"""Places where a copy runs."""
MARK = "peak "
"""Prefix of a contender's name that is not a row, but a copy to compare with."""
PAIR = 16
"""Bytes that a copy moves for each element: one float64 in, one out."""


@cache
def _copies(place: str) -> tuple[Bind, Bind]:
    parallel = place == ALL
    return numba_loop(COPY, parallel=parallel), numba_streaming(COPY, parallel=parallel)


def peak_contenders(moved_bytes: int, places: Collection[str]) -> dict[str, Call]:
    """Return copies that move as many bytes: on a CPU with plain and with streaming stores; on a GPU torch's own."""
    elements = max(1, moved_bytes // PAIR)
    found: dict[str, Call] = {}
    if on_cpu := [place for place in (ONE, ALL) if place in places]:
        a, out = align_to_cache_line(np.ones(elements)), align_to_cache_line(np.zeros(elements))
        found |= {
            f"{MARK}{place} {way}": bind((a, a), out)
            for place in on_cpu
            for way, bind in zip(("plain", "streaming"), _copies(place), strict=True)
        }
    if GPU in places:
        from kernels import torch_references  # seconds to import

        found |= {f"{MARK}{GPU} {way}": call for way, call in torch_references.device_copies(elements).items()}
    return found


def bandwidth(values: Values, moved_bytes: int, place: str) -> float | None:
    """Return the bytes a second of the best copy at a place, for ALL also of those on one thread; None without any."""
    starts = tuple(MARK + each for each in ((ONE, ALL) if place == ALL else (place,)))
    elements = max(1, moved_bytes // PAIR)
    return max((PAIR * elements / median(own) for name, own in values.items() if name.startswith(starts)), default=None)


BASELINES = ("python", "numpy", "c", "torch")
"""Implementations that others are compared with: parallel ones and those on a GPU with the baseline's form of the same
kind, if there is one."""
END_TO_END = " end to end"
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Contender:
    """An implementation, and what came of building it."""

    implementation: Implementation
    bind: Bind | None = None
    host_bind: Bind | None = None
    error: float = 0.0
    """The largest relative error in the checks."""
    fault: str = ""
    """Why it is not timed: `skipped: ...` or `FAIL: ...`."""
    compile_milliseconds: float | None = None
    """Time to build it and call it once."""


def selected_implementations(kernel: Kernel, implementations: Sequence[str] | None) -> list[Implementation]:
    """Return the implementations of a kernel that are asked for; None: all."""
    return [each for each in kernel.implementations if implementations is None or each.name in implementations]


def check_implementations(settings: Settings) -> None:
    """Check the implementations that are asked for. UserError: none of the kernels has one of them."""
    known = dict.fromkeys(each.name for name in settings.kernels for each in KERNELS[name].implementations)
    for name in settings.implementations or ():
        if name not in known:
            raise invalid("implementations", f"{name!r} is not known: choose from {', '.join(known)}")


def measure(
    name: str, sizes: Sequence[int], implementations: Sequence[str] | None, seed: int, file: Path | None = None
) -> list[Row]:
    """Return all rows of the kernel of that name: what a Ray task does. file: to write each to as soon as it is there,
    as a line of JSON."""
    found = []
    for row in rows(KERNELS[name], sizes, implementations, seed):
        found.append(row)
        if file is not None:
            with file.open("a", encoding="utf-8") as lines:
                lines.write(f"{json.dumps(row)}\n")
    return found


def rows(kernel: Kernel, sizes: Sequence[int], implementations: Sequence[str] | None, seed: int) -> Iterator[Row]:
    """Yield a row for each size and each implementation that is asked for; None: all."""
    numba.set_num_threads(THREADS)
    contenders = [
        build_and_check(kernel, implementation, seed)
        for implementation in selected_implementations(kernel, implementations)
    ]
    for size in sizes if kernel.sized else (1,):
        yield from time_contenders(kernel, size, contenders, seed)


def build_and_check(kernel: Kernel, implementation: Implementation, seed: int) -> Contender:
    """Compile an implementation, call it once, and check it against the reference; failures go to `fault`."""
    first, output = kernel.arrays(1, seed)
    made = Contender(implementation=implementation)
    try:
        began = time.perf_counter()
        bind = implementation.build()
        bind(first, output).result()
        compiled = time.perf_counter() - began
        host_bind = implementation.end_to_end() if implementation.end_to_end else None
        errors = [verify.check(kernel, implementation, each, seed) for each in (bind, host_bind) if each]
    except UnavailableError as error:
        return replace(made, fault=f"skipped: {error}")
    except Exception as error:  # whatever a wrong implementation raises, it is a row
        return replace(made, fault=failure(error))
    return replace(made, bind=bind, host_bind=host_bind, error=max(errors), compile_milliseconds=1e3 * compiled)


def failure(error: Exception) -> str:
    """Return the fault that an error stands for, in one line."""
    return f"FAIL: {' '.join(str(error).split()) or type(error).__name__}"


def check_at_size(kernel: Kernel, contender: Contender, size: int, inputs: Inputs) -> Contender:
    """Return the contender, with a fault where it is not to be timed at this size."""
    largest = contender.implementation.largest
    if contender.fault or contender.bind is None:
        return contender
    if largest is not None and size > largest:
        return replace(contender, fault=f"skipped: too slow above {largest:,} {kernel.unit}")
    try:
        error = verify.check_inputs(kernel, contender.implementation, contender.bind, inputs)
    except Exception as wrong:
        return replace(contender, fault=failure(wrong))
    return replace(contender, error=error if contender.implementation.random else max(contender.error, error))


def time_contenders(kernel: Kernel, size: int, contenders: Sequence[Contender], seed: int) -> Iterator[Row]:
    """Yield the rows of one size. All contenders get the same inputs, and the same array for their output."""
    inputs, output = kernel.arrays(size, seed)
    checked = [check_at_size(kernel, contender, size, inputs) for contender in contenders]
    calls: dict[str, Call] = {}
    for contender in checked:
        name = contender.implementation.name
        for bind, ending in ((contender.bind, ""), (contender.host_bind, END_TO_END)):
            if bind and not contender.fault:
                calls[name + ending] = bind(inputs, output)
    elements = inputs[0].size if inputs and isinstance(inputs[0], np.ndarray) else size
    moved = round(kernel.bytes_per_element * elements)
    if calls and moved:
        calls |= peak_contenders(moved, {peak_place(each.implementation) for each in checked if not each.fault})
    values, undisturbed = timing.time_undisturbed(calls) if calls else ({}, True)
    for contender in checked:
        row = _fixed(kernel, size, inputs, contender)
        row |= {"bytes": moved, "flops": round(kernel.flops_per_element * elements)}
        if not contender.fault:
            row |= _figures(kernel, contender.implementation, values, elements, moved)
            disturbed = "" if undisturbed else f"others took over {timing.CORES_TAKEN} cores"
            spread = "spread" if row["spread"] > timing.LARGEST_SPREAD else ""
            why = ", ".join(filter(None, (disturbed, spread)))
            row |= {"unstable": bool(why)} | ({"why_unstable": f"unstable: {why}"} if why else {})
        yield row


def peak_place(implementation: Implementation) -> str:
    """Return where the copy runs that an implementation is compared with."""
    return GPU if implementation.device == "gpu" else ALL if implementation.parallel else ONE


def _fixed(kernel: Kernel, size: int, inputs: Inputs, contender: Contender) -> Row:
    """Return what a row says before anything is timed."""
    implementation = contender.implementation
    on_gpu = implementation.device == "gpu"
    failed = contender.fault.startswith("FAIL")
    correct = "FAIL" if failed else None if contender.fault else contender.error or "exact"
    return {
        "kernel": kernel.name,
        "implementation": implementation.name,
        "size": size,
        "shape": [list(each.shape) for each in inputs if isinstance(each, np.ndarray)],
        "dtype": kernel.dtype,
        "device": ("no GPU" if contender.fault and not failed else cuda.device_name()) if on_gpu else cpu_name(),
        "threads": None if on_gpu else THREADS if implementation.parallel else 1,
        "correct": correct,
        "status": contender.fault or "timed",
        "compile_milliseconds": contender.compile_milliseconds,
        "median_seconds": None,
        "published_seconds": published_times().get((kernel.name, implementation.name, False)),
        "published_end_to_end_seconds": published_times().get((kernel.name, implementation.name, True)),
    }


def _figures(kernel: Kernel, implementation: Implementation, values: Values, elements: int, moved: int) -> Row:
    """Return what the timing says of one implementation; the spread is that of its form whose values spread more."""
    own = values[implementation.name]
    seconds = median(own)
    best = bandwidth(values, moved, peak_place(implementation))
    host = values.get(implementation.name + END_TO_END)
    return {
        "median_seconds": seconds,
        "end_to_end_seconds": median(host) if host else None,
        "spread": max(map(timing.spread, filter(None, (own, host)))),
        "values_seconds": own,
        "unit": kernel.unit,
        "per_second": elements / seconds,
        "gigabytes_per_second": moved / seconds / 1e9 if moved else None,
        "peak_gigabytes_per_second": best / 1e9 if best else None,
        "share_of_peak": moved / seconds / best if best else None,
        "ratios": _ratios(implementation, values),
    }


def _ratios(implementation: Implementation, values: Values) -> dict[str, tuple[float, float, float]]:
    """Return how many times as fast as each baseline an implementation is, with the 95 % interval."""
    found = {}
    for baseline in BASELINES:
        alike = "-cuda" if implementation.device == "gpu" else "-parallel" if implementation.parallel else ""
        name = baseline + alike if baseline + alike in values else baseline
        if name in values and name != implementation.name:
            found[name] = timing.ratio(values[name], values[implementation.name])
    return found


TIMES_CACHES = 4
"""How many times as large as the last caches the arrays of the copies on the CPU together are."""


def measure_peaks() -> dict[str, dict[str, Any]] | None:
    """Measure the peaks of the CPU and, where there is one, the GPU, by their names. None where other processes
    disturbed each try.

    Of a device: `bytes_per_second`, read and written by a copy, and `flops_per_second`, of matrix products, by
    precision; both by threads of the process that drives it, which for a GPU is one.

    It changes switches of torch and of the C library, so a process that times anything else must not call it.
    """
    for _ in range(timing.TRIES):
        watch = Watch()
        found = _peaks()
        if not timing.is_disturbed(watch):
            return found
    return None


def _peaks() -> dict[str, dict[str, Any]]:
    from kernels import torch_references  # seconds to import

    moved, gpu = min(TIMES_CACHES * last_cache_bytes(), memory_bytes() // MEMORY_SHARE), torch_references.gpu_name()
    on_gpu = 0 if gpu is None else torch_references.gpu_memory_bytes() // MEMORY_SHARE  # a launch is short to it
    values = timing.in_turns(peak_contenders(moved, (ONE, ALL)) | peak_contenders(on_gpu, (GPU,)))

    def peaks(device: str, places: Mapping[int, str], moved: int) -> dict[str, Any]:
        rates = {threads: bandwidth(values, moved, place) for threads, place in places.items()}
        return {
            "bytes_per_second": {threads: rate for threads, rate in rates.items() if rate is not None},
            "flops_per_second": torch_references.products(device, list(places)),
        }

    found = {cpu_name(): peaks("cpu", {1: ONE, THREADS: ALL}, moved)}
    if gpu is not None:
        found[gpu] = peaks("cuda", {1: GPU}, on_gpu)
    return found
