"""Joules and how busy a machine is, where it tells: each counts once, whatever begins anew, is gone, or ends."""

import math
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tune import system
from tune.store.journal import ENERGY, Journal
from tune.system import LOOK_SECONDS, NOTED_SECONDS, PAGE, TICKS, Counter, Energy, System, nvml_counters, rapl_counters


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
    assert [(counter.read(), counter.wraps) for counter in rapl_counters(tmp_path)] == [(5.0, 1000.0), (2.0, 1000.0)]
    assert list(rapl_counters(tmp_path / "nowhere")) == []


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
    assert [counter.read() for counter in nvml_counters()] == joules


def test_without_a_library_or_a_gpu_there_is_nothing_and_no_word(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for library in (None, SimpleNamespace(nvmlInit=lambda: 1 / 0)):
        monkeypatch.setitem(sys.modules, "pynvml", library)
        assert list(nvml_counters()) == []
    assert capfd.readouterr() == ("", "")


def counted(journal: Journal, at: dict[str, float]) -> Energy:
    """One counter begins anew at 100; what the dictionary lacks cannot be read."""
    return Energy(
        journal, [Counter(read=lambda: at["one"], wraps=100), Counter(read=lambda: at["two"], wraps=math.inf)]
    )


def test_each_joule_counts_once_however_often_it_is_looked(tmp_path: Path) -> None:
    """Over counters that begin anew, and in a study that goes on; one that is gone counts up to there, and from there
    once it is back."""
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
        at["two"] = 20.0
        energy.note()
        assert journal.facts()[ENERGY] == 41 + 25 + 7


def test_a_search_looks_now_and_then_and_at_its_end(tmp_path: Path) -> None:
    now, looks = [0.0], []
    with Journal(tmp_path, new=True) as journal:
        counter = Counter(read=lambda: looks.append(now[0]) or float(len(looks)), wraps=math.inf)
        energy = Energy(journal, [counter], clock=lambda: now[0])
        for moment in (1.0, NOTED_SECONDS, NOTED_SECONDS + 1, 2 * NOTED_SECONDS):
            now[0] = moment
            energy.on_decision(None, None, "", "")
            energy.on_report(None, "", None)
        energy.on_close(None)
        assert looks == [0.0, NOTED_SECONDS, 2 * NOTED_SECONDS, 2 * NOTED_SECONDS] and journal.facts()[ENERGY] == 3.0


class Machine:
    """A /proc of some processes, and a clock; two cores, which are busy as they are told to be."""

    def __init__(self, root: Path) -> None:
        self.root, self.now = root, 100.0
        self.cores(busy=0.0, idle=0.0)

    def cores(self, *, busy: float, idle: float) -> None:
        ticks = [round(TICKS * each) for each in (busy, 0, 0, idle, 0, 0, 0, 0, 0, 0)]
        (self.root / "stat").write_text(f"cpu {' '.join(map(str, ticks))}\ncpu0 1 2\n")

    def process(self, pid: int, parent: int, seconds: float, pages: int) -> None:
        (self.root / str(pid)).mkdir(exist_ok=True)
        fields = ["S", parent, *[0] * 9, round(TICKS * seconds), 0, *[0] * 8, pages]
        name = b"(a (b) caf\xc3)"  # as the kernel cuts it, which counts bytes
        (self.root / str(pid) / "stat").write_bytes(b"%d %s %s" % (pid, name, " ".join(map(str, fields)).encode()))

    def system(self) -> System:
        return System(clock=lambda: self.now, proc=self.root, power=self.root / "power")


def test_a_study_is_this_process_and_all_that_it_began_and_each_second_counts_once(tmp_path: Path) -> None:
    machine, here = Machine(tmp_path), os.getpid()
    for pid, parent, seconds in ((1, 0, 50), (here, 1, 4), (900_001, here, 2), (900_002, 900_001, 1), (900_009, 1, 7)):
        machine.process(pid, parent, seconds, pages=10)
    looked = machine.system()
    machine.now += LOOK_SECONDS - 1
    assert looked.figures() is None
    machine.now += 6.0
    for pid, parent, seconds in ((900_001, here, 7), (900_003, 900_002, 3), (900_009, 1, 17)):
        machine.process(pid, parent, seconds, pages=10)
    machine.cores(busy=15, idle=5)
    found = looked.figures()
    assert found["study_cores"] == pytest.approx((5 + 3) / (LOOK_SECONDS + 5))
    assert found["study_memory_bytes"] == 4 * 10 * PAGE and found["cores_busy_share"] == 0.75
    (tmp_path / "900001" / "stat").unlink()
    machine.now += LOOK_SECONDS
    found = looked.figures()
    assert found["study_cores"] == 0 and "cores_busy_share" not in found


def test_gpus_and_processors_tell_what_they_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = SimpleNamespace(
        nvmlInit=lambda: None, nvmlDeviceGetCount=lambda: 1, nvmlDeviceGetHandleByIndex=int,
        nvmlDeviceGetUUID="gpu-{}".format, nvmlDeviceGetPowerUsage=lambda device: 1 / 0,
        nvmlDeviceGetUtilizationRates=lambda device: SimpleNamespace(gpu=40),
        nvmlDeviceGetMemoryInfo=lambda device: SimpleNamespace(used=5),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "pynvml", library)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    machine, package = Machine(tmp_path), zone(tmp_path / "power", "0", "package-0", 999 * 10**6)
    looked = machine.system()
    (package / "energy_uj").write_text("49000000")
    machine.now += 10.0
    assert looked.figures() == {"processor_watts": 5.0, "gpu0_busy_share": 0.4, "gpu0_memory_bytes": 5}
    for energy, told in (("cannot be read", {}), ("149000000", {"processor_watts": 5.0})):  # over both times together
        (package / "energy_uj").write_text(energy)
        machine.now += 10.0
        assert looked.figures() == {**told, "gpu0_busy_share": 0.4, "gpu0_memory_bytes": 5}


def test_a_machine_that_tells_nothing_has_no_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "visible_gpus", lambda: iter(()))
    now = [0.0]
    looked = System(clock=lambda: now[0], proc=tmp_path / "none", power=tmp_path / "none")
    now[0] = LOOK_SECONDS
    assert looked.figures() == {}
