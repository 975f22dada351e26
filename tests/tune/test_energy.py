"""Joules, where a machine tells them: each counts once, whatever begins anew, is gone, or ends."""

import math
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tune.energy import NOTED_SECONDS, Counter, Energy, nvml, rapl
from tune.store.journal import ENERGY, Journal


def zone(root: Path, number: str, name: str, microjoules: int | str) -> Path:
    folder = root / f"intel-rapl:{number}"
    folder.mkdir(parents=True)
    for file, text in (("name", name), ("energy_uj", microjoules), ("max_energy_range_uj", 1_000_000_000)):
        (folder / file).write_text(f"{text}\n")
    return folder


def test_processors_and_their_memory_are_counted_once(tmp_path: Path) -> None:
    """Cores are in their package, and all is in psys; what may not be read is left out."""
    for number, name, joules in (("0", "package-0", 5), ("0:0", "core", 3), ("0:1", "dram", 2), ("1", "psys", 9)):
        zone(tmp_path, number, name, joules * 10**6)
    zone(tmp_path, "2", "package-1", "secret")
    assert [(counter.read(), counter.wraps) for counter in rapl(tmp_path)] == [(5.0, 1000.0), (2.0, 1000.0)]
    assert list(rapl(tmp_path / "nowhere")) == []


@pytest.mark.parametrize(("visible", "joules"), [(None, [1.0, 2.0]), ("1", [2.0]), ("gpu-0", [1.0]), ("", [])])
def test_gpus_that_are_there_for_us_are_counted(
    visible: str | None, joules: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    library = SimpleNamespace(
        nvmlInit=lambda: None, nvmlDeviceGetCount=lambda: 2, nvmlDeviceGetHandleByIndex=int,
        nvmlDeviceGetUUID="gpu-{}".format, nvmlDeviceGetTotalEnergyConsumption=lambda device: 1000 * (device + 1),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "pynvml", library)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [counter.read() for counter in nvml()] == joules


def test_without_a_library_or_a_gpu_there_is_nothing_and_no_word(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for library in (None, SimpleNamespace(nvmlInit=lambda: 1 / 0)):
        monkeypatch.setitem(sys.modules, "pynvml", library)
        assert list(nvml()) == []
    assert capfd.readouterr() == ("", "")


def counted(journal: Journal, at: dict[str, float]) -> Energy:
    """One counter begins anew at 100; what the dictionary lacks cannot be read."""
    return Energy(
        journal, [Counter(read=lambda: at["one"], wraps=100), Counter(read=lambda: at["two"], wraps=math.inf)]
    )


def test_each_joule_counts_once_however_often_it_is_looked(tmp_path: Path) -> None:
    """Over counters that begin anew, and in a study that goes on; one that is gone counts up to there."""
    at = {"one": 90.0, "two": 7.0}
    with Journal(tmp_path, new=True) as journal:
        energy = counted(journal, at)
        for one, two, joules in ((20.0, 12.0, 30 + 5), (20.0, 12.0, 35), (25.0, 13.0, 41)):
            at |= {"one": one, "two": two}
            energy.note()
            assert journal.facts()[ENERGY] == joules
        energy = counted(journal, at)
        del at["two"]
        at["one"] = 50.0
        energy.note()
        assert journal.facts()[ENERGY] == 41 + 25


def test_a_search_looks_now_and_then_and_at_its_end(tmp_path: Path) -> None:
    now, looks = [0.0], []
    with Journal(tmp_path, new=True) as journal:
        counter = Counter(read=lambda: looks.append(now[0]) or float(len(looks)), wraps=math.inf)
        energy = Energy(journal, [counter], clock=lambda: now[0])
        for moment in (1.0, NOTED_SECONDS, NOTED_SECONDS + 1, 2 * NOTED_SECONDS):
            now[0] = moment
            energy.decided(None, None, "", "")
            energy.reported(None, "", None)
        energy.closed(None)
        assert looks == [0.0, NOTED_SECONDS, 2 * NOTED_SECONDS, 2 * NOTED_SECONDS] and journal.facts()[ENERGY] == 3.0
