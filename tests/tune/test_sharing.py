"""Several trials on one GPU, in virtual time: each is charged its part of it, and Ray and the memory have room for all.

What processes take from each other on a real one, `make gpu PART=3` measures.
"""

import gc
import itertools
import re
import runpy
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from analysis.spending import spending
from analysis.study import open_study
from model.nn.precision import use_processor_facts
from tests.cuda.fake_cuda import CUDA, fake_cuda
from tests.soak.cap import PRETENDED
from tests.soak.observer import Observer
from tests.soak.search import Search
from tests.tune.display.conftest import Sampled
from tests.tune.search.world import World
from tune import cli
from tune.devices import (
    BESIDE_BYTES,
    RAYS_UNIT,
    Devices,
    check_has_code,
    cores_of_trial,
    device_properties,
    find_devices,
)
from tune.errors import UserError
from tune.experiments.base import make_experiment_context
from tune.experiments.catalogue import EXPERIMENTS
from tune.experiments.experiment_settings import ExperimentSettings
from tune.flags import AUTO
from tune.recipe import NOMINAL
from tune.search_context import make_search_context
from tune.settings import Settings

GPUS = Devices(kind="cuda", count=2, model="GPU", precisions=("fp32",), cores=16, memory_bytes=80_000_000_000)
CAP = 600.0
CORES = 0.5
"""Of a trial that has two of them: half a trial on each."""


def world(folder: Path, each: float, **changes: float) -> World:
    """A search on two devices."""
    folder.mkdir(exist_ok=True)
    slots = round(2 * each)
    given = {"cap": CAP, "slots": slots, "trials_each": each, "seed": slots, "suggestions": Sampled} | changes
    return World(folder, **given)


@pytest.mark.parametrize("each", [2, 7, CORES])
def test_each_is_charged_its_part_of_the_time_once_and_decided_is_what_as_many_whole_gpus_would_decide(
    tmp_path: Path, each: float
) -> None:
    """Those have so many times the cap."""
    shared, whole = world(tmp_path / "a", each), world(tmp_path / "b", each, cap=each * CAP, trials_each=1)
    decided = []
    for study in (shared, whole):
        study.run()
        rows = study.journal.rows("SELECT trial, action, rung FROM decisions ORDER BY decision")
        decided.append([tuple(row) for row in rows])
    assert decided[0] == decided[1]
    spent = shared.accounting.ledger.spent
    assert 0.97 * CAP <= spent <= CAP and whole.accounting.ledger.spent == pytest.approx(each * spent, rel=1e-3)
    assert shared.total("SELECT SUM(closed - opened) FROM slots") / each == pytest.approx(spent)
    assert shared.total("SELECT SUM(seconds) FROM charges") == pytest.approx(spent)
    assert spending(open_study(tmp_path / "a")).spent == pytest.approx(spent)
    leases = shared.journal.rows("SELECT * FROM leases")
    assert len(leases) > 10
    for lease in leases:
        assert lease["charged"] == pytest.approx((lease["closed"] - lease["opened"]) / each)
        assert lease["charged"] <= lease["reserved"] + 1e-6


@pytest.mark.parametrize("after", [2, 5])
def test_a_study_that_was_killed_goes_on_with_what_it_has_left_however_many_share_a_gpu_then(
    tmp_path: Path, after: int
) -> None:
    killed = world(tmp_path, 3).run(reports=25)
    spent = killed.accounting.ledger.spent
    killed.journal.close()
    again = world(tmp_path, after)
    assert again.accounting.ledger.spent == pytest.approx(
        spent, abs=2 * 1.0
    )  # until a process ends that gave no sign yet
    assert again.total("SELECT SUM(seconds) FROM charges") == pytest.approx(again.accounting.ledger.spent)
    for name, family in again.families.items():
        paid = f"SELECT TOTAL(charged) FROM leases JOIN trials USING (trial) WHERE family = '{name}'"
        assert family.charged == pytest.approx(after * again.total(paid))
    again.run()
    assert 0.97 * CAP <= again.accounting.ledger.spent <= CAP
    assert spending(open_study(tmp_path)).spent == pytest.approx(again.accounting.ledger.spent)


def test_as_many_as_are_asked_for_have_room_on_a_gpu_and_in_its_memory_and_no_more() -> None:
    for each in range(1, 65):
        shared = replace(GPUS, trials_each=each)
        parts = round(shared.ray_resources["GPU"] * RAYS_UNIT)
        assert each * parts <= RAYS_UNIT < (each + 1) * parts
        assert shared.threads == 1 or shared.threads * shared.slots <= shared.cores
        assert each == 1 or each * (shared.trial_bytes + BESIDE_BYTES) <= GPUS.memory_bytes


@pytest.mark.parametrize("mps", [True, False])
def test_auto_is_as_many_as_memory_and_cores_hold_and_at_least_one_and_without_mps_one(mps: bool) -> None:
    asked = Settings(budget=3600.0, trials_per_gpu=AUTO)
    for cores, needed in itertools.product((1, 4, 64), (1e8, 2e9, 7e9, 30e9, 79e9, 300e9)):
        each = replace(GPUS, cores=cores, mps=mps).with_sharing(asked, needed).trials_each
        fits, one_more_fits = (
            n * (needed + BESIDE_BYTES) <= GPUS.memory_bytes and 2 * n <= cores for n in (each, each + 1)
        )
        assert each == 1 if not mps else (fits or each == 1) and not one_more_fits


def test_a_study_that_goes_on_has_as_many_on_a_gpu_as_it_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text.txt").write_text("the cat sat on a mat\n" * 30_000)
    settings = Settings(budget="8h", families="nanogpt", trials_per_gpu=AUTO, text_corpus=tmp_path / "text.txt")
    gpus = replace(GPUS, mps=True)
    monkeypatch.setattr("tune.search_context.measured_prices", lambda *_: (NOMINAL["cuda"], 0.0))
    found = make_search_context(settings, gpus)
    each = found.devices.trials_each
    assert each > 1 and found.facts()["settings"]["trials_per_gpu"] == str(each)
    assert make_search_context(replace(settings, trials_per_gpu=each), gpus).recipes == found.recipes
    assert make_search_context(replace(settings, trials_per_gpu=1), gpus).recipes != found.recipes


def test_without_a_gpu_it_is_refused_in_one_line_and_auto_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    assert cli.main(Settings, ["--budget", "8h", "--trials-per-gpu", "2"]) == 2
    printed = capsys.readouterr()
    assert re.fullmatch(r"--trials-per-gpu: '2' .* there is no GPU here: leave it out; .*\n", printed.err)
    assert printed.out == "" and list(tmp_path.iterdir()) == []
    devices = find_devices(Settings(budget="8h", trials_per_gpu="auto"))
    assert (
        devices.with_sharing(Settings(budget="8h", trials_per_gpu="auto"), 1e8) == devices and devices.trials_each == 1
    )


def test_a_trial_on_many_cores_may_be_charged_for_more_than_the_study_is_old(tmp_path: Path) -> None:
    cores = 1 / 64
    search = World(tmp_path, cap=64 * 40_000, slots=1, trials_each=cores, shares={"nanogpt": 1.0}).run()
    search.journal.write_facts(created=time.time() - 45_000)
    assert search.total("SELECT MAX(charged) FROM leases") > 86_400 + 45_000
    search.journal.close()
    again = World(tmp_path, cap=64 * 40_000, slots=1, trials_each=cores, shares={"nanogpt": 1.0})
    assert again.told == []


def test_cores_of_a_trial_make_fewer_slots_each_charged_for_all_of_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    asked = Settings(budget=3600.0, devices=5, oversubscribe=True, cores_per_trial=2)
    devices = find_devices(asked)
    assert (devices.slots, devices.share, devices.slots_of(4)) == (2, 2.0, 2) and devices.ray_resources == {"CPU": 2}
    with pytest.raises(ValueError, match=r"^--cores-per-trial: '6' is more than there are to use: write at most 5"):
        find_devices(replace(asked, cores_per_trial=6))
    with pytest.raises(ValueError, match=r"^--cores-per-trial: '2' asks for CPU cores, and trials run on GPUs here"):
        cores_of_trial(asked, "cuda", 2)


def test_once_the_driver_has_timed_steps_it_leaves_the_gpu_to_its_trials(text: Path) -> None:
    asked = Settings(budget="8h", families="nanogpt", fix="d_model=16,layers=2,precision=fp32", text_corpus=text)
    with fake_cuda() as seen:
        assert make_search_context(asked, GPUS).probed and seen.launches
        tensors = (each for each in gc.get_objects() if issubclass(type(each), torch.Tensor))
        assert not [tuple(each.shape) for each in tensors if each.device == CUDA]


def test_a_gpu_that_is_cut_too_small_is_refused_by_the_flag_that_cut_it(text: Path) -> None:
    asked = Settings(budget="8h", families="nanogpt", trials_per_gpu=8, text_corpus=text)
    with pytest.raises(ValueError, match=r"^--trials-per-gpu: '8' leaves a trial \d+MB, no configuration of nanogpt"):
        make_search_context(asked, replace(GPUS, memory_bytes=5_000_000_000))


def test_more_trials_than_cores_are_refused_unless_oversubscribed() -> None:
    asked = Settings(budget=3600.0, trials_per_gpu=9)
    with pytest.raises(ValueError, match=r"--trials-per-gpu: '9' is more than the 8 CPU cores .* at most 8"):
        GPUS.with_sharing(asked, 1e9)
    assert GPUS.with_sharing(replace(asked, oversubscribe=True), 1e9).slots == 18


def test_a_gpu_is_never_two_but_in_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of Ray's processes has a whole one of its own, or one that is not there."""
    monkeypatch.setattr("tune.devices.usable_gpus", lambda: 1)
    monkeypatch.setattr("tune.devices.device_properties", lambda *_: {"model": "GPU", "precisions": ("fp32",)})
    asked = Settings(budget=3600.0, devices=2, oversubscribe=True)
    assert find_devices(replace(asked, plan=True)).gpus == 2
    for settings in (asked, replace(asked, oversubscribe=False)):
        with pytest.raises(ValueError, match=r"^--devices: '2' .* ask for at most 1$"):
            find_devices(settings)
    of_experiment = ExperimentSettings(budget=3600.0, families="nanogpt", devices=2, oversubscribe=True)
    with pytest.raises(ValueError, match=r"^--devices: '2' .* ask for at most 1$"):
        find_devices(of_experiment)
    compared = replace(of_experiment, name="data_parallel", devices=1)
    with pytest.raises(ValueError, match=r"^--devices: '1' .*: write 2 or more, on a machine with as many GPUs$"):
        make_experiment_context(EXPERIMENTS["data_parallel"], compared)


def test_the_search_on_a_gpu_that_is_none_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", ["pretended.py", "--help"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_path(str(PRETENDED), run_name="__main__")


def test_a_soak_ends_with_the_traceback_of_its_search(tmp_path: Path) -> None:
    (script := tmp_path / "broken.py").write_text("1 / 0")
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        Search(Observer(), script=(script,)).finish()


def test_gpus_of_two_kinds_are_named_both_and_a_trial_is_one_that_either_can_run(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """As on a cluster; of fewer devices than there are, those count that Ray would take."""
    cards = [
        SimpleNamespace(name="New", total_memory=80 * 10**9, major=9, minor=0),
        SimpleNamespace(name="Old", total_memory=16 * 10**9, major=7, minor=5),
    ]
    monkeypatch.setattr("tune.devices.usable_gpus", lambda: 2)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda gpu: cards[gpu])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda gpu: (cards[gpu].major, cards[gpu].minor))
    monkeypatch.setattr(torch.cuda, "get_arch_list", list)
    use_processor_facts({})
    request.addfinalizer(lambda: use_processor_facts({}))
    both, one = (find_devices(Settings(budget=3600.0, devices=devices)) for devices in (None, 1))
    assert (both.count, both.model, both.processor, both.memory_bytes) == (2, "New or Old", "New or Old", 16 * 10**9)
    assert both.precisions == ("fp32", "fp16")
    assert (one.count, one.model, one.memory_bytes) == (1, "New", 80 * 10**9)
    assert one.precisions == ("fp32", "tf32", "bf16", "fp16")
    assert device_properties("cuda").items() <= vars(both).items()
    monkeypatch.setattr(torch.cuda, "get_arch_list", "sm_90".split)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda gpu: cards[gpu].name)
    assert find_devices(Settings(budget=3600.0, devices=1)).model == "New"
    with pytest.raises(UserError, match=r"^GPU: 'Old': "):
        find_devices(Settings(budget=3600.0))


def refuse(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    "error", [RuntimeError("driver too old\nupdate"), torch.cuda.DeferredCudaCallError("driver too old\nwhere")]
)
def test_a_gpu_that_is_seen_and_cannot_be_used_is_one_line(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("torch.cuda.init", lambda: refuse(error))
    with pytest.raises(UserError, match=r"^GPU: torch cannot use it \(driver too old\): [^\n]+$"):
        find_devices(Settings(budget=3600.0))


@pytest.mark.parametrize(
    ("codes", "capability", "serves"),
    [
        ("sm_75 sm_80 sm_90", (8, 0), True), ("sm_75 sm_80 sm_90", (8, 9), True),
        ("sm_75 sm_80 sm_90a", (9, 0), True), ("sm_75 sm_80 sm_90", (6, 1), False),
        ("sm_75 sm_86", (8, 0), False), ("sm_80 sm_90", (12, 0), False),
        ("sm_80 compute_90", (12, 0), True), ("sm_80 compute_90", (7, 5), False),
        ("gfx90a gfx942", (9, 0), True), ("", (3, 5), True),
    ],
)  # fmt: skip
def test_a_gpu_that_torch_has_no_code_for_is_one_line(
    codes: str, capability: tuple[int, int], serves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiled code serves its own generation from its number on, PTX all later ones; of AMD's nothing is known."""
    monkeypatch.setattr(torch.cuda, "get_arch_list", codes.split)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Old GPU")
    why = rf"^GPU: 'Old GPU': torch \S+ has no code for its compute capability {'.'.join(map(str, capability))}: \w"
    with nullcontext() if serves else pytest.raises(UserError, match=why):
        check_has_code(0)
