"""One number at a time: what a call costs. Compiled code need not win here."""

import ctypes
import math
from typing import Any

import numpy as np
from numba import njit, types

from kernels import cuda
from kernels.kernel import Implementation, Inputs, Kernel, returned
from kernels.references import c_function

TWO_FLOATS = types.float64(types.float64, types.float64)


def scaled_hypotenuse(x, y):  # type: ignore[no-untyped-def]
    """The published report's form: scaled by the larger side, so that no square overflows. Finite numbers only."""
    x, y = abs(x), abs(y)
    small, large = min(x, y), max(x, y)
    if large == 0:
        return large
    small = small / large
    return large * math.sqrt(1 + small * small)


def add(x, y):  # type: ignore[no-untyped-def]
    """Of two floats."""
    return x + y


def _two_numbers(size: int, random: np.random.Generator) -> Inputs:
    x, y = random.uniform(-1, 1, 2)
    return float(x), float(y)


def _c(name: str) -> Any:
    return lambda: returned(c_function(name, ctypes.c_double, ctypes.c_double, ctypes.c_double))


KERNELS = (
    Kernel(
        name="hypotenuse_scalar", dtype="float64", inputs=_two_numbers, reference=math.hypot, tolerance=1e-15,
        unit="calls", sized=False,
        implementations=[
            Implementation(name="python", build=lambda: returned(scaled_hypotenuse)),
            Implementation(name="builtin", build=lambda: returned(math.hypot)),
            Implementation(name="numpy", build=lambda: returned(np.hypot)),
            Implementation(name="njit", build=lambda: returned(njit(TWO_FLOATS)(scaled_hypotenuse))),
            Implementation(name="c", build=_c("scaled_hypotenuse")),
        ],
    ),
    Kernel(
        name="scalar_add", dtype="float64", inputs=_two_numbers, reference=lambda x, y: x + y,
        unit="calls", sized=False, special=lambda inputs: (math.inf, math.nan),
        implementations=[
            Implementation(name="python", build=lambda: returned(add)),
            Implementation(name="numpy", build=lambda: returned(np.add)),
            Implementation(name="njit", build=lambda: returned(njit(TWO_FLOATS)(add))),
            Implementation(name="c", build=_c("add_scalars")),
            cuda.scalar_add(),
        ],
    ),
    Kernel(
        name="empty_launch", dtype="", inputs=lambda size, random: (), reference=lambda: None, unit="calls",
        sized=False,
        implementations=[
            Implementation(name="python", build=lambda: returned(lambda: None)),
            Implementation(name="njit", build=lambda: returned(njit(types.void())(lambda: None))),
            cuda.empty_launch(),
        ],
    ),
)  # fmt: skip
