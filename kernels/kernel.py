"""Kernels and implementations of them, and how numba compiles here: types, threads, streaming stores."""

import ctypes
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, files
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from tune.machine import core_count

Inputs = tuple[Any, ...]
LINE = 64
"""Bytes of a cache line, and of a vector of AVX-512."""


class UnavailableError(Exception):
    """An implementation cannot run here; the text says why."""


class RefusedError(Exception):
    """An implementation does not take such inputs, and says so instead of computing something else."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """A function bound to its arguments, ready to be timed; `read` turns what it returns into the result."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    read: Callable[[Any], Any]
    before: Callable[[], object] | None = None
    """Called before each timed value, and not timed."""

    def result(self) -> Any:
        """Call once and return the result."""
        if self.before:
            self.before()
        return self.read(self.function(*self.arguments))


Bind = Callable[[Inputs, NDArray[Any] | None], Call]
"""Makes a call of inputs and, where the kernel has one, an output. RefusedError: it does not take such inputs."""


@dataclass(frozen=True, kw_only=True)
class Implementation:
    """One way to compute a kernel. `build` compiles it, or raises UnavailableError."""

    name: str
    build: Callable[[], Bind]
    parallel: bool = False
    """Whether it uses all cores; otherwise one thread."""
    device: str = "cpu"
    end_to_end: Callable[[], Bind] | None = None
    """Builds the same from host arrays to host arrays, where that of `build` has its data on a GPU."""
    largest: int | None = None
    """Largest size to time, as larger ones would take minutes; None: any."""
    only_finite: bool = False
    """Whether it treats NaN and infinities otherwise than the kernel does."""
    random: bool = False
    """Whether it draws other random numbers than the kernel; it is then checked to be within six standard
    deviations."""


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A function with a reference, and all implementations of it."""

    name: str
    dtype: str
    inputs: Callable[[int, np.random.Generator], Inputs]
    """Size and generator -> random inputs of about so many elements."""
    reference: Callable[..., Any]
    """The slow, obvious form: inputs -> result."""
    implementations: Sequence[Implementation]
    output: Callable[..., NDArray[Any]] | None = None
    """Inputs -> an array for the result; None: the result is returned."""
    tolerance: float = 0.0
    """Largest relative error that is right; 0: every bit must agree."""
    least: float = 0.0
    """Errors are relative to the expected value, or to this where the value is smaller, as after cancellation."""
    expectation: Callable[..., tuple[float, float]] | None = None
    """Inputs -> mean and standard deviation of the result, for implementations with other random numbers."""
    bytes_per_element: float = 0.0
    """Bytes read and written, each once; without what a plain store reads before it writes. 0: not bound by memory."""
    flops_per_element: float = 0.0
    """Additions, multiplications, divisions, comparisons, roots and exponentials of floats, one each."""
    unit: str = "elements"
    sized: bool = True
    """Whether it has sizes; False: a single call."""
    special: Callable[[Inputs], Inputs] | None = None
    """Inputs -> the same with NaN, infinities and signed zeros among them."""

    def arrays(self, size: int, seed: int) -> tuple[Inputs, NDArray[Any] | None]:
        """Return random inputs of about so many elements, and the output; each array begins on a cache line."""
        inputs = self.inputs(size, np.random.default_rng(seed))
        placed = tuple(align_to_cache_line(each) if isinstance(each, np.ndarray) else each for each in inputs)
        return placed, align_to_cache_line(self.output(*inputs)) if self.output else None


def align_to_cache_line(array: NDArray[Any]) -> NDArray[Any]:
    """Return a copy that begins on a cache line, as torch's own tensors do.

    NumPy's arrays begin 16 bytes into a page: every AVX-512 vector then spans two lines, for all contenders but torch.
    """
    room = np.empty(array.nbytes + LINE, np.uint8)
    start = -room.ctypes.data % LINE
    placed = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    placed[...] = array
    return placed


def bind_with_output(function: Callable[..., Any]) -> Bind:
    """Bind a function that takes the inputs and the array for its result."""
    return lambda inputs, output: Call(function=function, arguments=(*inputs, output), read=lambda _: output)


def bind_returning(function: Callable[..., Any]) -> Bind:
    """Bind a function that returns its result."""
    return lambda inputs, output: Call(function=function, arguments=inputs, read=lambda result: result)


def bind_on_lists(function: Callable[..., Any]) -> Bind:
    """Bind a function in pure Python, which gets lists instead of arrays; the conversion is not timed."""
    return lambda inputs, output: Call(
        function=function,
        arguments=tuple(each.tolist() if isinstance(each, np.ndarray) else each for each in inputs),
        read=lambda result: result if output is None else np.asarray(result, output.dtype).reshape(output.shape),
    )


TBB = "libtbb.so.12"


def _load_tbb() -> None:
    """Load Threading Building Blocks from its wheel, if installed: no loader looks there, and numba asks by name."""
    with suppress(PackageNotFoundError, StopIteration, OSError):
        library = next(file for file in files("tbb") or () if file.name == TBB)
        ctypes.CDLL(str(library.locate()))


_load_tbb()
# With OpenMP the loop of a parallel ufunc is called for each element. numba's own work queue does not do that, but now
# and then puts two threads on one core, and takes .2 ms to start where TBB takes a few microseconds.
numba.config.THREADING_LAYER_PRIORITY = ["tbb", "workqueue", "omp"]  # type: ignore[attr-defined]

THREADS = min(core_count(), numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]
"""Threads of every parallel implementation, numba's or not."""

VECTOR_IN = types.Array(types.float64, 1, "C", readonly=True)  # writable arrays fit too: one compilation for both
VECTOR_OUT = types.Array(types.float64, 1, "C")
LANES = LINE // 8
"""Number of float64 in a vector."""

Combine = Callable[[Any, ir.VectorType, Any, Any], Any]
"""LLVM builder, vector type, two vectors of LANES float64 -> their combination."""


def streaming_store(combine: Combine) -> Any:
    """Return store(output, a, b, start) for compiled code, which sets output[start : start + LANES] past the caches.

    `output[start]` must begin a cache line, and all arrays be contiguous float64. A plain store also reads the line
    that it writes, so that an addition moves 4/3 of the bytes that are counted; this one does not.
    """

    @intrinsic
    def store(typing_context, output, a, b, start):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            vector = ir.VectorType(ir.DoubleType(), LANES)

            def pointer(place: int) -> Any:
                array = context.make_array(signature.args[place])(context, builder, arguments[place])
                return builder.bitcast(builder.gep(array.data, [arguments[3]]), vector.as_pointer())

            inputs = [builder.load(pointer(place), align=8) for place in (1, 2)]
            stored = builder.store(combine(builder, vector, *inputs), pointer(0), align=LINE)
            stored.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)]))
            return context.get_dummy_value()

        return types.void(output, a, b, start), generate

    return store


@intrinsic
def fence(typing_context):  # type: ignore[no-untyped-def]
    """Make all streaming stores visible to every core before anything that comes later; for compiled code."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


def square_root(builder: Any, vector: ir.VectorType, value: Any) -> Any:
    """Return the square root of each lane of a vector."""
    function = ir.FunctionType(vector, [vector])
    return builder.call(cgutils.get_or_insert_function(builder.module, function, "llvm.sqrt.v8f64"), [value])
