"""What the loader experiment asks for, does, and makes of its rows."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from model.config import Config
from model.data.dataset import TextData
from tests.loader_rows import all_rows, workers
from tune.backend.worker_group import Place
from tune.devices import Devices
from tune.experiments import loading, parallel_timing
from tune.experiments.base import ExperimentSettings
from tune.experiments.loader import line, points, tables, work

CORES = Devices(kind="cpu", count=2, model="core", precisions=("fp32",), cores=2)
GPU = Devices(kind="cuda", count=1, model="GPU", precisions=("fp32",), cores=16)
CONFIG = Config(family="nanogpt", d_model=16, heads=4, layers=1, context=16, batch_tokens=64)


def asked(devices: Devices, **more: Any) -> list[Any]:
    return points(devices, ExperimentSettings(budget="1h", families="nanogpt", **more))


@pytest.fixture
def place(text_data: TextData, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(parallel_timing, "MOST_ROUNDS", 5)
    monkeypatch.setattr(loading, "BATCHES", 3)
    ends = time.monotonic() + 600
    return Place(config=CONFIG, data=text_data, device=torch.device("cpu"), folder=Path("/proc/no"), ends=ends)


def test_as_many_workers_as_there_are_cores_unless_asked_for_more_and_their_cores_are_paid_for():
    assert {point.devices for point in asked(CORES)} == {2} and {point.devices for point in asked(GPU)} == {1}
    counts = [point.asked["workers"] for point in asked(CORES) if point.asked["measure"] == "workers"]
    assert counts == [[0, 1, 2]]
    for few in (asked(CORES, oversubscribe=True), asked(GPU)):
        assert few[0].asked["workers"] == list(range(11))
    least, most = asked(CORES)[0], asked(CORES, oversubscribe=True)[0]
    assert most.least > 2 * least.least and most.seconds > most.least


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
    kept, anew = last.row["sources"][0], last.row["sources"][-1]
    assert (kept["name"], anew["name"]) == ("kept 1", "anew 2")
    assert min(kept["first"] + anew["first"]) > 0


def test_tables_have_a_cell_for_each_column():
    images, text, settings = tables(all_rows())
    assert [cells[0] for cells in images.rows] == [*map(str, range(11))] and text.rows[-1][0] == "own"
    for table in (images, text, settings):
        assert {len(cells) for cells in table.rows} == {len(table.columns)}
    published = [cells[-1] for cells in images.rows]
    assert published[2] == "fastest" and published[6] == "-" and published[7] == "slower than 0"
    assert images.rows[0][2] == f"{50_000 / 128 * 30e-3:.1f}"
    assert settings.rows[0][:2] == ["1", "kept"]


def test_a_line_is_of_the_fastest_loader_and_no_rows_make_no_table():
    assert tables([]) == [] and all("ms a batch" in line(row) for row in all_rows())
    assert line(workers("images", 10, slows=3.7e-3)).startswith("fastest in a running loop: 2,")
