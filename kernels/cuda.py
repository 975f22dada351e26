"""Kernels on a GPU with numba; only this file imports numba.cuda. Nothing is compiled before there is a device.

With NUMBA_ENABLE_CUDASIM=1 everything but the ufuncs runs on the CPU, for tests.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from types import FunctionType
from typing import Any

import numba
import numpy as np
from numba import types

try:
    from numba import cuda
except ImportError:  # numba-cuda without the bindings that it needs
    cuda = None  # type: ignore[assignment]

from kernels.kernel import Bind, Call, Implementation, Inputs, Kernel, UnavailableError

THREADS = 128
MOST_BLOCKS = 4096
CHUNKS = 4
"""Number of streams that share a transfer."""
Launch = Callable[..., object]
"""Launches a kernel on device arrays and numbers, the output last; it may return before the device is done."""
Way = Callable[[Launch], Bind]
"""How a kernel gets its data, such as `bind_resident`."""


def require_device() -> None:
    """Check that there is a device. UnavailableError: there is none."""
    if cuda is None or not cuda.is_available():
        raise UnavailableError("no CUDA device")


def simulated() -> bool:
    """Whether numba runs kernels on the CPU, for tests."""
    return bool(numba.config.ENABLE_CUDASIM)  # type: ignore[attr-defined]


def device_name() -> str:
    """Return the name of the device that kernels run on, also where that makes no context."""
    return "CUDA simulator" if simulated() else str(cuda.gpus[0].name)


def blocks_for(elements: int) -> int:
    """Return the blocks of a launch, at least one; with more elements than threads each thread strides over the
    grid."""
    return min(MOST_BLOCKS, max(1, math.ceil(elements / THREADS)))


def to_device(value: Any) -> Any:
    """Copy an array to the device, without gaps; a number stays as it is."""
    return cuda.to_device(np.ascontiguousarray(value)) if isinstance(value, np.ndarray) else value


def bind_resident(launch: Launch) -> Bind:
    """Bind a launch with data on the device before and after; the time is until the device is done."""

    def bind(inputs: Inputs, output: Any) -> Call:
        placed = to_device(output)

        def run(*arguments: Any) -> None:
            launch(*arguments)
            cuda.synchronize()

        arguments = (*map(to_device, inputs), placed)
        return Call(function=run, arguments=arguments, read=lambda _: placed.copy_to_host())

    return bind


def bind_through_host(launch: Launch) -> Bind:
    """Bind a launch so that host arrays are copied to the device, and the output back, within the time."""

    def bind(inputs: Inputs, output: Any) -> Call:
        def run(*arguments: Any) -> None:
            placed = cuda.device_array_like(output)
            launch(*map(to_device, arguments), placed)
            placed.copy_to_host(output)

        return Call(function=run, arguments=inputs, read=lambda _: output)

    return bind


def total_binders(dtype: type[np.generic], read: Callable[[Any], Any]) -> tuple[Way, Way]:
    """Return the forms of `bind_resident` and `bind_through_host` for a kernel that adds to an array of one number; the
    calls of one value add to one total."""
    none = np.zeros(1, dtype)

    def resident(launch: Launch) -> Bind:
        def bind(inputs: Inputs, output: Any) -> Call:
            call = bind_resident(launch)(inputs, none)
            reset = partial(call.arguments[-1].copy_to_device, none)
            return replace(call, before=reset, read=lambda result: read(call.read(result)[0]))

        return bind

    def through_host(launch: Launch) -> Bind:
        def run(*arguments: Any) -> Any:
            total = cuda.to_device(none)
            launch(*map(to_device, arguments), total)
            return read(total.copy_to_host()[0])

        return lambda inputs, output: Call(function=run, arguments=inputs, read=lambda result: result)

    return resident, through_host


def gpu_implementation(
    name: str, make: Callable[[], Launch], bind: Way = bind_resident, through: Way = bind_through_host
) -> Implementation:
    """Return an implementation on the GPU, both with data there and end to end."""

    def build(way: Way) -> Callable[[], Bind]:
        def built() -> Bind:
            require_device()
            return way(make())

        return built

    return Implementation(name=name, device="gpu", build=build(bind), end_to_end=build(through))


def elementwise(formula: Callable[..., Any]) -> list[Implementation]:
    """Return implementations of out[i] = formula(a[i], b[i]): with a thread for each element, and as a CUDA ufunc."""
    return [
        gpu_implementation("cuda", lambda: per_thread_launch(formula)),
        gpu_implementation("cuda-vectorize", lambda: ufunc_launch(formula)),
    ]


def per_thread_launch(formula: Callable[..., Any]) -> Launch:
    """Compile a kernel with a thread for each element and return its launch."""
    element = cuda.jit(device=True)(formula)

    @cuda.jit
    def kernel(a, b, out):  # type: ignore[no-untyped-def]
        i = cuda.grid(1)
        if i < out.size:
            out[i] = element(a[i], b[i])

    return lambda a, b, out: kernel[max(1, math.ceil(out.size / THREADS)), THREADS](a, b, out)


def ufunc_launch(formula: Callable[..., Any]) -> Launch:
    """Compile a ufunc and return its launch. UnavailableError: the simulator has no ufuncs."""
    if simulated():
        raise UnavailableError("the CUDA simulator has no ufuncs")
    assert isinstance(formula, FunctionType), "numba compiles no other"
    named = FunctionType(formula.__code__, formula.__globals__, "formula")  # numba writes a function of this name
    made = numba.vectorize([types.float64(types.float64, types.float64)], target="cuda")(named)
    return lambda a, b, out: made(a, b, out=out)


def grid_stride(formula: Callable[..., Any]) -> Implementation:
    """Return the implementation of out[i] = formula(a[i], b[i]) with each thread in strides of the whole grid."""

    def make() -> Launch:
        element = cuda.jit(device=True)(formula)

        @cuda.jit
        def kernel(a, b, out):  # type: ignore[no-untyped-def]
            for i in range(cuda.grid(1), out.size, cuda.gridsize(1)):
                out[i] = element(a[i], b[i])

        return lambda a, b, out: kernel[blocks_for(out.size), THREADS](a, b, out)

    return gpu_implementation("cuda-grid-stride", make)


def block_reduction(joined: Callable[..., Any]) -> Any:
    """Compile a device function (shared, value) that reduces the values of a block's threads by `joined`, for all of
    them; shared: an array of THREADS."""
    join = cuda.jit(device=True)(joined)

    @cuda.jit(device=True)
    def reduced(shared, value):  # type: ignore[no-untyped-def]
        thread = cuda.threadIdx.x
        cuda.syncthreads()
        shared[thread] = value
        cuda.syncthreads()
        half = THREADS // 2
        while half > 0:
            if thread < half:
                shared[thread] = join(shared[thread], shared[thread + half])
            cuda.syncthreads()
            half //= 2
        return shared[0]

    return reduced


def larger(x, y):  # type: ignore[no-untyped-def]
    """Return the larger of two, for `block_reduction`."""
    return y if y > x else x


def added(x, y):  # type: ignore[no-untyped-def]
    """Return the sum of two, for `block_reduction`."""
    return x + y


def shared_sum() -> Implementation:
    """Return the implementation of a sum: each block adds up its threads' totals in shared memory, then to the
    result."""

    def make() -> Launch:
        total = block_reduction(added)

        @cuda.jit
        def kernel(a, out):  # type: ignore[no-untyped-def]
            shared = cuda.shared.array(THREADS, types.float64)
            found = 0.0
            for i in range(cuda.grid(1), a.size, cuda.gridsize(1)):
                found += a[i]
            found = total(shared, found)
            if cuda.threadIdx.x == 0:
                cuda.atomic.add(out, 0, found)

        return lambda a, out: kernel[blocks_for(a.size), THREADS](a, out)

    return gpu_implementation("cuda-shared", make, *total_binders(np.float64, float))


def count(is_hit: Callable[..., Any]) -> Implementation:
    """Return the implementation of a count of samples that are hits; as it adds integers, their order does not
    matter."""

    def make() -> Launch:
        test, one, none = cuda.jit(device=True)(is_hit), np.uint64(1), np.uint64(0)

        @cuda.jit
        def kernel(seed, samples, out):  # type: ignore[no-untyped-def]
            found = none
            for sample in range(cuda.grid(1), samples, cuda.gridsize(1)):
                if test(seed, np.uint64(sample)):
                    found += one
            cuda.atomic.add(out, 0, found)

        return lambda seed, samples, out: kernel[blocks_for(samples), THREADS](np.uint64(seed), samples, out)

    return gpu_implementation("cuda-grid-stride", make, *total_binders(np.uint64, int))


def scalar_add() -> Implementation:
    """Return the implementation of an addition of two numbers by one thread: what a launch takes."""

    def make() -> Launch:
        @cuda.jit
        def kernel(x, y, out):  # type: ignore[no-untyped-def]
            out[0] = x + y

        return lambda x, y, out: kernel[1, 1](x, y, out)

    return gpu_implementation("cuda", make, *total_binders(np.float64, float))


def empty_launch() -> Implementation:
    """Return the implementation of an empty kernel: what a launch costs until the device is done."""

    def build() -> Bind:
        require_device()

        @cuda.jit
        def kernel():  # type: ignore[no-untyped-def]
            pass

        def run() -> None:
            kernel[1, 1]()
            cuda.synchronize()

        return lambda inputs, output: Call(function=run, arguments=(), read=lambda result: result)

    return Implementation(name="cuda", device="gpu", build=build)


def transfers() -> list[Implementation]:
    """Return copies from host to device: from pageable memory, from pinned memory, and from pinned in several
    streams."""

    def implementation(name: str, *, pinned: bool, chunks: int) -> Implementation:
        def build() -> Bind:
            require_device()
            streams = [cuda.stream() for _ in range(chunks)]

            def bind(inputs: Inputs, output: Any) -> Call:
                given = inputs[0]
                pins = pinned and given.size > 0  # CUDA allocates no empty array
                host = cuda.pinned_array(given.shape, given.dtype) if pins else np.empty_like(given)
                host[:] = given
                device = to_device(output)
                bounds = [host.size * chunk // chunks for chunk in range(chunks + 1)]

                def run() -> None:
                    for stream, (first, last) in zip(streams, pairwise(bounds), strict=True):
                        if last > first:
                            device[first:last].copy_to_device(host[first:last], stream=stream)
                    cuda.synchronize()

                return Call(function=run, arguments=(), read=lambda _: device.copy_to_host())

            return bind

        return Implementation(name=name, device="gpu", build=build)

    return [
        implementation("cuda-pageable", pinned=False, chunks=1),
        implementation("cuda-pinned", pinned=True, chunks=1),
        implementation("cuda-streams", pinned=True, chunks=CHUNKS),
    ]


KERNELS = (
    Kernel(
        name="transfers", dtype="float64", inputs=lambda size, random: (random.random(size),),
        reference=lambda a: a, output=np.empty_like, bytes_per_element=8, implementations=transfers(),
    ),
)  # fmt: skip
