"""Without a GPU: every CUDA kernel equals its reference in numba's simulator, with few threads, which are Python's
there; and it compiles to PTX for an H100, where the compiler of the extra `cuda` is installed.
"""

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numba
import numpy as np
import pytest
from numba import types

from kernels import arrays
from kernels import cuda as gpu
from kernels.benchmark import KERNELS
from kernels.kernel import Implementation, Kernel

PROGRAM = """
import sys
from unittest.mock import patch

import numpy as np

sys.setswitchinterval(1e-5)    # a block's threads wait for one another at each barrier
from kernels import benchmark, cuda, cuda_rows, row_kernels, verify
from kernels.benchmark import KERNELS

cuda.THREADS = cuda_rows.THREADS = 4
cuda.MOST_BLOCKS = cuda_rows.MOST_BLOCKS = 2
verify.SIZES, verify.SPECIAL_SIZE = (0, 1, 11), 24    # more than all threads, more rows than blocks and
row_kernels.shape = lambda size, widest: (-(-size // 5), 5)    # more columns than a block's threads
for kernel in KERNELS.values():
    for implementation in kernel.implementations:
        if implementation.device == "gpu" and implementation.name != "torch-cuda":
            made = benchmark.build_and_check(kernel, implementation, seed=2)
            print(kernel.name, implementation.name, made.fault or "right", sep=": ")
            if not made.fault:
                call, array = implementation.build()(*kernel.arrays(10, seed=2)), type(cuda.cuda.device_array(1))
                assert np.array_equal(call.result(), call.result()), "the second begins anew"
                with patch.object(cuda.cuda, "to_device", None), patch.object(array, "copy_to_host", None):
                    call.function(*call.arguments)    # nothing of its time is a copy there or back
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
    made = gpu.ufunc_launch(formula.scalar)(1.0, 2.0, None)
    assert made.__name__.isidentifier() and made(1.5, 2.5) == formula.scalar(1.5, 2.5)


COMPUTE_CAPABILITY = (9, 0)
NOT_COMPILED = {"cuda-vectorize", "torch-cuda", "cuda-pageable", "cuda-pinned", "cuda-streams"}
"""A ufunc wants a driver; the others have no kernel of ours."""
CASES = [
    (kernel, each)
    for kernel in KERNELS.values()
    for each in kernel.implementations
    if each.device == "gpu" and each.name not in NOT_COMPILED
]


class Placed(np.ndarray):
    """An array that stays on the host, where kernels look for one on the device."""

    def copy_to_host(self, output: Any = None) -> Any:
        return self

    def copy_to_device(self, given: Any) -> None:
        self[:] = given


@pytest.fixture
def ptx(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What launches compiled instead of running."""
    if gpu.cuda is None:
        pytest.skip("numba-cuda has no bindings here")
    from cuda.pathfinder import DynamicLibNotFoundError

    try:
        gpu.cuda.compile_ptx(lambda: None, (), cc=COMPUTE_CAPABILITY)
    except DynamicLibNotFoundError as error:
        pytest.skip(f"no CUDA compiler (pip install -e '.[cuda]'): {error}")
    real, compiled = gpu.cuda.jit, list[str]()

    class Kernel:
        def __init__(self, function: Any) -> None:
            self.function = function

        def __getitem__(self, grid: Any) -> Any:
            def launch(*arguments: Any) -> None:
                plain = [np.asarray(each) if isinstance(each, np.ndarray) else each for each in arguments]
                signature = types.void(*map(numba.typeof, plain))
                compiled.append(gpu.cuda.compile_ptx(self.function, signature, cc=COMPUTE_CAPABILITY)[0])

            return launch

    def jit(function: Any = None, **options: Any) -> Any:
        return Kernel(function) if function else real(**options)

    monkeypatch.setattr(gpu, "require_device", lambda: None)
    for name, stand_in in {
        "jit": jit, "synchronize": lambda: None, "device_array_like": np.empty_like,
        "to_device": lambda array: np.array(array).view(Placed),
    }.items():  # fmt: skip
        monkeypatch.setattr(gpu.cuda, name, stand_in)
    device = SimpleNamespace(compute_capability=COMPUTE_CAPABILITY)
    monkeypatch.setattr("numba.cuda.dispatcher.get_current_device", lambda: device)
    return compiled


@pytest.mark.parametrize(("kernel", "implementation"), CASES, ids=lambda value: value.name)
def test_it_compiles(kernel: Kernel, implementation: Implementation, ptx: list[str]) -> None:
    implementation.build()(*kernel.arrays(100, seed=0)).result()
    (text,) = ptx
    assert ".target sm_90" in text and ".entry" in text
    assert (".shared" in text) == (implementation.name == "cuda-shared")
    assert ("st.global" in text or "atom" in text) == (kernel.name != "empty_launch")
