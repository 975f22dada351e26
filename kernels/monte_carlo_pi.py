"""pi by counting random points in the quarter circle, from numbers that depend on seed and sample alone.

Sample i has the i-th number of splitmix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number
generators"), so that any number of threads, on any device, counts the same hits.
"""

import ctypes
import math
import random as standard_random
from typing import Any

import numpy as np
from numba import njit, prange, types
from numpy.typing import NDArray

from kernels import cuda
from kernels.kernel import Bind, Implementation, Inputs, Kernel, bind_returning
from kernels.references import c_function

ONE = np.uint64(1)
GOLDEN, FIRST, SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)
HIGH, LOW, RADIUS = np.uint64(33), np.uint64(0xFFFFFFFF), np.uint64(1 << 62)
CHUNK = 1 << 14
"""Samples that NumPy counts at a time, so that temporary arrays stay in cache."""
SLOW_ABOVE = 1_000_000
COUNT = types.int64(types.uint64, types.int64)


def hit(seed, sample):  # type: ignore[no-untyped-def]
    """Whether a sample's point lies in the circle; for uint64 numbers or arrays. Coordinates are integers of 31
    bits."""
    z = seed + (sample + ONE) * GOLDEN
    z = (z ^ (z >> SHIFTS[0])) * FIRST
    z = (z ^ (z >> SHIFTS[1])) * SECOND
    z = z ^ (z >> SHIFTS[2])
    x, y = z >> HIGH, (z & LOW) >> ONE
    return x * x + y * y < RADIUS


def count_numpy(seed: int, samples: int) -> int:
    """Count hits with NumPy, chunk by chunk: the reference."""
    start, found = np.uint64(seed), 0
    for first in range(0, samples, CHUNK):
        chunk: NDArray[Any] = np.arange(first, min(samples, first + CHUNK), dtype=np.uint64)
        found += int(np.count_nonzero(hit(start, chunk)))
    return found


def count_random_python(seed: int, samples: int) -> int:
    """Count hits as the published report does, with the standard library's generator."""
    draw, found = standard_random.Random(seed).random, 0
    for _ in range(samples):
        found += draw() ** 2 + draw() ** 2 < 1
    return found


def numba_count(*, parallel: bool) -> Bind:
    """Compile a loop that counts hits."""
    is_hit = njit(hit)

    def count(seed, samples):  # type: ignore[no-untyped-def]
        found = 0
        for sample in prange(samples):
            found += is_hit(seed, np.uint64(sample))
        return found

    return bind_returning(njit(COUNT, parallel=parallel)(count))


def numba_random_count() -> Bind:
    """Compile the published report's form, which draws from numba's Mersenne twister."""

    def count(seed, samples):  # type: ignore[no-untyped-def]
        np.random.seed(seed & LOW)
        found = 0
        for _ in range(samples):
            found += np.random.random() ** 2 + np.random.random() ** 2 < 1
        return found

    return bind_returning(njit(COUNT)(count))


def _c(name: str) -> Any:
    return lambda: bind_returning(c_function(name, ctypes.c_int64, ctypes.c_uint64, ctypes.c_int64))


def _inputs(size: int, random: np.random.Generator) -> Inputs:
    return int(random.integers(1 << 40)), size


def expectation(seed: int, samples: int) -> tuple[float, float]:
    """Return mean and standard deviation of the number of hits of independent samples."""
    inside = math.pi / 4
    return samples * inside, math.sqrt(samples * inside * (1 - inside))


KERNELS = (
    Kernel(
        name="monte_carlo_pi", dtype="uint64", inputs=_inputs, reference=count_numpy, expectation=expectation,
        unit="samples",
        implementations=[
            Implementation(
                name="python", build=lambda: bind_returning(count_random_python), random=True, largest=SLOW_ABOVE
            ),
            Implementation(name="numpy", build=lambda: bind_returning(count_numpy)),
            Implementation(name="njit-random", build=numba_random_count, random=True),
            Implementation(name="njit", build=lambda: numba_count(parallel=False)),
            Implementation(name="njit-parallel", build=lambda: numba_count(parallel=True), parallel=True),
            Implementation(name="c", build=_c("hits")),
            Implementation(name="c-parallel", build=_c("hits_parallel"), parallel=True),
            cuda.count(hit),
        ],
    ),
)  # fmt: skip
