"""What the loader experiment asks for, loads and makes of its rows, whoever makes them; its waits add up."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from model.config import Config
from model.data.batches import IGNORED, Batch, Samples, batch_shape
from model.data.dataset import TextData
from model.families import FAMILIES
from model.training.learner import Learner
from tests.loader_rows import all_rows, workers
from tests.tune.experiments.this_process import place_of
from tune.backend.worker_group import TaskContext
from tune.devices import Devices
from tune.experiments import loader, parallel_timing
from tune.experiments.base import ExperimentSettings
from tune.experiments.loader import check_shared_memory, line, points, read_through, step_on, tables, work

CORES = Devices(kind="cpu", count=2, model="core", precisions=("fp32",), cores=2)
GPU = Devices(kind="cuda", count=1, model="GPU", precisions=("fp32",), cores=16)
CONFIG = Config(family="nanogpt", d_model=16, heads=4, layers=1, context=16, batch_tokens=64)


def asked(devices: Devices, **more: Any) -> list[Any]:
    return points(devices, ExperimentSettings(budget="1h", families="nanogpt", **more))


@pytest.fixture
def place(text_data: TextData, monkeypatch: pytest.MonkeyPatch) -> TaskContext:
    monkeypatch.setattr(parallel_timing, "MOST_ROUNDS", 5)
    monkeypatch.setattr(loader, "BATCHES", 3)
    return place_of(CONFIG, text_data, Path("/proc/no"))


def test_as_many_workers_as_there_are_cores_unless_asked_for_more_and_their_cores_are_paid_for():
    assert {point.devices for point in asked(CORES)} == {2} and {point.devices for point in asked(GPU)} == {1}
    counts = [point.asked["workers"] for point in asked(CORES) if point.asked["measure"] == "workers"]
    assert counts == [[0, 1, 2]]
    for few in (asked(CORES, oversubscribe=True), asked(GPU)):
        assert few[0].asked["workers"] == list(range(11))
    least, most = asked(CORES)[0], asked(CORES, oversubscribe=True)[0]
    assert most.least_seconds > 2 * least.least_seconds and most.seconds > most.least_seconds


def test_text_in_a_running_loop_with_workers_and_without_beside_our_own(place):
    (*_, last) = work(place, {"measure": "workers", "of": "text", "workers": [0, 1]})
    row = last.row
    assert [source["name"] for source in row["sources"]] == ["0", "1", "own"]
    for source in row["sources"]:
        for kind in ("empty", "wait", "whole", "first"):
            figure, low, high = source[kind]
            assert 0 < low <= figure <= high
    none, one, _ = row["sources"]
    assert none["gain"] == (1, 1, 1) and one["start_seconds"] > none["start_seconds"], "a process has to begin first"
    assert 0 <= len(place.data.train) - row["items"] * CONFIG.context <= 2 * CONFIG.batch_tokens


def test_settings_in_a_running_loop(place):
    (*_, last) = work(place, {"measure": "settings", "of": "text", "workers": 1})
    kept, *_, anew, own = last.row["sources"]
    assert (kept["name"], anew["name"], own["name"]) == ("1, 1 ahead", "1, begun anew", "own")
    assert min(kept["first"] + anew["first"]) > 0


def test_a_table_has_a_row_for_each_number_of_workers():
    images, text, settings = tables(all_rows())
    assert [cells[0] for cells in images.rows] == [*map(str, range(11))] and text.rows[-1][0] == "own"
    assert images.rows[0][2] == f"{50_000 / 128 * 30e-3:.1f}"
    assert settings.rows[0][0] == "2, 1 ahead"


def test_a_line_is_of_the_fastest_loader_and_no_rows_make_no_table():
    assert tables([]) == [] and all("ms a batch" in line(row) for row in all_rows())
    assert line(workers("images", 10, slows=3.7e-3)).startswith("fastest in a running loop: 2,")


class Squares(torch.utils.data.Dataset):
    """Of which each is drawn from a seed and its number, as a process that decodes would."""

    def __len__(self):
        return 12

    def __getitem__(self, number):
        drawn = np.random.default_rng([1, number]).random((1, 2))
        return Batch((torch.from_numpy(drawn),), torch.tensor([number]), 1)


def seen(workers):
    """The batches of two epochs, of a class that the processes cannot import."""
    Squares.__module__ = "loaded_squares"
    batches = loader.loader(Squares(), 4, seed=2, workers=workers)
    return [(*batch.inputs, batch.targets) for _ in range(2) for batch in batches]


def test_the_same_batches_come_however_many_processes_make_them(monkeypatch):
    monkeypatch.setattr(loader, "BATCHES", 3)
    alone, shared = seen(0), seen(2)
    assert len(alone) == len(shared) == 6
    for one, other in zip(alone, shared, strict=True):
        assert all(map(torch.equal, one, other))
    assert not torch.equal(alone[0][0], alone[3][0]), "each epoch is drawn anew"


@pytest.mark.parametrize(("config", "data"), [("small_text", "text_data"), ("small_pairs", "pair_data")])
def test_samples_come_together_to_batches_like_our_own(config, data, request):
    config, data = request.getfixturevalue(config), request.getfixturevalue(data)
    rows = batch_shape(data, batch_tokens=config.batch_tokens, context=config.context).rows
    batch = next(iter(loader.loader(FAMILIES[config.family].items(config, data), rows, seed=2, workers=0)))
    learner = Learner(config, data, torch.device("cpu"))
    own = next(learner.batches)
    assert [x.shape for x in (*batch.inputs, batch.targets)] == [x.shape for x in (*own.inputs, own.targets)]
    assert batch.tokens == (batch.targets != IGNORED).sum() and batch.nbytes == own.nbytes
    step_on(learner, batch)
    assert learner.tokens == batch.tokens


@pytest.mark.parametrize(("config", "data"), [("small_text", "text_data"), ("small_pairs", "pair_data")])
def test_samples_are_the_rows_of_an_epoch_each_once(config, data, request):
    config, data = request.getfixturevalue(config), request.getfixturevalue(data)
    batches = FAMILIES[config.family].training_batches(config, data, torch.device("cpu"))
    samples = Samples(batches)
    epoch = Batch.concatenate([next(batches) for _ in range(len(batches))])
    apart = Batch.concatenate([samples[number] for number in range(len(samples))])
    assert torch.equal(apart.inputs[0], epoch.inputs[0]) and torch.equal(apart.targets, epoch.targets)
    assert len(samples) == len(epoch.targets) and apart.tokens == epoch.tokens


def test_waits_and_uses_add_up_to_the_loop(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def spent(seconds):
        now[0] += seconds

    def batches():
        for seconds in (5.0, 1.0, 3.0):
            spent(seconds)
            yield None

    found = read_through("x", batches, lambda _: spent(2.0))
    assert found == {"x first": 5.0, "x wait": 3.0, "x whole": 5.0}


def test_what_does_not_fit_into_shared_memory_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(loader, "SHARED_MEMORY", tmp_path)
    check_shared_memory(1)
    with pytest.raises(ValueError, match=r"bytes are free, and batches under way need 1,000,000,000,000,000,000: enl"):
        check_shared_memory(10**18)
