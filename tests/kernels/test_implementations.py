"""Implementations equal their references; of those that numba compiles one of each kind, as compiling takes seconds."""

import platform
import re
import shutil
import subprocess
from pathlib import Path

import numba
import numpy as np
import pytest

from kernels import benchmark
from kernels.benchmark import KERNELS
from kernels.kernel import THREADS, Implementation, UnavailableError
from kernels.monte_carlo_pi import numba_count
from kernels.references import FLAGS, SOURCE, library

COMPILED = {
    *("njit", "njit-parallel", "njit-random", "vectorize", "vectorize-parallel", "streaming", "streaming-parallel"),
}
TRIED = {
    "copy": {"njit-parallel"},
    "triad": {"njit", "vectorize-parallel", "streaming-parallel"},
    "hypotenuse": {"streaming"},
    "hypotenuse_scalar": {"njit"},
    "grid_stride_sum": {"njit"},
    "monte_carlo_pi": {"njit", "njit-random"},
    "softmax": {"njit"},
    "layer_norm": {"njit"},
    "cross_entropy": {"njit"},
}
CASES = [
    (kernel.name, implementation)
    for kernel in KERNELS.values()
    for implementation in kernel.implementations
    if implementation.device == "cpu"
    if implementation.name not in COMPILED or implementation.name in TRIED.get(kernel.name, ())
]


@pytest.mark.parametrize(("kernel", "implementation"), CASES, ids=lambda value: getattr(value, "name", value))
def test_it_passes_the_gate(kernel: str, implementation: Implementation) -> None:
    """Or is skipped for want of a compiler or a kind of CPU, and then says so; one that refuses our C is a failure."""
    made = benchmark.build_and_check(KERNELS[kernel], implementation, seed=1)
    no_avx = implementation.name == "c-streaming" and made.fault == "skipped: the CPU has no AVX-512"
    if no_avx or made.fault == "skipped: no gcc":
        pytest.skip(made.fault)
    assert not made.fault


def test_pi_has_the_same_hits_for_every_number_of_threads() -> None:
    bind = numba_count(parallel=True)
    want = KERNELS["monte_carlo_pi"].reference(7, 100_003)
    try:
        for threads in range(1, THREADS + 1):
            numba.set_num_threads(threads)
            assert bind((7, 100_003), None).result() == want
    finally:
        numba.set_num_threads(THREADS)
    assert want / 100_003 == pytest.approx(np.pi / 4, rel=0.01)


def test_where_no_compiled_code_can_be_loaded_c_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """As from a folder for temporary files that is mounted noexec."""

    def refused(file: str) -> None:
        raise OSError(f"{file}: failed to map segment from shared object")

    library.cache_clear()  # what another test has loaded
    monkeypatch.setattr("ctypes.CDLL", refused)
    (implementation,) = (each for each in KERNELS["scalar_add"].implementations if each.name == "c")
    fault = benchmark.build_and_check(KERNELS["scalar_add"], implementation, seed=1).fault
    assert fault == "skipped: no gcc" or re.match("skipped: .*failed to map segment", fault)


def test_c_takes_several_roots_at_once(tmp_path: Path) -> None:
    """Else it is no baseline for code that does."""
    gcc = shutil.which("gcc")
    if gcc is None or platform.machine() != "x86_64":
        pytest.skip("no gcc for x86-64")
    source, made = tmp_path / "kernels.c", tmp_path / "kernels.s"
    source.write_text(SOURCE)
    subprocess.run([gcc, *FLAGS, f"-DTHREADS={THREADS}", "-S", "-o", made, source], check=True)
    for name in ("hypotenuse", "hypotenuse_parallel._omp_fn.0"):
        loop = re.search(rf"^{re.escape(name)}:$(.*?)^\w", made.read_text(), re.DOTALL | re.MULTILINE)
        assert loop is not None and "sqrtpd" in loop[1], name


def test_without_a_gpu_every_gpu_row_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise UnavailableError("no CUDA device")

    monkeypatch.setattr("kernels.cuda.require_device", none)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for kernel in KERNELS.values():
        on_gpu = [each.name for each in kernel.implementations if each.device == "gpu"]
        rows = list(benchmark.rows(kernel, (10,), on_gpu, seed=0))
        assert [row["status"] for row in rows] == ["skipped: no CUDA device"] * len(on_gpu)
