"""What the stages of a training are asked for, what the work leaves, and what the tables make of rows."""

import time
from pathlib import Path

import pytest
import torch

from model.config import Config
from model.data.dataset import TextData
from tests.methods_rows import stage_row, stage_rows
from tune.backend.worker_group import Place
from tune.devices import Devices
from tune.experiments.base import ExperimentSettings
from tune.experiments.stages import line, points, tables, ways, work

SETTINGS = ExperimentSettings(budget="1h", families="nanogpt", scale=0.06)


def test_upstream_goes_first_and_each_way_takes_as_many_steps():
    for kind, precisions, before in (("cpu", ("fp32",), "fp32"), ("cuda", ("fp32", "tf32", "bf16"), "bf16")):
        found = points(Devices(kind=kind, count=1, model="", precisions=precisions, cores=1), SETTINGS)
        assert [point.asked["way"] for point in found] == ["before", "after", "after"]
        assert found[0].config["precision"] == before and {point.asked["steps"] for point in found} == {60}


@pytest.mark.parametrize("way", ["before", "after"])
def test_either_way_takes_its_steps_and_has_its_stages(
    way: str, small_text: Config, text_data: TextData, tmp_path: Path, warm: None
):
    def place(seconds: float) -> Place:
        ends = time.monotonic() + seconds
        return Place(config=small_text, data=text_data, device=torch.device("cpu"), folder=tmp_path, ends=ends)

    *_, last = work(place(60.0), {"way": way, "steps": 4})
    row = {"asked": {"way": way}, "config": {"precision": "fp32"}} | last.row
    assert row["steps"] == 4 and min(row["stages"].values()) > 0 and line(row)
    with pytest.raises(ValueError, match="of 50 steps were done when the seconds were over; give more --budget"):
        list(work(place(1.0), {"way": way, "steps": 50}))


def test_the_table_beside_the_report_by_hand():
    (table,) = tables(stage_rows())
    assert {len(cells) for cells in table.rows} == {len(table.columns)} == {9}
    shares = {cells[0]: cells for cells in table.rows}
    assert shares["data"] == ["data", "1.00", "4.8%", "0.50", "4.8%", "0.25", "4.8%", "73.76", "30.8%"]
    assert shares["optimizer"][-2:] == ["-", "-"] and shares["all"][1::2] == ["21.00", "10.50", "5.25", "239.8"]
    assert tables([]) == []


def test_several_seeds_are_one_way():
    rows = [stage_row("after", "fp32", scale) for scale in (1.0, 2.0, 9.0)]
    assert len(ways(rows)) == 1 and tables(rows)[0].rows[0][1] == "2.00"
