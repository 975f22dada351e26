"""One kernel: its implementations built, gated and timed; the rows that come out."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numba
import numpy as np

from kernels import gate, gpu, peak, timing
from kernels.compiled import THREADS
from kernels.kernel import Bind, Call, Implementation, Inputs, Kernel, UnavailableError
from kernels.published import published_seconds
from kernels.registry import KERNELS
from kernels.timing import Values
from model.kept_peaks import cpu_name

BASELINES = ("python", "numpy", "c", "torch")
"""What ratios are to; for a parallel implementation and on a GPU to the form that is so too, where there is one."""
END_TO_END = " end to end"
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Contender:
    """An implementation, and what came of building it."""

    implementation: Implementation
    bind: Bind | None = None
    host_bind: Bind | None = None
    error: float = 0.0
    """The largest relative error in the gate."""
    fault: str = ""
    """Why it is not timed: `skipped: ...` or `FAIL: ...`."""
    compile_milliseconds: float | None = None
    """To build it and call it once."""


def measure(name: str, sizes: Sequence[int], implementations: Sequence[str] | None, seed: int) -> list[Row]:
    """All rows of the kernel of that name: what a Ray task does."""
    return list(rows(KERNELS[name], sizes, implementations, seed))


def rows(kernel: Kernel, sizes: Sequence[int], implementations: Sequence[str] | None, seed: int) -> Iterator[Row]:
    """A row for each size and each implementation that is asked for; None: for all."""
    numba.set_num_threads(THREADS)
    asked = [each for each in kernel.implementations if implementations is None or each.name in implementations]
    contenders = [built(kernel, implementation, seed) for implementation in asked]
    for size in sizes if kernel.sized else (1,):
        yield from timed(kernel, size, contenders, seed)


def built(kernel: Kernel, implementation: Implementation, seed: int) -> Contender:
    """Compiled, called once, and held against the reference."""
    first, output = kernel.arrays(1, seed)
    made = Contender(implementation=implementation)
    try:
        began = time.perf_counter()
        bind = implementation.build()
        bind(first, output).result()
        compiled = time.perf_counter() - began
        host_bind = implementation.end_to_end() if implementation.end_to_end else None
        errors = [gate.check(kernel, implementation, each, seed) for each in (bind, host_bind) if each]
    except UnavailableError as error:
        return replace(made, fault=f"skipped: {error}")
    except Exception as error:  # whatever a wrong implementation does, it is a row
        return replace(made, fault=failure(error))
    return replace(made, bind=bind, host_bind=host_bind, error=max(errors), compile_milliseconds=1e3 * compiled)


def failure(error: Exception) -> str:
    """In one line."""
    return f"FAIL: {' '.join(str(error).split()) or type(error).__name__}"


def at_size(kernel: Kernel, contender: Contender, size: int, inputs: Inputs) -> Contender:
    """The contender, with a fault where it is not to be timed at this size."""
    largest = contender.implementation.largest
    if contender.fault or contender.bind is None:
        return contender
    if largest is not None and size > largest:
        return replace(contender, fault=f"skipped: too slow above {largest:,} {kernel.unit}")
    try:
        error = gate.check_inputs(kernel, contender.implementation, contender.bind, inputs)
    except Exception as wrong:
        return replace(contender, fault=failure(wrong))
    return replace(contender, error=error if contender.implementation.random else max(contender.error, error))


def timed(kernel: Kernel, size: int, contenders: Sequence[Contender], seed: int) -> Iterator[Row]:
    """The rows of one size. All contenders get the same inputs, and the same array for their output."""
    inputs, output = kernel.arrays(size, seed)
    checked = [at_size(kernel, contender, size, inputs) for contender in contenders]
    calls: dict[str, Call] = {}
    for contender in checked:
        name = contender.implementation.name
        for bind, ending in ((contender.bind, ""), (contender.host_bind, END_TO_END)):
            if bind and not contender.fault:
                calls[name + ending] = bind(inputs, output)
    elements = inputs[0].size if inputs and isinstance(inputs[0], np.ndarray) else size
    moved = round(kernel.bytes_per_element * elements)
    if calls and moved:
        calls |= peak.contenders(moved, {peak_place(each.implementation) for each in checked if not each.fault})
    values, undisturbed = timing.undisturbed(calls) if calls else ({}, True)
    for contender in checked:
        row = _fixed(kernel, size, inputs, contender)
        row |= {"bytes": moved, "flops": round(kernel.flops_per_element * elements)}
        if not contender.fault:
            row |= _figures(kernel, contender.implementation, values, elements, moved)
            row["unstable"] = not undisturbed or row["spread"] > timing.LARGEST_SPREAD
        yield row


def peak_place(implementation: Implementation) -> str:
    """Where the copy runs that an implementation is held against."""
    return peak.GPU if implementation.device == "gpu" else peak.ALL if implementation.parallel else peak.ONE


def _fixed(kernel: Kernel, size: int, inputs: Inputs, contender: Contender) -> Row:
    """What a row says before anything is timed."""
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
        "device": ("no GPU" if contender.fault else gpu.device_name()) if on_gpu else cpu_name(),
        "threads": None if on_gpu else THREADS if implementation.parallel else 1,
        "correct": correct,
        "status": contender.fault or "timed",
        "compile_milliseconds": contender.compile_milliseconds,
        "median_seconds": None,
        "published_seconds": published_seconds(kernel.name, implementation.name, end_to_end=False),
        "published_end_to_end_seconds": published_seconds(kernel.name, implementation.name, end_to_end=True),
    }


def _figures(kernel: Kernel, implementation: Implementation, values: Values, elements: int, moved: int) -> Row:
    """What the timing says of one implementation."""
    own = values[implementation.name]
    seconds = median(own)
    best = peak.bandwidth(values, moved, peak_place(implementation))
    host = values.get(implementation.name + END_TO_END)
    return {
        "median_seconds": seconds,
        "end_to_end_seconds": median(host) if host else None,
        "spread": timing.spread(own),
        "values_seconds": own,
        "unit": kernel.unit,
        "per_second": elements / seconds,
        "gigabytes_per_second": moved / seconds / 1e9 if moved else None,
        "peak_gigabytes_per_second": best / 1e9 if best else None,
        "share_of_peak": moved / seconds / best if best else None,
        "ratios": _ratios(implementation, values),
    }


def _ratios(implementation: Implementation, values: Values) -> dict[str, tuple[float, float, float]]:
    """How many times as fast as each baseline, with the 95 % interval."""
    found = {}
    for baseline in BASELINES:
        alike = "-cuda" if implementation.device == "gpu" else "-parallel" if implementation.parallel else ""
        name = baseline + alike if baseline + alike in values else baseline
        if name in values and name != implementation.name:
            found[name] = timing.ratio(values[name], values[implementation.name])
    return found
