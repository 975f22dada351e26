"""Softmax, layer norm and cross-entropy over rows of float32: what the two models do that memory bounds."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels import gpu_rows, rows
from kernels.compiled import THREADS
from kernels.kernel import Bind, Implementation, Inputs, Kernel, into_output, on_lists

WIDEST, VOCABULARY = 1024, 4096
"""Columns of large sizes; small ones are about square."""
EPSILON = 1e-5
SLOW_ABOVE = 1_000_000
SPECIAL_VALUES = (np.nan, np.inf, -np.inf, -200.0)


def shape(size: int, widest: int) -> tuple[int, int]:
    """Rows and columns of about `size` elements, and one column at least."""
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
    """One special value in each of the first rows, and one row of nothing but -inf; the rest as it is."""
    x = inputs[0].copy()
    for row, value in zip(x, SPECIAL_VALUES, strict=False):
        row[row.size // 2] = value
    x[-1:] = -np.inf
    return x, *inputs[1:]


def softmax_reference(x: NDArray[Any]) -> NDArray[Any]:
    """In float64, as the other two."""
    powers = np.exp(x.astype(np.float64) - x.max(1, keepdims=True, initial=-np.inf))
    return powers / powers.sum(1, keepdims=True)


def layer_norm_reference(x: NDArray[Any], gain: NDArray[Any], bias: NDArray[Any]) -> NDArray[Any]:
    """Biased variance."""
    x = x.astype(np.float64)
    return (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + EPSILON) * gain + bias


def cross_entropy_reference(x: NDArray[Any], targets: NDArray[Any]) -> NDArray[Any]:
    """Nats of each row."""
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


def _torch(name: str, threads: int) -> Callable[[], Bind]:
    def build() -> Bind:
        from kernels import torch_yardsticks  # seconds to import

        return torch_yardsticks.bound(getattr(torch_yardsticks, name), threads)

    return build


def _torch_on_gpu(name: str) -> Bind:
    from kernels import torch_yardsticks

    return torch_yardsticks.on_gpu(getattr(torch_yardsticks, name))


def _implementations(
    name: str, python: Callable[..., Any], numpy: Callable[..., Any], compiled: Callable[..., Any],
    on_gpu: Implementation,
) -> list[Implementation]:  # fmt: skip
    return [
        Implementation(name="python", build=lambda: on_lists(python), largest=SLOW_ABOVE),
        Implementation(name="numpy", build=lambda: into_output(numpy)),
        Implementation(name="njit", build=lambda: into_output(compiled(parallel=False))),
        Implementation(name="njit-parallel", build=lambda: into_output(compiled(parallel=True)), parallel=True),
        Implementation(name="torch", build=_torch(name, 1)),
        Implementation(name="torch-parallel", build=_torch(name, THREADS), parallel=True),
        on_gpu,
        Implementation(name="torch-cuda", build=lambda: _torch_on_gpu(name), device="gpu"),
    ]


KERNELS = (
    Kernel(
        name="softmax", dtype="float32", inputs=lambda size, random: (_rows(size, random),),
        reference=softmax_reference, output=np.empty_like, tolerance=2e-5, least=1e-30, bytes_per_element=8,
        flops_per_element=5, special=special,
        implementations=_implementations(
            "softmax", _softmax_python, _softmax_numpy, rows.softmax, gpu_rows.softmax()
        ),
    ),
    Kernel(
        name="layer_norm", dtype="float32", inputs=_normed, reference=layer_norm_reference,
        output=lambda x, gain, bias: np.empty_like(x), tolerance=2e-5, least=1.0, bytes_per_element=8,
        flops_per_element=8, special=special,
        implementations=_implementations(
            "layer_norm", _layer_norm_python, _layer_norm_numpy, rows.layer_norm, gpu_rows.layer_norm()
        ),
    ),
    Kernel(
        name="cross_entropy", dtype="float32", inputs=_logits, reference=cross_entropy_reference,
        output=lambda x, targets: np.empty(x.shape[0], np.float32), tolerance=2e-5, least=1.0, bytes_per_element=4,
        flops_per_element=4, special=special,
        implementations=_implementations(
            "cross_entropy", _cross_entropy_python, _cross_entropy_numpy, rows.cross_entropy, gpu_rows.cross_entropy()
        ),
    ),
)  # fmt: skip
