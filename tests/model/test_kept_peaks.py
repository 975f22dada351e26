"""Peaks come back as they were kept, a machine's and a device's apart; what is damaged is as if it were not there."""

import json
import os
from pathlib import Path

import pytest

from model.cost import machine_peaks as kept_peaks
from model.cost.machine_peaks import FILE, Peaks, keep, kept

PEAKS = Peaks(bytes_per_second={1: 2e10, 2: 3.5e10}, flops_per_second={"fp32": {1: 1e11, 2: 2e11}, "bf16": {1: 4e11}})


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is not there yet."""
    monkeypatch.setenv("RATION_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_they_come_back_and_newer_ones_take_their_place(cache: Path) -> None:
    assert kept("CPU") is None
    keep({"CPU": PEAKS})
    assert kept("CPU") == PEAKS
    newer = Peaks(bytes_per_second={1: 1.0}, flops_per_second={})
    assert keep({"CPU": newer}) == cache / FILE
    assert kept("CPU") == newer
    assert os.listdir(cache) == [FILE]


def test_each_device_of_each_host_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    keep({"CPU": PEAKS})
    assert kept("GPU") is None
    monkeypatch.setattr(kept_peaks.platform, "node", lambda: "another host")
    assert kept("CPU") is None


def test_those_of_another_host_stay(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as there:
        there.setattr(kept_peaks.platform, "node", lambda: "another host")
        keep({"CPU": Peaks(bytes_per_second={}, flops_per_second={})})
    keep({"CPU": PEAKS})
    assert kept("CPU") == PEAKS and len(json.loads((cache / FILE).read_text())) == 2


@pytest.mark.parametrize(
    "damage",
    [
        *("", "[]", "null", "{", "[" * 100_000, '"flops_per_second"', '{"KEY": 3}', '{"KEY": {}}', '{"KEY": null}'),
        '{"KEY": {"bytes_per_second": {"1": 1}, "flops_per_second": [1]}}',
        '{"KEY": {"bytes_per_second": {"1": "1"}, "flops_per_second": {}}}',
        '{"KEY": {"bytes_per_second": {"one": 1}, "flops_per_second": {}}}',
        '{"KEY": {"bytes_per_second": {"1": 1}, "flops_per_second": {"fp32": {"1": NaN}}}}',
        '{"KEY": {"bytes_per_second": {"1": 1}, "flops_per_second": {"fp32": {"1": 0}}}}',
    ],
)
def test_what_is_damaged_is_not_there_and_is_replaced(damage: str, cache: Path) -> None:
    cache.mkdir()
    (cache / FILE).write_text(damage.replace("KEY", kept_peaks._key("CPU")))
    assert kept("CPU") is None
    keep({"CPU": PEAKS})
    assert kept("CPU") == PEAKS


def test_a_write_that_fails_leaves_what_was_there(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep({"CPU": PEAKS})
    with monkeypatch.context() as full:
        full.setattr(Path, "write_text", lambda *_, **__: (_ for _ in ()).throw(OSError("the disk is full")))
        with pytest.raises(OSError, match="full"):
            keep({"CPU": Peaks(bytes_per_second={}, flops_per_second={})})
    assert kept("CPU") == PEAKS
