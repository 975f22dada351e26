"""The estimates experiment: what it measures of a real step, and what its tables make of rows."""

from pathlib import Path
from typing import Any

import pytest

from model.config import Config
from tests.estimates_rows import BATCHES, all_rows, nsight, parameters, step
from tests.tune.experiments.this_process import place_of
from tune.devices import Devices
from tune.experiments.base import ExperimentSettings
from tune.experiments.estimates import ESTIMATES, SHAPE, line, points, slopes, work

DEVICES = Devices(kind="cpu", count=2, model="core", precisions=("fp32",), cores=2)
GPUS = Devices(kind="cuda", count=1, model="GPU", precisions=("fp32",), cores=1)


def measured(asked: dict[str, Any], **config: Any) -> dict[str, Any]:
    """The row that the work ends with, as the bench keeps it."""
    whole: Any = SHAPE | config
    *_, last = work(place_of(Config(family="nanogpt", **whole), None, Path()), asked)
    assert last.row is not None
    return {"asked": asked, "config": whole, "devices": 1} | last.row


def test_the_right_formula_holds_for_a_real_block_and_heads_do_not_count():
    rows = [measured({"measure": "block", "batch": batch}) for batch in (2, 4)]
    assert slopes([*rows, *(step("block", batch) for batch in BATCHES)]).rows[0][-1] == "1.000"
    for of in ("forward", "step"):
        assert all(row[f"{of}_flops"] == row[f"paper_{of}_flops"] for row in rows)
    assert measured({"measure": "block", "batch": 2}, heads=8)["step_flops"] == rows[0]["step_flops"]
    assert rows[0]["kept_bytes"] == pytest.approx(rows[0]["paper_kept_bytes"], rel=0.02)
    assert all(line(row) for row in rows)


def test_parameters_are_the_reports():
    row = measured({"measure": "parameters"})
    assert (row["parameters"], row["layered"]) == (13_586_878, 13_466_278)
    assert {name.rpartition(".")[2] for name in row["left_out"]} == {"in_proj_weight", "in_proj_bias"}


REFUSED = {
    "memory: a step of 64 rows needs about": {"measure": "model", "batch": 64, "memory_limit": 10**8},
    "there is no GPU here: its counters are read on a machine with one": {"measure": "nsight", "batches": [16]},
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_cannot_be_measured_is_told(said):
    with pytest.raises(ValueError, match=said):
        measured(REFUSED[said])


def test_every_batch_of_both_is_asked_for_and_a_limit_is_passed_on():
    asked = points(DEVICES, ExperimentSettings(budget="1h", families="nanogpt", memory_limit="4GB"))
    assert len({point.key for point in asked}) == len(asked)
    for what in ("block", "model"):
        own = [point.asked for point in asked if point.asked["measure"] == what and point.config == SHAPE]
        assert [each["batch"] for each in own] == list(BATCHES)
    assert {point.asked.get("memory_limit") for point in asked if point.asked["measure"] == "model"} == {4 * 10**9}
    assert all(point.least_seconds <= point.seconds for point in asked)


def test_a_gpus_counters_are_asked_for_where_there_is_a_gpu():
    settings = ExperimentSettings(budget="1h", families="nanogpt")
    asked = {each: [point.asked["measure"] for point in points(each, settings)] for each in (DEVICES, GPUS)}
    assert "nsight" not in asked[DEVICES] and asked[GPUS].count("nsight") == 1


def test_the_reports_slopes_come_out_of_its_own_figures():
    found = next(cells for cells in slopes(all_rows()).rows if cells[0] == "published, by Nsight")
    assert float(found[1]) == pytest.approx(2.84, abs=0.02) and float(found[2]) == pytest.approx(2.67, abs=0.01)


def test_no_table_is_empty():
    made = ESTIMATES.tables(all_rows())
    assert len(made) == 4 and all(table.rows for table in made)
    alone = [parameters(), step("model", 16), nsight()]
    assert sum(bool(table.rows) for table in ESTIMATES.tables(alone)) == 3


def test_what_held_stands_in_the_tables():
    parts, flops, of_flops, _ = ESTIMATES.tables(all_rows())
    assert [cells[1:3] for cells in flops.rows[:3]] == [["16", "1"], ["16", "2"], ["16", "8"]]
    assert parts.rows[-1][0].startswith("120,600 fewer") and parts.rows[-1][1] == "13,466,278"
    assert next(cells for cells in of_flops.rows if cells[0] == "step counted")[-1] == "1.000"
    rows = [row | {"step_flops": 1.1 * row.get("step_flops", 0)} for row in all_rows()]
    assert next(cells for cells in ESTIMATES.tables(rows)[2].rows if cells[0] == "step counted")[-1] == "1.100"
