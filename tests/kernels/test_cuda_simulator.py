"""Every CUDA kernel equals its reference in numba's simulator, with few threads, which are Python's there."""

import os
import subprocess
import sys

import numba
import pytest

from kernels import arrays, cuda
from kernels.registry import KERNELS

PROGRAM = """
from kernels import benchmark, cuda, cuda_rows, row_kernels, verify
from kernels.registry import KERNELS

cuda.THREADS = cuda_rows.THREADS = 4
cuda.MOST_BLOCKS = cuda_rows.MOST_BLOCKS = 2
verify.SIZES, verify.SPECIAL_SIZE = (0, 1, 11), 24    # more than all threads, more rows than blocks and
row_kernels.shape = lambda size, widest: (-(-size // 5), 5)    # more columns than a block's threads
for kernel in KERNELS.values():
    for implementation in kernel.implementations:
        if implementation.device == "gpu" and implementation.name != "torch-cuda":
            made = benchmark.built(kernel, implementation, seed=2)
            print(kernel.name, implementation.name, made.fault or "right", sep=": ")
"""


def test_every_cuda_kernel_passes_the_gate(repository):
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "1", "PYTHONPATH": str(repository), "PYTHONWARNINGS": "ignore"}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=600, check=True
    )
    said = [line.split(": ", 2) for line in ran.stdout.splitlines()]
    on_gpu = [each for kernel in KERNELS.values() for each in kernel.implementations if each.device == "gpu"]
    assert len(said) == len([each for each in on_gpu if each.name != "torch-cuda"]) > 0
    for kernel, implementation, outcome in said:
        wanted = "skipped: the CUDA simulator has no ufuncs" if implementation == "cuda-vectorize" else "right"
        assert outcome == wanted, kernel


@pytest.mark.parametrize("formula", [arrays.ADD, arrays.COPY, arrays.TRIAD, arrays.HYPOTENUSE], ids=lambda it: it.name)
def test_a_ufunc_is_made_of_a_function_that_has_a_name(formula, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a GPU numba writes a function by its name, and compiles that: a lambda is none that it can write."""
    monkeypatch.setattr(numba, "vectorize", lambda signatures, target: lambda made: lambda a, b, out: made)
    made = cuda.ufunc_launch(formula.scalar)(1.0, 2.0, None)
    assert made.__name__.isidentifier() and made(1.5, 2.5) == formula.scalar(1.5, 2.5)
