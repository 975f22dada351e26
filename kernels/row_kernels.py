"""Softmax, layer norm and cross-entropy over rows of float32: the parts of the models that are bound by memory.

Compiled loops are written so that LLVM vectorizes every pass. exp is a polynomial here, as numba's own calls the C
library for each element. NaN and infinities come out as in NumPy.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit, prange, types
from numpy.typing import NDArray

from kernels import cuda, cuda_rows
from kernels.kernel import THREADS, Bind, Implementation, Inputs, Kernel, bind_on_lists, bind_with_output

# exp(x) = 2^n e^r, n = round(x log2 e): e^r by its Taylor series to r^7 for |r| <= ln 2 / 2, within 6e-9
LOG2_E, LN_2 = np.float32(math.log2(math.e)), np.float32(math.log(2))
TAYLOR = tuple(np.float32(1 / math.factorial(power)) for power in range(8))
LOWEST = np.float32(-87.3)
"""Argument below which exp is 0 here, as the result would not be a normal float32."""
ZERO, EXPONENT_BIAS, MANTISSA_BITS = np.float32(0), np.int32(127), np.int32(23)
SIGN_SHIFT, ALL_BUT_SIGN, SMALLEST_KEY = np.int32(31), np.int32(0x7FFFFFFF), np.int32(-(1 << 31))
EPSILON32 = np.float32(1e-5)
FAST = {"reassoc", "contract", "nsz"}
"""The LLVM fast-math flags that keep NaN and infinities as they are."""

ROWS_IN = types.Array(types.float32, 2, "C", readonly=True)
ROWS_OUT = types.Array(types.float32, 2, "C")
GAINS_IN = types.Array(types.float32, 1, "C", readonly=True)
TARGETS_IN = types.Array(types.int64, 1, "C", readonly=True)
LOSSES_OUT = types.Array(types.float32, 1, "C")


@njit(fastmath=FAST)
def exponential(x):  # type: ignore[no-untyped-def]
    """Return e^x of a float32 that is at most 0, or NaN."""
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
    """Return the largest of a row of float32, NaN above all. Bits are compared as integers, in an order that is the
    floats' own, as this vectorizes."""
    bits = row.view(np.int32)
    top = SMALLEST_KEY
    for j in range(bits.size):
        key = np.int32(bits[j] ^ np.int32(np.int32(bits[j] >> SIGN_SHIFT) & ALL_BUT_SIGN))
        top = key if key > top else top
    return np.int32(top ^ np.int32(np.int32(top >> SIGN_SHIFT) & ALL_BUT_SIGN)).view(np.float32)


@njit(fastmath=FAST)
def softmax_row(row, out):  # type: ignore[no-untyped-def]
    """Write exp(row - largest), divided by its sum, to out."""
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
    """Write (row - mean) / sqrt(variance + EPSILON) * gain + bias to out; the variance is that of the deviations."""
    total = ZERO
    for j in range(row.size):
        total += row[j]
    mean, squares = total / np.float32(row.size), ZERO
    for j in range(row.size):
        squares += (row[j] - mean) * (row[j] - mean)
    scale = np.float32(1) / np.sqrt(squares / np.float32(row.size) + EPSILON32)
    for j in range(row.size):
        out[j] = (row[j] - mean) * scale * gain[j] + bias[j]


@njit(fastmath=FAST)
def power_sum(row, top):  # type: ignore[no-untyped-def]
    """Return the sum of exp(row - top)."""
    total = ZERO
    for j in range(row.size):
        total += exponential(row[j] - top)
    return total


@njit  # in this order: log + top loses the digits of a small loss where logits are large
def cross_entropy_row(row, target):  # type: ignore[no-untyped-def]
    """Return -log softmax(row)[target], without an array of the softmax."""
    top = largest(row)
    return np.log(power_sum(row, top)) + (top - row[target])


def softmax_loop(x, out):  # type: ignore[no-untyped-def]
    """Softmax of each row: (x (N, D), out (N, D))."""
    for i in prange(x.shape[0]):
        softmax_row(x[i], out[i])


def layer_norm_loop(x, gain, bias, out):  # type: ignore[no-untyped-def]
    """Layer norm of each row: (x (N, D), gain (D), bias (D), out (N, D))."""
    for i in prange(x.shape[0]):
        layer_norm_row(x[i], gain, bias, out[i])


def cross_entropy_loop(x, targets, out):  # type: ignore[no-untyped-def]
    """Cross-entropy of each row: (x (N, V), targets (N), out (N))."""
    for i in prange(x.shape[0]):
        out[i] = cross_entropy_row(x[i], targets[i])


WIDEST, VOCABULARY = 1024, 4096
"""Most columns, of large sizes; small ones are about square."""
EPSILON = 1e-5
SLOW_ABOVE = 1_000_000
SPECIAL_VALUES = (np.nan, np.inf, -np.inf, -200.0)


def shape(size: int, widest: int) -> tuple[int, int]:
    """Return rows and columns of about `size` elements, with one column at least."""
    columns = max(1, min(widest, math.isqrt(size)))
    return size // columns, columns


def _rows(size: int, random: np.random.Generator, widest: int = WIDEST) -> NDArray[np.float32]:
    return 4 * random.standard_normal(shape(size, widest), dtype=np.float32)


def _normed(size: int, random: np.random.Generator) -> Inputs:
    x = _rows(size, random)
    return x, *random.standard_normal((2, x.shape[1]), dtype=np.float32)


def _logits(size: int, random: np.random.Generator) -> Inputs:
    x = _rows(size, random, VOCABULARY)
    return x, random.integers(x.shape[1], size=x.shape[0])


def special(inputs: Inputs) -> Inputs:
    """Put one special value into each of the first rows, and -inf into all of the last; the rest stays."""
    x = inputs[0].copy()
    for row, value in zip(x, SPECIAL_VALUES, strict=False):
        row[row.size // 2] = value
    x[-1:] = -np.inf
    return x, *inputs[1:]


def shifted(inputs: Inputs) -> Inputs:
    """Return special() of logits that are all larger by 10,000, which changes no loss but by their rounding."""
    return special((inputs[0] + np.float32(10_000), *inputs[1:]))


def softmax_reference(x: NDArray[Any]) -> NDArray[Any]:
    """Return the softmax of each row, in float64, as the other references."""
    powers = np.exp(x.astype(np.float64) - x.max(1, keepdims=True, initial=-np.inf))
    return powers / powers.sum(1, keepdims=True)


def layer_norm_reference(x: NDArray[Any], gain: NDArray[Any], bias: NDArray[Any]) -> NDArray[Any]:
    """Return the layer norm of each row, with the biased variance."""
    x = x.astype(np.float64)
    return (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + EPSILON) * gain + bias


def cross_entropy_reference(x: NDArray[Any], targets: NDArray[Any]) -> NDArray[Any]:
    """Return the cross-entropy of each row in nats."""
    x = x.astype(np.float64) - x.max(1, keepdims=True, initial=-np.inf)
    return np.log(np.exp(x).sum(1)) - np.take_along_axis(x, targets[:, None], 1)[:, 0]


def _softmax_numpy(x: NDArray[Any], out: NDArray[Any]) -> None:
    np.subtract(x, x.max(1, keepdims=True, initial=-np.inf), out)
    np.exp(out, out)
    np.divide(out, out.sum(1, keepdims=True), out)


def _layer_norm_numpy(x: NDArray[Any], gain: NDArray[Any], bias: NDArray[Any], out: NDArray[Any]) -> None:
    np.subtract(x, x.mean(1, keepdims=True), out)
    scale = 1 / np.sqrt((out * out).mean(1, keepdims=True) + np.float32(EPSILON))
    np.multiply(out, scale, out)
    np.add(np.multiply(out, gain, out), bias, out)


def _cross_entropy_numpy(x: NDArray[Any], targets: NDArray[Any], out: NDArray[Any]) -> None:
    top = x.max(1, initial=-np.inf)
    np.log(np.exp(x - top[:, None]).sum(1), out)
    np.add(out, top - np.take_along_axis(x, targets[:, None], 1)[:, 0], out)


def _powers(row: list[float]) -> tuple[float, list[float]]:
    top = math.nan if any(map(math.isnan, row)) or math.inf in row else max(row)
    return top, [math.exp(value - top) for value in row]


def _softmax_python(x: list[list[float]]) -> list[list[float]]:
    found = []
    for row in x:
        _, powers = _powers(row)
        total = sum(powers)
        found.append([power / total for power in powers])
    return found


def _layer_norm_python(x: list[list[float]], gain: list[float], bias: list[float]) -> list[list[float]]:
    found = []
    for row in x:
        mean = sum(row) / len(row)
        scale = 1 / math.sqrt(sum((value - mean) * (value - mean) for value in row) / len(row) + EPSILON)
        found.append([(value - mean) * scale * g + b for value, g, b in zip(row, gain, bias, strict=True)])
    return found


def _cross_entropy_python(x: list[list[float]], targets: list[int]) -> list[float]:
    found = []
    for row, target in zip(x, targets, strict=True):
        top, powers = _powers(row)
        found.append(math.log(sum(powers)) + top - row[target])
    return found


def _torch(name: str, threads: int | None) -> Callable[[], Bind]:
    """Return what builds torch's implementation of this name; threads: None on a GPU."""

    def build() -> Bind:
        from kernels import torch_references as torch_yardsticks  # seconds to import

        prepare = getattr(torch_yardsticks, name)
        return (
            torch_yardsticks.bind_on_gpu(prepare) if threads is None else torch_yardsticks.bind_on_cpu(prepare, threads)
        )

    return build


def _implementations(
    name: str, python: Callable[..., Any], numpy: Callable[..., Any], loop: Callable[..., Any], signature: Any,
    on_gpu: Callable[[], cuda.Launch],
) -> list[Implementation]:  # fmt: skip
    def compiled(*, parallel: bool) -> Bind:
        return bind_with_output(njit(signature, parallel=parallel)(loop))

    return [
        Implementation(name="python", build=lambda: bind_on_lists(python), largest=SLOW_ABOVE),
        Implementation(name="numpy", build=lambda: bind_with_output(numpy)),
        Implementation(name="njit", build=lambda: compiled(parallel=False)),
        Implementation(name="njit-parallel", build=lambda: compiled(parallel=True), parallel=True),
        Implementation(name="torch", build=_torch(name, 1)),
        Implementation(name="torch-parallel", build=_torch(name, THREADS), parallel=True),
        cuda.gpu_implementation("cuda-shared", on_gpu),
        Implementation(name="torch-cuda", build=_torch(name, None), device="gpu"),
    ]


KERNELS = (
    Kernel(
        name="softmax", dtype="float32", inputs=lambda size, random: (_rows(size, random),),
        reference=softmax_reference, output=np.empty_like, tolerance=2e-5, least=1e-30, bytes_per_element=8,
        flops_per_element=5, special=special,
        implementations=_implementations(
            "softmax", _softmax_python, _softmax_numpy, softmax_loop, types.void(ROWS_IN, ROWS_OUT), cuda_rows.softmax
        ),
    ),
    Kernel(
        name="layer_norm", dtype="float32", inputs=_normed, reference=layer_norm_reference,
        output=lambda x, gain, bias: np.empty_like(x), tolerance=2e-5, least=1.0, bytes_per_element=8,
        flops_per_element=8, special=special,
        implementations=_implementations(
            "layer_norm", _layer_norm_python, _layer_norm_numpy, layer_norm_loop,
            types.void(ROWS_IN, GAINS_IN, GAINS_IN, ROWS_OUT), cuda_rows.layer_norm
        ),
    ),
    Kernel(
        name="cross_entropy", dtype="float32", inputs=_logits, reference=cross_entropy_reference,
        output=lambda x, targets: np.empty(x.shape[0], np.float32), tolerance=2e-5, least=1.0, bytes_per_element=4,
        flops_per_element=4, special=shifted,
        implementations=_implementations(
            "cross_entropy", _cross_entropy_python, _cross_entropy_numpy, cross_entropy_loop,
            types.void(ROWS_IN, TARGETS_IN, LOSSES_OUT), cuda_rows.cross_entropy
        ),
    ),
)  # fmt: skip
