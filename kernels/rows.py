"""Compiled loops over rows of float32, written so that LLVM puts every pass into vector lanes.

exp is a polynomial here, as numba's own calls the C library once an element. NaN and infinities come out as in NumPy.
"""

import math

import numpy as np
from numba import njit, prange, types

# exp(x) = 2^n e^r, n = round(x log2 e): e^r by its Taylor series to r^7 for |r| <= ln 2 / 2, within 6e-9
LOG2_E, LN_2 = np.float32(math.log2(math.e)), np.float32(math.log(2))
TAYLOR = tuple(np.float32(1 / math.factorial(power)) for power in range(8))
LOWEST = np.float32(-87.3)
"""exp below it is 0 here: the result would not be a normal float32."""
ZERO, EXPONENT_BIAS, MANTISSA_BITS = np.float32(0), np.int32(127), np.int32(23)
SIGN_SHIFT, ALL_BUT_SIGN, SMALLEST_KEY = np.int32(31), np.int32(0x7FFFFFFF), np.int32(-(1 << 31))
EPSILON = np.float32(1e-5)
FAST = {"reassoc", "contract", "nsz"}
"""Of LLVM's fast-math flags those that leave NaN and infinities what they are."""

ROWS_IN = types.Array(types.float32, 2, "C", readonly=True)
ROWS_OUT = types.Array(types.float32, 2, "C")
GAINS_IN = types.Array(types.float32, 1, "C", readonly=True)
TARGETS_IN = types.Array(types.int64, 1, "C", readonly=True)
LOSSES_OUT = types.Array(types.float32, 1, "C")


@njit(fastmath=FAST)
def exponential(x):  # type: ignore[no-untyped-def]
    """e^x of a float32 that is at most 0, or NaN."""
    bounded = x if x > LOWEST else LOWEST
    n = np.rint(bounded * LOG2_E)
    r = x - n * LN_2
    series = TAYLOR[7]
    series = series * r + TAYLOR[6]
    series = series * r + TAYLOR[5]
    series = series * r + TAYLOR[4]
    series = series * r + TAYLOR[3]
    series = series * r + TAYLOR[2]
    series = series * r + TAYLOR[1]
    series = series * r + TAYLOR[0]
    power = np.int32(np.int32(np.int32(n) + EXPONENT_BIAS) << MANTISSA_BITS).view(np.float32)
    return ZERO if x < LOWEST else series * power


@njit
def largest(row):  # type: ignore[no-untyped-def]
    """Of a row of float32, by bits as whole numbers: they order like the floats, and go into lanes. NaN is largest."""
    bits = row.view(np.int32)
    top = SMALLEST_KEY
    for j in range(bits.size):
        key = np.int32(bits[j] ^ np.int32(np.int32(bits[j] >> SIGN_SHIFT) & ALL_BUT_SIGN))
        top = key if key > top else top
    return np.int32(top ^ np.int32(np.int32(top >> SIGN_SHIFT) & ALL_BUT_SIGN)).view(np.float32)


@njit(fastmath=FAST)
def softmax_row(row, out):  # type: ignore[no-untyped-def]
    """exp(row - largest), divided by their sum."""
    top, total = largest(row), ZERO
    for j in range(row.size):
        value = exponential(row[j] - top)
        out[j] = value
        total += value
    share = np.float32(1) / total
    for j in range(row.size):
        out[j] *= share


@njit(fastmath=FAST)
def layer_norm_row(row, gain, bias, out):  # type: ignore[no-untyped-def]
    """(row - mean) / sqrt(variance + EPSILON) * gain + bias, the variance from the deviations."""
    total = ZERO
    for j in range(row.size):
        total += row[j]
    mean, squares = total / np.float32(row.size), ZERO
    for j in range(row.size):
        squares += (row[j] - mean) * (row[j] - mean)
    scale = np.float32(1) / np.sqrt(squares / np.float32(row.size) + EPSILON)
    for j in range(row.size):
        out[j] = (row[j] - mean) * scale * gain[j] + bias[j]


@njit(fastmath=FAST)
def cross_entropy_row(row, target):  # type: ignore[no-untyped-def]
    """-log softmax(row)[target], without the softmax."""
    top, total = largest(row), ZERO
    for j in range(row.size):
        total += exponential(row[j] - top)
    return np.log(total) + (top - row[target])


def softmax(*, parallel: bool):  # type: ignore[no-untyped-def]
    """Compiled: (x (N, D), out (N, D))."""

    def run(x, out):  # type: ignore[no-untyped-def]
        for i in prange(x.shape[0]):
            softmax_row(x[i], out[i])

    return njit(types.void(ROWS_IN, ROWS_OUT), parallel=parallel)(run)


def layer_norm(*, parallel: bool):  # type: ignore[no-untyped-def]
    """Compiled: (x (N, D), gain (D), bias (D), out (N, D))."""

    def run(x, gain, bias, out):  # type: ignore[no-untyped-def]
        for i in prange(x.shape[0]):
            layer_norm_row(x[i], gain, bias, out[i])

    return njit(types.void(ROWS_IN, GAINS_IN, GAINS_IN, ROWS_OUT), parallel=parallel)(run)


def cross_entropy(*, parallel: bool):  # type: ignore[no-untyped-def]
    """Compiled: (x (N, V), targets (N), out (N))."""

    def run(x, targets, out):  # type: ignore[no-untyped-def]
        for i in prange(x.shape[0]):
            out[i] = cross_entropy_row(x[i], targets[i])

    return njit(types.void(ROWS_IN, TARGETS_IN, LOSSES_OUT), parallel=parallel)(run)
