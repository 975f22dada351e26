"""One configuration on more devices: what is asked for, what tables make of rows, a training of all ranks with
checkpoints; and each way to train on several against the default.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from analysis.experiments.scaling import ways
from kernels.timing import CORES_TAKEN
from model.config import Config
from model.data.dataset import TextData
from model.families import FAMILIES, Family
from tests.analysis.conftest import study_of_rows
from tests.scaling_rows import all_rows, computing, step, training
from tests.tune.experiments.this_process import place_of
from tune.devices import Devices
from tune.errors import UserError
from tune.experiments import data_parallel, parallel_timing, prices, scaling
from tune.experiments.base import ExperimentSettings
from tune.experiments.prices import rank_step_price
from tune.experiments.scaling import (
    BATCHES,
    SCALING,
    as_reported,
    counts,
    line,
    pairs,
    points,
    published_steps,
    ring,
    steps_of,
    tables,
    times_as_fast,
)
from tune.experiments.tables import final_tables
from tune.experiments.training import train_with_checkpoints
from tune.published import published_speed_ups


def test_devices_double_up_to_all_of_them():
    found = {slots: counts(slots) for slots in (1, 3, 6, 8)}
    assert found == {1: [1], 3: [1, 2, 3], 6: [1, 2, 4, 6], 8: [1, 2, 4, 8]}


def test_each_batch_is_measured_weakly_and_strongly_on_every_number_of_devices(known_prices):
    devices = Devices(kind="cpu", count=4, model="core", precisions=("fp32",), cores=4)
    asked = points(devices, ExperimentSettings(budget="1h", families="nanogpt"))
    assert len({point.key for point in asked}) == len(asked)
    steps = {(point.devices, point.asked["rows"]) for point in asked if point.asked["measure"] == "steps"}
    assert steps == {(count, batch * each) for count in (1, 2, 4) for batch in BATCHES for each in (1, count)}
    alone = {point.asked["measure"] for point in asked if point.devices == 1}
    assert alone == {"steps", "training"}, "one device has nobody to talk to"


def test_without_communication_twice_the_devices_are_twice_as_fast():
    single, free = step(1, 32), step(2, 64)
    free["rounds"]["step"], free["tokens"] = single["rounds"]["step"], 1.1 * free["tokens"]  # texts differ in length
    assert times_as_fast(single, free, weak=True) == pytest.approx((2, 2, 2))
    free["rounds"]["step"] = [seconds / 2 for seconds in single["rounds"]["step"]]
    assert times_as_fast(single, free, weak=False) == pytest.approx((2, 2, 2))


def test_weak_pairs_have_one_batch_a_device_and_strong_ones_one_in_all():
    steps = steps_of(all_rows())
    assert {row["asked"]["rows"] / row["devices"] / batch for batch, _, row in pairs(steps, weak=True)} == {1}
    assert {row["asked"]["rows"] / batch for batch, _, row in pairs(steps, weak=False)} == {1}
    assert {single["devices"] for weak in (True, False) for _, single, _ in pairs(steps, weak=weak)} == {1}


def test_the_reports_formula_calls_compute_that_does_not_scale_communication():
    steps = {(1, 32): step(1, 32), (2, 64): step(2, 64)}
    epochs = 240 * computing(32), 480 * computing(32)
    steps[2, 64] |= {"epoch_steps": 240, "step_seconds": [computing(32)] * 3}
    assert as_reported(steps, 2, 64) == pytest.approx((epochs[0] - epochs[1] / 2) / 240)
    steps[2, 64]["step_seconds"] = [2 * computing(32)] * 3
    assert as_reported(steps, 2, 64) == pytest.approx(computing(32)), "with no byte communicated"
    steps[2, 64]["epoch_steps"] = 239
    assert as_reported(steps, 2, 64) == pytest.approx(computing(32)), "and whatever rows an epoch has left over"


def test_a_disturbed_row_is_marked_in_each_table_that_has_it():
    rows = all_rows()
    for row in rows:
        if row["devices"] == 2 and row["asked"].get("rows") == 256:
            row |= {"disturbed": True, "others_cores": 0.7}
        if row["devices"] == 2 and row["asked"]["measure"] == "accumulation":
            row |= {"disturbed": True, "others_cores": 0.8}
    made = {table.title: table for table in tables(rows)}
    marked = {title: [cells[:3] for cells in table.rows if any("*" in cell for cell in cells)]
              for title, table in made.items()}  # fmt: skip
    weak, strong, communication, bandwidth, accumulation, *others = marked.values()
    assert [cells[:2] for cells in weak] == [["2", "128"]] and strong == []
    assert [cells[:2] for cells in (*communication, *bandwidth)] == [["2", "256"]] * 2
    assert [cells[2] for cells in accumulation] == ["1", "2", "4", "8"] and not any(others)
    notes = [table.note for table in made.values()]
    assert ["up to 0.7 cores" in note for note in notes[:5]] == [True, True, True, True, False]
    assert "up to 0.8 cores" in notes[4]


def test_no_table_is_empty():
    assert all(line(row) for row in all_rows())
    made = tables(all_rows())
    assert len(made) == 7 and all(table.rows for table in made)
    diverged = training(2) | {"train_loss": None, "valid_loss": None, "accuracy": None}
    assert line(diverged) == "validation loss - after 200 steps"
    assert final_tables(SCALING, [diverged])[0].rows == [["2", "12", "200", "-", "-", "-", "3.0"]]


def test_of_one_device_there_is_less_to_tell():
    alone = [row for row in all_rows() if row["devices"] == 1]
    told = [table.title.split()[0] for table in tables(alone) if table.rows]
    assert told == ["Weak", "Strong", "Training", "Start-up"]
    assert final_tables(SCALING, [{"devices": 1, "asked": {"measure": "steps", "rows": 32}, "skipped": "why"}]) == []


def test_published_speed_ups_are_of_the_reports_own_epochs_beside_what_it_prints():
    weak = {tuple(cells[:2]): cells[-3:] for cells in tables(all_rows())[0].rows}
    assert [weak["2", batch] for batch in ("32", "128", "512")] == [
        ["16.18", "1.23", "1.18"], ["11.05", "1.71", "1.42"], ["11.1", "1.84", "1.45"]
    ]  # fmt: skip
    printed = {key: row["speed_up"] for key, row in published_steps().items()}
    for key, times in published_speed_ups().items():
        assert printed[key] == pytest.approx(2 - 1 / times, abs=0.02), "what its printed figures are"


def test_a_ring_of_four_passes_all_bytes_one_and_a_half_times():
    assert ring(4) == 1.5 and ring(2) == 1.0


@pytest.mark.parametrize(
    ("space", "smaller"),
    [
        (FAMILIES["nanogpt"].space, "a larger --budget, or begin again with a smaller --fix d_model or layers"),
        (
            {"width": (8, 16), "blocks": (1, 2), "gate": ("relu", "gelu"), "learning_rate": (0.1, 0.2)},
            "a larger --budget, or begin again with a smaller --fix width or blocks",
        ),
        ({"learning_rate": (0.1, 0.2)}, "a larger --budget"),
    ],
)
def test_who_has_too_little_time_is_told_the_sizes_of_the_family_that_it_is(
    tmp_path: Path, space: Mapping[str, Any], smaller: str
) -> None:
    family = type("Own", (Family,), {"space": space})()
    learner: Any = SimpleNamespace(steps=0, family=family, device=torch.device("cpu"))
    with pytest.raises(UserError) as told:
        list(train_with_checkpoints(learner, lambda: -1.0, steps=8, every=4, factor=lambda step: 1.0, folder=tmp_path))
    assert str(told.value) == f"steps: there was time for 0 of 8: go on with --resume and {smaller}"


def way(times: float, distance: float = 0.0, width: float = 0.01, **asked: Any) -> dict[str, Any]:
    """A way that is so many times as fast as the default."""
    found = {"default_seconds": [0.1] * 3, "seconds": [0.1 / times] * 3, "times": [times, times - width, times + width]}
    about = {"devices": 2, "backend": "gloo", "rows": 6, "bytes": 3 * 2**20, "config": {}}
    return {"key": json.dumps(asked), "asked": asked, "distance": distance} | about | found


WAYS = [
    way(1.001, way="default"), way(0.8, way="bucket_megabytes", value=1), way(1.2, way="static_graph", value=True),
    way(1.004, 3e-4, way="compression", value="fp16"),
    {"key": "x", "asked": {"way": "compression", "value": "bf16"}, "devices": 2, "skipped": "gloo refuses it"},
]  # fmt: skip


SETTINGS = ExperimentSettings(budget="1h", families="nanogpt")


@pytest.mark.parametrize("experiment", [SCALING, data_parallel.DATA_PARALLEL], ids=lambda each: each.name)
@pytest.mark.parametrize("price", [1e-3, 0.3, 20.0])
def test_no_point_is_given_less_than_its_first_rounds_take(experiment, price, monkeypatch):
    """Of steps that take as long as they are expected to."""
    for module in (scaling, data_parallel):
        monkeypatch.setattr(module, "rank_step_price", lambda *_, **__: price)
    devices = Devices(kind="cpu", count=2, model="core", precisions=("fp32",), cores=2)
    for point in experiment.points(devices, SETTINGS):
        if (measure := point.asked.get("measure")) in ("gradients", "training"):
            continue  # they have no rounds
        calls = scaling.COUNTS if measure == "accumulation" else (1, 1)[: point.devices]
        spent = [parallel_timing.WARM_CALLS * price * sum(calls)]

        def turn(name: str, batches: int, spent: list[float] = spent) -> dict[str, float]:
            spent.append(max(parallel_timing.TURN_SECONDS, parallel_timing.LEAST_CALLS * batches * price))
            return {name: price}

        turns = {f"way {place}": partial(turn, f"way {place}", each) for place, each in enumerate(calls)}
        rounds = parallel_timing.in_rounds(turns, lambda least=point.least_seconds, spent=spent: least - sum(spent))
        assert min(map(len, rounds.values())) >= parallel_timing.LEAST_ROUNDS and point.least_seconds <= point.seconds


def test_a_price_is_of_a_ranks_part_of_the_batch_and_none_is_known_of_ones_own_family(known_prices, monkeypatch):
    devices = Devices(kind="cpu", count=4, model="core", precisions=("fp32",), cores=4)
    one, half = (rank_step_price(SETTINGS, devices, count, rows=128) for count in (1, 2))
    assert half < one == pytest.approx(rank_step_price(SETTINGS, devices, 4, rows=512))
    assert rank_step_price(SETTINGS, replace(devices, cores=2), 4, rows=512) == pytest.approx(2 * one), (
        "they share cores"
    )
    monkeypatch.setattr(prices, "MADE_UP", {})
    assert rank_step_price(SETTINGS, devices, 2, rows=128) == 0.0


def test_every_way_that_devices_can_go_is_asked_for_on_all_of_them(known_prices):
    for kind in ("cpu", "cuda"):
        devices = Devices(kind=kind, count=3, model="one", precisions=("fp32",), cores=3)
        asked = data_parallel.points(devices, SETTINGS)
        ways = [point.asked for point in asked]
        assert {point.devices for point in asked} == {3} and len({point.key for point in asked}) == len(asked)
        left_out = [way for way in data_parallel.WAYS if way not in ways]
        refused = [{"way": "DataParallel"}, {"way": "compression", "value": "bf16"}]
        assert left_out == ([] if kind == "cuda" else refused), "what no CPU can do"


def test_the_table_has_every_way_and_the_reason_of_the_one_that_could_not_be_gone():
    (table,) = data_parallel.tables(WAYS)
    assert len(table.rows) == len(WAYS)
    assert table.rows[-1] == ["compression bf16", *["-"] * 4] and "gloo refuses it" in table.note
    (table,) = data_parallel.tables([WAYS[0], WAYS[1] | {"disturbed": True, "others_cores": 0.7}])
    assert ["*" in cells[3] for cells in table.rows] == [False, True] and "up to 0.7 cores" in table.note
    assert len(data_parallel.tables(WAYS[-1:])) == 1 and all(data_parallel.line(each) for each in WAYS[:-1])


def test_the_picture_of_ways_is_of_the_rows(tmp_path):
    table = ways(study_of_rows(tmp_path / "study", "data_parallel", WAYS)).data.set_index("way")
    assert table.index.to_list() == ["default", "bucket_megabytes 1", "static_graph", "compression fp16"]
    assert table.loc["static_graph", ["times", "low", "high"]].to_list() == pytest.approx([1.2, 1.19, 1.21])


@pytest.fixture
def place(small_text: Config, text_data: TextData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Of a rank that is alone in its group."""
    monkeypatch.setattr(parallel_timing, "TURN_SECONDS", 0.01)
    monkeypatch.setattr(parallel_timing, "MOST_ROUNDS", 5)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield place_of(small_text, text_data, tmp_path)
    dist.destroy_process_group()


def test_a_way_is_measured_in_turns_with_the_default(place):
    start, last = data_parallel.work(place, {"way": "static_graph", "value": True})
    assert (start.kind, last.kind) == ("start", "steps")
    found = json.loads(json.dumps(last.row))
    assert set(found["rounds"]) == {"default", "other"} and len(found["rounds"]["default"]) == 5
    assert found["disturbed"] == (found["others_cores"] > CORES_TAKEN), "and with others, if they took the machine"
    assert found["distance"] < 1e-6 and found["times"][1] <= found["times"][0] <= found["times"][2]


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_without_a_gpu_data_parallel_says_why_not(place):
    with pytest.raises(ValueError, match=r"^DataParallel: there is no GPU here: one process divides a batch among"):
        next(data_parallel.work(place, {"way": "DataParallel"}))
