"""A trial's process, without a Ray around it: what it reports of one lease and of the next."""

import errno
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from model.config import Config, Data
from model.cost.allocations import AT_ONCE, Allocations
from model.data.dataset import PairData, TextData
from model.families import FAMILIES
from model.training.learner import Learner
from tests.cuda.fake_cuda import fake_cuda
from tests.model.conftest import prepared
from tests.tune.backend.leases import POINT, place, told
from tune.backend import leased as trial
from tune.backend import trainable
from tune.backend.trainable import TrainingTrial
from tune.experiments.lists import CheckpointCleaner
from tune.reports import Report, from_row
from tune.store.heartbeat import (
    DRIVER,
    HEARTBEAT_FOLDER,
    Process,
    machine_boot_id,
    opened_monotonic,
    read_heartbeat,
    write_heartbeat,
)

Begin = Callable[..., TrainingTrial]


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Begin:
    """begin(data, orders, recipe, **more of its place): a trial's process, which gives no sign of life."""
    monkeypatch.setattr(trial, "HeartbeatThread", lambda live: SimpleNamespace(start=lambda: None))

    def made(data: Data, orders: dict[str, Any], recipe: Callable[..., Any] = dict, **more: Any) -> TrainingTrial:
        process, family = TrainingTrial.__new__(TrainingTrial), orders["assignment"]["family"]
        where = place(tmp_path, recipes={family: recipe}, evaluation_tokens={family: 256}, **more)
        process.setup(orders, {family: data}, where, {})
        return process

    return made


def reports(process: TrainingTrial) -> list[Report]:
    """Those of its lease."""
    found = [from_row(json.loads(process.step()["report"]))]
    while not found[-1].ended:
        found.append(from_row(json.loads(process.step()["report"])))
    return found


@pytest.fixture
def data() -> TextData:
    text = "the cat sat on a mat and saw another bird " * 200
    return prepared(text, text)


def test_a_peak_is_measured_where_none_is_told(begin: Begin, data: TextData) -> None:
    process = begin(data, told(None, steps=2))
    *_, measured = reports(process)
    process.reset_config(told(123e9, steps=3))
    *_, known = reports(process)
    assert measured.peak_flops > 1e8 and known.peak_flops == 123e9
    flops = FAMILIES["nanogpt"].flops_per_token(Config(family="nanogpt", **POINT), data)
    for report in (measured, known):
        assert report.mfu == pytest.approx(report.tokens_per_second * flops / report.peak_flops)
    assert (measured.steps, known.steps) == (2, 3) and measured.tokens_per_second > 0


@pytest.mark.parametrize("guess", [1e4, 1e12])
def test_what_a_checkpoint_took_is_the_price_of_the_first_of_the_next_trial(
    guess: float, begin: Begin, data: TextData, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, real = [], trainable.train
    monkeypatch.setattr(trainable, "train", lambda *of, **how: asked.append(of[2].disk_bytes) or real(*of, **how))
    monkeypatch.setattr(trainable, "DISK_BYTES", guess)
    monkeypatch.setattr(trainable, "FIRST_SECONDS", 0.0)
    process = begin(data, told(1e9, steps=2))
    (*_, first) = reports(process)
    process.reset_config(told(1e9, steps=3, trial="t002"))
    written = sum(file.stat().st_size for file in Path(first.checkpoint or "").iterdir())
    assert asked[0] == guess and asked[1] == pytest.approx(written / first.seconds["checkpoint"], rel=0.5)


def test_a_trial_of_a_list_is_judged_on_both_splits_to_its_end_and_leaves_nothing_on_disk(
    begin: Begin, tmp_path: Path, pair_data: PairData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainable, "SENTENCES", 2)
    recipe = {"batch_tokens": 256, "warm_up_steps": 1, "average": 0.0}
    orders = told(1e11, steps=12, family="translation", rung=None)
    found = reports(begin(pair_data, orders, lambda point: recipe | point, listed=True))
    last = found[-1]
    assert len(found) > 1 and (last.ended, last.steps) == ("final", 12)
    measured = [report for report in found if report.valid]
    assert [report.steps for report in measured] == [5, 10, 12]
    assert all(report.trained and report.trained.accuracy is not None for report in measured)
    assert last.bleu is not None and last.whole is None and last.averaged is None and last.learning_rate == 0
    engine: Any = SimpleNamespace(accounting=SimpleNamespace(journal=SimpleNamespace(folder=tmp_path)))
    for report in found:
        assert list(tmp_path.rglob("*.safetensors")), "until the journal has the last report"
        CheckpointCleaner().on_report(engine, orders["assignment"]["trial"], report)
    assert last.checkpoint is None and not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.parametrize("way", [{"seed": 1}, {"seed": 1, "micro_batches": 2, "precision": "bf16"}])
def test_of_a_list_the_steps_of_text_are_counted_at_the_end_and_timed_against_plain_ones(
    begin: Begin, data: TextData, monkeypatch: pytest.MonkeyPatch, way: dict[str, Any]
) -> None:
    timed: list[tuple[Learner, Learner]] = []
    monkeypatch.setattr(trainable, "step_ratio", lambda *two: timed.append(two) or 2.0)
    *before, last = reports(begin(data, told(1e11, steps=6, rung=None, config=POINT | way), listed=True))
    assert last.ended == "final" and last.step_bytes and last.step_bytes > 4 * last.parameters
    assert last.step_allocations and last.step_allocations > 1
    assert all(report.step_bytes is None for report in before)
    assert last.step_ratio == (2.0 if "precision" in way else 1.0)
    plain = Config(family="nanogpt", **POINT)
    assert [(one.config, one.micro_batches, other.config, other.micro_batches) for one, other in timed] == [
        (replace(plain, **way), 2, replace(plain, seed=1), 1)
    ] * ("precision" in way), "the recipe's own needs no timing"


def test_on_a_gpu_steps_are_timed_as_they_were_trained_as_replays(
    begin: Begin, data: TextData, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of both learners, but for the first step of each, which is captured."""
    monkeypatch.setattr(trainable, "count_allocations", lambda *_: Allocations())
    monkeypatch.setattr("model.cost.allocations.TURNS", 1)
    steps, timed = 6, 2 * AT_ONCE["cuda"] - 1
    with fake_cuda() as seen:
        orders = told(1e11, steps=steps, rung=None, config=POINT | {"micro_batches": 2})
        *_, last = reports(begin(data, orders, listed=True, device="cuda"))
    assert last.step_ratio and seen.launches["graph"] == steps + 2 * timed


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_gpu_that_is_to_repeat_has_no_kernels_that_do_not_from_the_first_on(
    begin: Begin, data: TextData, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")  # and put back afterwards, whatever it was
    monkeypatch.setattr(Learner, "may_compile", True)
    try:
        with fake_cuda() if device == "cuda" else nullcontext():
            process = begin(data, told(1e11, steps=2), deterministic=True, device=device)
            strict = torch.get_deterministic_debug_mode() == 2  # where it only warns, fused attention does not repeat
            switches = strict, "CUBLAS_WORKSPACE_CONFIG" in os.environ, not Learner.may_compile
            *_, last = reports(process)
    finally:
        torch.use_deterministic_algorithms(False)
        torch.utils.deterministic.fill_uninitialized_memory = True
    assert switches == (device == "cuda",) * 3 and last.ended


DISK = OSError(errno.ENOSPC, "no space left on the device")


@pytest.mark.parametrize(
    ("family", "error"), [("nanogpt", None), ("nanogpt", MemoryError()), ("nanogpt", DISK), ("translation", None)]
)
def test_a_lease_too_short_to_score_and_memory_or_disk_that_run_out_leave_the_end_as_it_is(
    begin: Begin, data: TextData, pair_data: PairData, monkeypatch: pytest.MonkeyPatch, family: str,
    error: Exception | None,
) -> None:  # fmt: skip
    def count(*given: object) -> None:
        assert error is not None, "there is no time for it"
        raise error

    monkeypatch.setattr(trainable, "count_allocations", count)
    monkeypatch.setattr(trainable, "SCORE_SECONDS", 0.0 if error else math.inf)
    orders = told(1e11, steps=6, family=family, rung=None, config=POINT | {"micro_batches": 2})
    *_, last = reports(begin(pair_data if family == "translation" else data, orders, listed=True))
    assert (last.ended, last.steps, last.checkpoint) == ("final", 6, None) and last.valid and last.trained
    assert (last.bleu, last.step_bytes, last.step_allocations, last.step_ratio) == (None,) * 4


def test_elsewhere_a_lease_is_as_old_as_the_drivers_last_sign_of_life_says(tmp_path: Path) -> None:
    (tmp_path / HEARTBEAT_FOLDER).mkdir()
    write_heartbeat(tmp_path, DRIVER, 0, 17.0)
    before = time.monotonic()
    elsewhere = opened_monotonic(tmp_path, 10.0, boot="elsewhere", monotonic=0.0)
    assert before - 7.0 <= elsewhere <= time.monotonic() - 7.0
    assert opened_monotonic(tmp_path, 10.0, boot=machine_boot_id(), monotonic=3.0) == 3.0


@pytest.mark.parametrize("disk_is_full", [False, True])
def test_without_a_driver_the_last_sign_of_life_is_the_end(
    begin: Begin, data: TextData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disk_is_full: bool
) -> None:
    """What it used is known up to its end; no disk keeps it from ending; training is closed before."""
    (tmp_path / HEARTBEAT_FOLDER).mkdir()
    ends, lives, real, orders = list[float](), list[Callable[[], float]](), trainable.train, told(steps=2)

    def end(code: int) -> None:
        found = read_heartbeat(tmp_path, "t001")
        ends.append(orders["opened"]["monotonic"] + found.at if found else 0.0)

    def train(*of: Any, **how: Any) -> Iterator[Any]:
        with suppress(OSError):
            lives[0]()
        assert not ends
        yield from real(*of, **how)

    monkeypatch.setattr(trial.os, "_exit", end)
    monkeypatch.setattr(trial, "HeartbeatThread", lambda live: SimpleNamespace(start=lambda: lives.append(live)))
    monkeypatch.setattr(trainable, "train", train)
    if disk_is_full:
        monkeypatch.setattr(trial, "write_heartbeat", _refuse)
    (last,) = reports(begin(data, orders, driver=replace(Process.this_process(), started=-1)))
    before = time.monotonic()
    with suppress(OSError):
        lives[0]()
    assert last.ended == "stopped" and len(ends) == 1 and (disk_is_full or before <= ends[0] <= time.monotonic())


def _refuse(*beaten: object, ended: str | None = None) -> None:
    raise OSError(errno.ENOSPC, "no space left on the device")
