"""The machine's peaks: measured where they are not known, kept when nobody was in the way, and used by the search."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernels import machine_peaks, timing, torch_references, verify
from kernels.kernel import THREADS, UnavailableError
from kernels.machine_peaks import measured, renew, wanted
from kernels.registry import KERNELS
from kernels.settings import Settings
from model.cost.machine_peaks import Peaks, cpu_name, keep, kept
from tune.assembly import kept_flops

PEAKS = Peaks(bytes_per_second={1: 1e10}, flops_per_second={"fp32": {1: 1e11, 2: 2e11}, "bf16": {2: 4e11}})


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATION_CACHE", str(tmp_path))


def test_copies_and_products_are_measured_by_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "VALUE_SECONDS", 1e-4)
    monkeypatch.setattr(timing, "CORES_TAKEN", 1e9)
    monkeypatch.setattr(machine_peaks, "last_cache_bytes", lambda: 1 << 20)
    monkeypatch.setattr(torch_references, "PRODUCTS", 1)
    threads = torch.get_num_threads()
    found = measured()
    torch.set_num_threads(threads)
    assert found is not None
    peaks = found[cpu_name()]
    assert set(peaks.bytes_per_second) == {1, THREADS} == set(peaks.flops_per_second["fp32"])
    assert peaks.bytes_per_second[THREADS] >= peaks.bytes_per_second[1] > 1e8
    assert peaks.flops_per_second["fp32"][1] > 1e8


def test_on_a_disturbed_machine_none_are_kept(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    tries: list[int] = []
    monkeypatch.setattr(machine_peaks, "_measured", lambda: tries.append(1))
    monkeypatch.setattr(timing, "disturbed", lambda watch: True)
    assert renew(measured) == {} and len(tries) == timing.TRIES
    assert kept(cpu_name()) is None and "others took the machine" in capsys.readouterr().err


def test_they_are_kept_and_used_where_they_cannot_be_kept(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    assert renew(lambda: {"CPU": PEAKS}) == {"CPU": PEAKS} and kept("CPU") == PEAKS
    monkeypatch.setenv("RATION_CACHE", "/proc/no/cache")
    assert renew(lambda: {"CPU": PEAKS}) == {"CPU": PEAKS} and kept("CPU") is None
    assert "peaks: not kept: " in capsys.readouterr().err


def test_they_are_measured_where_none_are_kept_and_in_a_run_of_all_kernels() -> None:
    few, every = (Settings(kernels=names, sizes=(1,)) for names in (("copy",), tuple(KERNELS)))
    assert wanted(few) and wanted(every)
    keep({cpu_name(): PEAKS})
    assert not wanted(few) and wanted(every)


@pytest.mark.parametrize(
    ("kind", "model", "address", "known"),
    [
        ("cpu", "CPU core", None, {"fp32": 1e11}),
        ("cuda", "a GPU", None, {"bf16": 7e14}),
        ("cuda", "another GPU", None, {}),
        ("cpu", "CPU core", "10.0.0.1:6379", {}),
    ],
)
def test_a_search_takes_those_of_one_thread_of_its_own_device(
    kind: str, model: str, address: str | None, known: dict[str, float]
) -> None:
    keep({cpu_name(): PEAKS, "a GPU": Peaks(bytes_per_second={1: 4e12}, flops_per_second={"bf16": {1: 7e14}})})
    grounds: Any = SimpleNamespace(
        devices=SimpleNamespace(kind=kind, model=model), settings=SimpleNamespace(address=address)
    )
    assert kept_flops(grounds) == known


def test_torch_on_a_gpu_is_held_against_the_same_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU, as there may be no GPU: what is right here takes its inputs and gives its output as it should."""
    waited: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UnavailableError, match="no CUDA device"):
        torch_references.on_gpu(torch_references.softmax)
    assert torch_references.device_copies(10) == {} and torch_references.gpu_name() is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waited.append(1))
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self)
    for name in ("softmax", "layer_norm", "cross_entropy"):
        kernel = KERNELS[name]
        (implementation,) = [each for each in kernel.implementations if each.name == "torch-cuda"]
        assert verify.check(kernel, implementation, implementation.build(), 0) < kernel.tolerance
    assert waited
