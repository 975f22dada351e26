"""The row kernels on a GPU, with numba: one block for each row, reductions in shared memory."""

import math
from typing import Any

import numpy as np
from numba import types

from kernels.cuda import MOST_BLOCKS, THREADS, Launch, added, block_reduction, cuda, larger

EPSILON = np.float32(1e-5)


def _launch(kernel: Any) -> Launch:
    return lambda *arguments: kernel[max(1, min(MOST_BLOCKS, arguments[0].shape[0])), THREADS](*arguments)


def softmax() -> Launch:
    """Compile and return the launch of softmax over rows of float32."""
    largest, total = block_reduction(larger), block_reduction(added)

    @cuda.jit
    def kernel(x, out):  # type: ignore[no-untyped-def]
        shared = cuda.shared.array(THREADS, types.float32)
        for row in range(cuda.blockIdx.x, x.shape[0], cuda.gridDim.x):
            top = types.float32(-math.inf)
            for j in range(cuda.threadIdx.x, x.shape[1], THREADS):
                top = max(top, x[row, j])
            top = largest(shared, top)
            found = types.float32(0)
            for j in range(cuda.threadIdx.x, x.shape[1], THREADS):
                out[row, j] = math.exp(x[row, j] - top)
                found += out[row, j]
            found = total(shared, found)
            for j in range(cuda.threadIdx.x, x.shape[1], THREADS):
                out[row, j] /= found

    return _launch(kernel)


def layer_norm() -> Launch:
    """Compile and return the launch of layer norm over rows of float32, with gain and bias."""
    total = block_reduction(added)

    @cuda.jit
    def kernel(x, gain, bias, out):  # type: ignore[no-untyped-def]
        shared = cuda.shared.array(THREADS, types.float32)
        columns = x.shape[1]
        for row in range(cuda.blockIdx.x, x.shape[0], cuda.gridDim.x):
            found = types.float32(0)
            for j in range(cuda.threadIdx.x, columns, THREADS):
                found += x[row, j]
            mean = types.float32(total(shared, found) / columns)
            found = types.float32(0)
            for j in range(cuda.threadIdx.x, columns, THREADS):
                found += (x[row, j] - mean) ** 2
            scale = types.float32(1 / math.sqrt(total(shared, found) / columns + EPSILON))
            for j in range(cuda.threadIdx.x, columns, THREADS):
                out[row, j] = (x[row, j] - mean) * scale * gain[j] + bias[j]

    return _launch(kernel)


def cross_entropy() -> Launch:
    """Compile and return the launch of the cross-entropy of each row's target, fused: no array of probabilities."""
    largest, total = block_reduction(larger), block_reduction(added)

    @cuda.jit
    def kernel(x, targets, out):  # type: ignore[no-untyped-def]
        shared = cuda.shared.array(THREADS, types.float32)
        for row in range(cuda.blockIdx.x, x.shape[0], cuda.gridDim.x):
            top = types.float32(-math.inf)
            for j in range(cuda.threadIdx.x, x.shape[1], THREADS):
                top = max(top, x[row, j])
            top = largest(shared, top)
            found = types.float32(0)
            for j in range(cuda.threadIdx.x, x.shape[1], THREADS):
                found += math.exp(x[row, j] - top)
            found = total(shared, found)
            if cuda.threadIdx.x == 0:
                out[row] = math.log(found) + (top - x[row, targets[row]])

    return _launch(kernel)
