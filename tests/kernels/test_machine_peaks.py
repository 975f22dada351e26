"""The machine's peaks: measured by threads, and known when nobody was in the way."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from kernels import benchmark, settings, timing, torch_references, verify
from kernels.benchmark import ALL, GPU, KERNELS, ONE, TIMES_CACHES, measure_peaks
from kernels.kernel import THREADS, UnavailableError
from kernels.settings import MEMORY_SHARE
from model.cost import peak_flops
from tests.conftest import quick_timing
from tune.machine import cpu_name


def test_copies_and_products_are_measured_by_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    copies = benchmark.peak_contenders
    quick_timing(monkeypatch)
    monkeypatch.setattr(benchmark, "peak_contenders", copies)
    monkeypatch.setattr(benchmark, "last_cache_bytes", lambda: 1 << 20)
    monkeypatch.setattr(torch_references, "PRODUCTS", 1)
    monkeypatch.setattr(peak_flops, "SIZES", {"cpu": 64, "cuda": 64})
    found = measure_peaks()
    assert found is not None
    peaks = found[cpu_name()]
    assert set(peaks["bytes_per_second"]) == {1, THREADS} == set(peaks["flops_per_second"]["fp32"])
    assert min(*peaks["bytes_per_second"].values(), *peaks["flops_per_second"]["fp32"].values()) > 0


def test_each_devices_copies_are_sized_by_its_own_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU's too short ones would time its launches."""
    asked: dict[str, int] = {}
    monkeypatch.setattr(
        benchmark, "peak_contenders", lambda moved, places: asked.update(dict.fromkeys(places, moved)) or {}
    )
    monkeypatch.setattr(benchmark, "last_cache_bytes", lambda: 1 << 20)
    monkeypatch.setattr(torch_references, "products", lambda device, threads: {})
    monkeypatch.setattr(torch_references, "gpu_name", lambda: "a GPU that is none")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=10**11))
    assert set(measure_peaks() or ()) == {cpu_name(), "a GPU that is none"}
    on_cpu, on_gpu = TIMES_CACHES << 20, 10**11 // MEMORY_SHARE
    assert asked == {ONE: on_cpu, ALL: on_cpu, GPU: on_gpu}


def test_the_last_caches_of_all_cpus_count_and_each_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two of 16 MiB, of two CPUs each; a fifth CPU is not for this process."""
    for cpu in range(5):
        for level, size, sharers in ((1, "64K", f"{cpu}"), (3, "16384K", ("0-1", "2-3", "4-5")[cpu // 2])):
            folder = tmp_path / f"cpu{cpu}" / "cache" / f"index{level}"
            folder.mkdir(parents=True)
            for name, text in {"level": f"{level}", "size": size, "shared_cpu_list": sharers}.items():
                (folder / name).write_text(f"{text}\n")
    monkeypatch.setattr(settings, "CPUS", tmp_path)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3})
    assert settings.last_cache_bytes() == 2 * 16 << 20
    monkeypatch.setattr(settings, "memory_bytes", lambda: 1 << 40)
    _, large = settings.parse_sizes("full")
    assert 8 * settings.ARRAYS * large == pytest.approx(4 * 2 * 16 << 20, abs=8 * settings.ARRAYS)
    monkeypatch.setattr(settings, "CPUS", tmp_path / "none")
    assert settings.last_cache_bytes() == settings.USUAL_LAST_CACHE


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
