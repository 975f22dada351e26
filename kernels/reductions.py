"""Sums over an array: the order of the additions is each implementation's own, so they agree within rounding."""

import math
from typing import Any

import numpy as np
from numba import njit, prange, types
from numpy.typing import NDArray

from kernels import cuda
from kernels.elementwise import SLOW_ABOVE, SPECIALS
from kernels.kernel import VECTOR_IN, Bind, Implementation, Kernel, on_lists, returned
from kernels.references import c_sum

REORDERED = {"reassoc"}
"""Of LLVM's fast-math flags the one that lets additions go into lanes; NaN and infinities stay what they are."""


def numba_sum(*, parallel: bool) -> Bind:
    """A loop with one total."""

    def total(a):  # type: ignore[no-untyped-def]
        found = 0.0
        for i in prange(a.size):
            found += a[i]
        return found

    return returned(njit(types.float64(VECTOR_IN), parallel=parallel, fastmath=REORDERED)(total))


def exact_sum(a: NDArray[Any]) -> float:
    """Rounded once. NaN for NaN, and for infinities of both signs, which math.fsum refuses."""
    return math.fsum(a) if np.isfinite(a).all() else float(np.sum(a))


KERNELS = (
    Kernel(
        name="grid_stride_sum", dtype="float64", inputs=lambda size, random: (random.random(size),),
        reference=exact_sum, tolerance=1e-12, bytes_per_element=8, flops_per_element=1,
        special=lambda inputs: (np.resize(SPECIALS, inputs[0].size),),
        implementations=[
            Implementation(name="python", build=lambda: on_lists(sum), largest=SLOW_ABOVE),
            Implementation(name="numpy", build=lambda: returned(np.sum)),
            Implementation(name="njit", build=lambda: numba_sum(parallel=False)),
            Implementation(name="njit-parallel", build=lambda: numba_sum(parallel=True), parallel=True),
            Implementation(name="c", build=lambda: c_sum("sum")),
            Implementation(name="c-parallel", build=lambda: c_sum("sum_parallel"), parallel=True),
            cuda.shared_sum(),
        ],
    ),
)  # fmt: skip
