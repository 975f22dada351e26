"""The experiment data_parallel: each way against the default, and why one could not be gone."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from analysis.experiments.data_parallel import ways
from analysis.study import open_study
from model.config import Config
from model.data.dataset import TextData
from tests.analysis.conftest import Written
from tune.backend.worker_group import Place
from tune.devices import Devices
from tune.experiments import parallel_timing
from tune.experiments.base import ExperimentSettings
from tune.experiments.data_parallel import WAYS, line, points, tables, work


def row(times: float, distance: float = 0.0, width: float = 0.01, **asked: Any) -> dict[str, Any]:
    """A way that is so many times as fast as the default."""
    found = {"default_seconds": [0.1] * 3, "seconds": [0.1 / times] * 3, "times": [times, times - width, times + width]}
    about = {"devices": 2, "backend": "gloo", "rows": 6, "bytes": 3 * 2**20, "config": {}}
    return {"key": json.dumps(asked), "asked": asked, "distance": distance} | about | found


ROWS = [
    row(1.001, way="default"), row(0.8, way="bucket_megabytes", value=1), row(1.2, way="static_graph", value=True),
    row(1.004, 3e-4, way="compression", value="fp16"),
    {"key": "x", "asked": {"way": "compression", "value": "bf16"}, "devices": 2, "skipped": "gloo refuses it"},
]  # fmt: skip


def test_every_way_is_asked_for_on_all_devices():
    devices = Devices(kind="cpu", count=3, model="core", precisions=("fp32",), cores=3)
    asked = points(devices, ExperimentSettings(budget="1h", families="nanogpt"))
    assert [point.asked for point in asked] == list(WAYS) and {point.devices for point in asked} == {3}
    assert len({point.key for point in asked}) == len(WAYS)


def test_the_table_has_every_way_and_the_reason_of_the_one_that_could_not_be_gone():
    (table,) = tables(ROWS)
    assert len(table.rows) == len(ROWS)
    assert table.rows[-1] == ["compression bf16", *["-"] * 4] and "gloo refuses it" in table.note
    assert tables([]) == []
    assert len(tables(ROWS[-1:])) == 1 and all(line(each) for each in ROWS[:-1])


def test_the_picture_is_of_the_rows(tmp_path):
    written = Written(tmp_path / "study", experiment="data_parallel")
    written.trial("t001")
    for each in ROWS:
        written.journal.insert("rows", {"at": 0.0, "experiment": "data_parallel", "value": json.dumps(each)})
    written.journal.close()
    table = ways(open_study(written.folder)).data.set_index("way")
    assert table.index.to_list() == ["default", "bucket_megabytes 1", "static_graph", "compression fp16"]
    assert table.loc["static_graph", ["times", "low", "high"]].to_list() == pytest.approx([1.2, 1.19, 1.21])


@pytest.fixture
def place(small_text: Config, text_data: TextData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Of a rank that is alone in its group."""
    monkeypatch.setattr(parallel_timing, "TURN_SECONDS", 0.01)
    monkeypatch.setattr(parallel_timing, "MOST_ROUNDS", 5)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield Place(config=small_text, data=text_data, device=torch.device("cpu"), folder=tmp_path, ends=math.inf)
    dist.destroy_process_group()


def test_a_way_is_measured_in_turns_with_the_default(place):
    start, last = work(place, {"way": "static_graph", "value": True})
    assert (start.what, last.what) == ("start", "steps")
    found = json.loads(json.dumps(last.row))
    assert set(found["rounds"]) == {"default", "other"} and len(found["rounds"]["default"]) == 5
    assert found["distance"] < 1e-6 and found["times"][1] <= found["times"][0] <= found["times"][2]


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_without_a_gpu_data_parallel_says_why_not(place):
    with pytest.raises(ValueError, match=r"^DataParallel: there is no GPU here: one process divides a batch among"):
        next(work(place, {"way": "DataParallel"}))
