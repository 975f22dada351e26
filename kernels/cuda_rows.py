"""The model pieces on a GPU: a block a row, reductions in shared memory."""

import math
from typing import Any

from numba import types

from kernels.cuda import EPSILON, MOST_BLOCKS, THREADS, Implementation, Launch, cuda, on_gpu


def _block_of_a_row() -> tuple[Any, Any]:
    """Device functions: the largest, and the sum, of the threads' values, for every thread of the block."""

    @cuda.jit(device=True)
    def largest(shared, value):  # type: ignore[no-untyped-def]
        thread = cuda.threadIdx.x
        cuda.syncthreads()
        shared[thread] = value
        cuda.syncthreads()
        half = THREADS // 2
        while half > 0:
            if thread < half and shared[thread + half] > shared[thread]:
                shared[thread] = shared[thread + half]
            cuda.syncthreads()
            half //= 2
        return shared[0]

    @cuda.jit(device=True)
    def total(shared, value):  # type: ignore[no-untyped-def]
        thread = cuda.threadIdx.x
        cuda.syncthreads()
        shared[thread] = value
        cuda.syncthreads()
        half = THREADS // 2
        while half > 0:
            if thread < half:
                shared[thread] += shared[thread + half]
            cuda.syncthreads()
            half //= 2
        return shared[0]

    return largest, total


def _launch(kernel: Any) -> Launch:
    return lambda *arguments: kernel[max(1, min(MOST_BLOCKS, arguments[0].shape[0])), THREADS](*arguments)


def softmax() -> Implementation:
    """Over rows of float32."""

    def make() -> Launch:
        largest, total = _block_of_a_row()

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

    return on_gpu("cuda-shared", make)


def layer_norm() -> Implementation:
    """Over rows of float32, with gain and bias."""

    def make() -> Launch:
        _, total = _block_of_a_row()

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

    return on_gpu("cuda-shared", make)


def cross_entropy() -> Implementation:
    """Of each row's target, fused: no array of probabilities."""

    def make() -> Launch:
        largest, total = _block_of_a_row()

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
                    out[row] = math.log(found) + top - x[row, targets[row]]

        return _launch(kernel)

    return on_gpu("cuda-shared", make)
