"""How numba compiles here: the types of arguments, the threads, and stores that go past the caches."""

import ctypes
import os
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, files
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels.kernel import LINE

TBB = "libtbb.so.12"


def _load_tbb() -> None:
    """Threading Building Blocks, where its wheel is there: it lies where no loader looks, and numba asks by name."""
    with suppress(PackageNotFoundError, StopIteration, OSError):
        library = next(file for file in files("tbb") or () if file.name == TBB)
        ctypes.CDLL(str(library.locate()))


_load_tbb()
# OpenMP calls the loop of a parallel ufunc once an element. The work queue, which is part of numba, does not, but puts
# both threads on one core now and then, and takes .2 ms to begin where the first takes a few microseconds.
numba.config.THREADING_LAYER_PRIORITY = ["tbb", "workqueue", "omp"]  # type: ignore[attr-defined]

THREADS = min(len(os.sched_getaffinity(0)), numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]
"""Of every parallel implementation, numba's or not."""

VECTOR_IN = types.Array(types.float64, 1, "C", readonly=True)  # takes what can be written too: one compilation for both
VECTOR_OUT = types.Array(types.float64, 1, "C")
LANES = LINE // 8
"""float64 of a vector."""

Combine = Callable[[Any, ir.VectorType, Any, Any], Any]
"""LLVM builder, vector type, two vectors of LANES float64 -> their combination."""


def streaming_store(combine: Combine) -> Any:
    """For compiled code: store(output, a, b, start) sets output[start : start + LANES] past the caches.

    `output[start]` lies on a cache line, and all arrays are contiguous float64. A plain store reads the line that it
    writes, and so moves 4/3 of what an addition counts; this one does not.
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
    """For compiled code: what was streamed is there for every core before anything that comes later."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


def square_root(builder: Any, vector: ir.VectorType, value: Any) -> Any:
    """Of each lane."""
    function = ir.FunctionType(vector, [vector])
    return builder.call(cgutils.get_or_insert_function(builder.module, function, "llvm.sqrt.v8f64"), [value])
