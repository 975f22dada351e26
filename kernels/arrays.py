"""Kernels on arrays: copy, triad, addition and hypotenuse, each by one formula in all implementations; sums over an
array, which agree within rounding, as each implementation has its own order of additions; and kernels on one number,
which show what a call costs, where compiled code need not win.
"""

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit, prange, types, vectorize
from numpy.typing import NDArray

from kernels import cuda
from kernels.kernel import (
    LANES,
    LINE,
    VECTOR_IN,
    VECTOR_OUT,
    Bind,
    Combine,
    Implementation,
    Inputs,
    Kernel,
    bind_on_lists,
    bind_returning,
    bind_with_output,
    fence,
    square_root,
    streaming_store,
)
from kernels.references import c_function, c_loop

SCALE = 3.0
SLOW_ABOVE = 1_000_000
SIGNATURE = types.void(VECTOR_IN, VECTOR_IN, VECTOR_OUT)
TWO_FLOATS = types.float64(types.float64, types.float64)
SPECIALS = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, np.inf, 1e300])


@dataclass(frozen=True, kw_only=True)
class Formula:
    """One element of the output as a function of the elements a and b of the inputs, in four forms of the same."""

    name: str
    arrays: int
    """Number of arrays that are read and written, of 8 bytes an element."""
    flops: int
    """FLOPs of an element."""
    scalar: Callable[[float, float], float]
    numpy: Callable[[NDArray[Any], NDArray[Any], NDArray[Any]], object]
    python: Callable[[list[float], list[float]], list[float]]
    lanes: Combine
    tolerance: float = 0.0


def _triad_numpy(a: NDArray[Any], b: NDArray[Any], out: NDArray[Any]) -> None:
    np.multiply(b, SCALE, out)
    np.add(a, out, out)


def _hypotenuse_numpy(a: NDArray[Any], b: NDArray[Any], out: NDArray[Any]) -> None:
    np.multiply(a, a, out)
    np.sqrt(np.add(out, b * b, out), out)


def _hypotenuse_lanes(builder: Any, vector: Any, a: Any, b: Any) -> Any:
    return square_root(builder, vector, builder.fadd(builder.fmul(a, a), builder.fmul(b, b)))


ADD = Formula(
    name="add", arrays=3, flops=1, scalar=lambda a, b: a + b, numpy=lambda a, b, out: np.add(a, b, out),
    python=lambda a, b: [x + y for x, y in zip(a, b, strict=True)], lanes=lambda builder, _, a, b: builder.fadd(a, b),
)  # fmt: skip
COPY = Formula(
    name="copy", arrays=2, flops=0, scalar=lambda a, b: a, numpy=lambda a, b, out: np.copyto(out, a),
    python=lambda a, b: a[:], lanes=lambda builder, _, a, b: a,
)  # fmt: skip
TRIAD = Formula(
    name="triad", arrays=3, flops=2, scalar=lambda a, b: a + SCALE * b, numpy=_triad_numpy,
    python=lambda a, b: [x + SCALE * y for x, y in zip(a, b, strict=True)], tolerance=1e-15,
    lanes=lambda builder, vector, a, b: builder.fadd(a, builder.fmul(b, vector([SCALE] * LANES))),
)  # fmt: skip
HYPOTENUSE = Formula(
    name="hypotenuse", arrays=3, flops=4, scalar=lambda a, b: math.sqrt(a * a + b * b), numpy=_hypotenuse_numpy,
    python=lambda a, b: [math.sqrt(x * x + y * y) for x, y in zip(a, b, strict=True)],
    lanes=_hypotenuse_lanes, tolerance=1e-15,
)  # fmt: skip


def numba_loop(formula: Formula, *, parallel: bool) -> Bind:
    """Compile a loop over the elements, on one core or on all."""
    element = njit(formula.scalar)

    def loop(a, b, out):  # type: ignore[no-untyped-def]
        for i in prange(out.size):
            out[i] = element(a[i], b[i])

    return bind_with_output(njit(SIGNATURE, parallel=parallel)(loop))


def numba_ufunc(formula: Formula, target: str) -> Bind:
    """Compile a NumPy ufunc; target: "cpu" or "parallel"."""
    return bind_with_output(vectorize([TWO_FLOATS], target=target)(formula.scalar))


def numba_streaming(formula: Formula, *, parallel: bool) -> Bind:
    """Compile a loop over cache lines with streaming stores; elements before the first whole line and after the last
    one are stored plainly."""
    element, store = njit(formula.scalar), streaming_store(formula.lanes)

    def loop(a, b, out):  # type: ignore[no-untyped-def]
        head = min(out.size, (-np.int64(out.ctypes.data) % LINE) // 8)
        lines = (out.size - head) // LANES
        for i in range(head):
            out[i] = element(a[i], b[i])
        for line in prange(lines):
            store(out, a, b, head + np.int64(line) * LANES)  # an unsigned line would make it a float
        for i in range(head + lines * LANES, out.size):
            out[i] = element(a[i], b[i])
        fence()

    return bind_with_output(njit(SIGNATURE, parallel=parallel)(loop))


def on_cpu(formula: Formula) -> list[Implementation]:
    """Return all implementations of a formula that need no GPU."""
    return [
        Implementation(name="python", build=lambda: bind_on_lists(formula.python), largest=SLOW_ABOVE),
        Implementation(name="numpy", build=lambda: bind_with_output(formula.numpy)),
        Implementation(name="njit", build=lambda: numba_loop(formula, parallel=False)),
        Implementation(name="njit-parallel", build=lambda: numba_loop(formula, parallel=True), parallel=True),
        Implementation(name="vectorize", build=lambda: numba_ufunc(formula, "cpu")),
        Implementation(name="vectorize-parallel", build=lambda: numba_ufunc(formula, "parallel"), parallel=True),
        Implementation(name="streaming", build=lambda: numba_streaming(formula, parallel=False)),
        Implementation(name="streaming-parallel", build=lambda: numba_streaming(formula, parallel=True), parallel=True),
        Implementation(name="c", build=lambda: c_loop(formula.name, arrays=3)),
        Implementation(name="c-parallel", build=lambda: c_loop(f"{formula.name}_parallel", arrays=3), parallel=True),
        Implementation(name="c-streaming", build=lambda: c_loop(f"{formula.name}_streaming", arrays=3)),
    ]


def _inputs(size: int, random: np.random.Generator) -> Inputs:
    return random.random(size), random.random(size)


def special(inputs: Inputs) -> Inputs:
    """Return inputs with NaN, infinities and zeros in every pairing; the sign of a zero does not count."""
    size = inputs[0].size
    return np.resize(SPECIALS, size), np.resize(np.repeat(SPECIALS, SPECIALS.size), size)


def _kernel(name: str, formula: Formula, on_gpu: Sequence[Implementation], *others: Implementation) -> Kernel:
    def reference(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
        out = np.empty(a.shape)
        formula.numpy(a, b, out)
        return out

    return Kernel(
        name=name, dtype="float64", inputs=_inputs, reference=reference, output=lambda a, b: np.empty(a.shape),
        tolerance=formula.tolerance, bytes_per_element=8 * formula.arrays, flops_per_element=formula.flops,
        special=special,
        implementations=[*on_cpu(formula), *others, *on_gpu],
    )  # fmt: skip


REORDERED = {"reassoc"}
"""The LLVM fast-math flag by which additions are vectorized; NaN and infinities stay as they are."""


def numba_sum(*, parallel: bool) -> Bind:
    """Compile a loop that adds up an array."""

    def total(a):  # type: ignore[no-untyped-def]
        found = 0.0
        for i in prange(a.size):
            found += a[i]
        return found

    return bind_returning(njit(types.float64(VECTOR_IN), parallel=parallel, fastmath=REORDERED)(total))


def exact_sum(a: NDArray[Any]) -> float:
    """Return the sum, rounded once. NaN for NaN, and for infinities of both signs, which math.fsum refuses."""
    return math.fsum(a) if np.isfinite(a).all() else float(np.sum(a))


def scaled_hypotenuse(x, y):  # type: ignore[no-untyped-def]
    """Return the hypotenuse in the published report's form: scaled by the larger side, so that no square overflows. For
    finite numbers only."""
    x, y = abs(x), abs(y)
    small, large = min(x, y), max(x, y)
    if large == 0:
        return large
    small = small / large
    return large * math.sqrt(1 + small * small)


def _two_numbers(size: int, random: np.random.Generator) -> Inputs:
    x, y = random.uniform(-1, 1, 2)
    return float(x), float(y)


def _c_scalar(name: str) -> Any:
    return lambda: bind_returning(c_function(name, ctypes.c_double, ctypes.c_double, ctypes.c_double))


KERNELS = (
    Kernel(
        name="hypotenuse_scalar", dtype="float64", inputs=_two_numbers, reference=math.hypot, tolerance=1e-15,
        unit="calls", sized=False,
        implementations=[
            Implementation(name="python", build=lambda: bind_returning(scaled_hypotenuse)),
            Implementation(name="builtin", build=lambda: bind_returning(math.hypot)),
            Implementation(name="numpy", build=lambda: bind_returning(np.hypot)),
            Implementation(name="njit", build=lambda: bind_returning(njit(TWO_FLOATS)(scaled_hypotenuse))),
            Implementation(name="c", build=_c_scalar("scaled_hypotenuse")),
        ],
    ),
    Kernel(
        name="scalar_add", dtype="float64", inputs=_two_numbers, reference=ADD.scalar,
        unit="calls", sized=False, special=lambda inputs: (math.inf, math.nan),
        implementations=[
            Implementation(name="python", build=lambda: bind_returning(ADD.scalar)),
            Implementation(name="numpy", build=lambda: bind_returning(np.add)),
            Implementation(name="njit", build=lambda: bind_returning(njit(TWO_FLOATS)(ADD.scalar))),
            Implementation(name="c", build=_c_scalar("add_scalars")),
            cuda.scalar_add(),
        ],
    ),
    Kernel(
        name="empty_launch", dtype="", inputs=lambda size, random: (), reference=lambda: None, unit="calls",
        sized=False,
        implementations=[
            Implementation(name="python", build=lambda: bind_returning(lambda: None)),
            Implementation(name="njit", build=lambda: bind_returning(njit(types.void())(lambda: None))),
            cuda.empty_launch(),
        ],
    ),
    _kernel("copy", COPY, cuda.elementwise(COPY.scalar)),
    _kernel("vector_add", ADD, cuda.elementwise(ADD.scalar)),
    _kernel("triad", TRIAD, cuda.elementwise(TRIAD.scalar)),
    _kernel(
        "hypotenuse", HYPOTENUSE, cuda.elementwise(HYPOTENUSE.scalar),
        # np.hypot scales against overflow, and hypot(inf, nan) is inf: as the plain form only for finite squares
        Implementation(name="builtin", build=lambda: bind_with_output(np.hypot), only_finite=True),
    ),
    _kernel("grid_stride_add", ADD, [cuda.grid_stride(ADD.scalar)]),
    Kernel(
        name="grid_stride_sum", dtype="float64", inputs=lambda size, random: (random.random(size),),
        reference=exact_sum, tolerance=1e-12, bytes_per_element=8, flops_per_element=1,
        special=lambda inputs: (np.resize(SPECIALS, inputs[0].size),),
        implementations=[
            Implementation(name="python", build=lambda: bind_on_lists(sum), largest=SLOW_ABOVE),
            Implementation(name="numpy", build=lambda: bind_returning(np.sum)),
            Implementation(name="njit", build=lambda: numba_sum(parallel=False)),
            Implementation(name="njit-parallel", build=lambda: numba_sum(parallel=True), parallel=True),
            Implementation(name="c", build=lambda: c_loop("sum", arrays=1, result=ctypes.c_double)),
            Implementation(
                name="c-parallel", build=lambda: c_loop("sum_parallel", arrays=1, result=ctypes.c_double), parallel=True
            ),
            cuda.shared_sum(),
        ],
    ),
)  # fmt: skip
