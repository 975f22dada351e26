"""The machine's peaks: measured by threads, and known when nobody was in the way."""

import pytest
import torch

from kernels import benchmark, timing, torch_references, verify
from kernels.benchmark import KERNELS, measure_peaks
from kernels.kernel import THREADS, UnavailableError
from model.cost import peak_flops
from tune.machine import cpu_name


def test_copies_and_products_are_measured_by_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "VALUE_SECONDS", 1e-4)
    monkeypatch.setattr(timing, "CORES_TAKEN", 1e9)
    monkeypatch.setattr(benchmark, "last_cache_bytes", lambda: 1 << 20)
    monkeypatch.setattr(torch_references, "PRODUCTS", 1)
    monkeypatch.setattr(peak_flops, "SIZES", {"cpu": 64, "cuda": 64})
    found = measure_peaks()
    assert found is not None
    peaks = found[cpu_name()]
    assert set(peaks["bytes_per_second"]) == {1, THREADS} == set(peaks["flops_per_second"]["fp32"])
    assert min(*peaks["bytes_per_second"].values(), *peaks["flops_per_second"]["fp32"].values()) > 0


def test_on_a_disturbed_machine_none_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[int] = []
    monkeypatch.setattr(benchmark, "_peaks", lambda: tries.append(1))
    monkeypatch.setattr(timing, "is_disturbed", lambda watch: True)
    assert measure_peaks() is None and len(tries) == timing.TRIES


def test_torch_on_a_gpu_is_held_against_the_same_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU, as there may be no GPU: what is right here takes its inputs and gives its output as it should."""
    waited: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UnavailableError, match="no CUDA device"):
        torch_references.bind_on_gpu(torch_references.softmax)
    assert torch_references.device_copies(10) == {} and torch_references.gpu_name() is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waited.append(1))
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self)
    for name in ("softmax", "layer_norm", "cross_entropy"):
        kernel = KERNELS[name]
        (implementation,) = [each for each in kernel.implementations if each.name == "torch-cuda"]
        assert verify.check(kernel, implementation, implementation.build(), 0) < kernel.tolerance
    assert waited
