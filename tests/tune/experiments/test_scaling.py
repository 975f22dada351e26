"""What the scaling experiment asks for, and what its tables make of rows."""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from model.families import FAMILIES, Family
from tests.scaling_rows import BYTES, MACHINE, all_rows, network, step, training
from tune.devices import Devices
from tune.errors import UserError
from tune.experiments.base import ExperimentSettings
from tune.experiments.scaling import BATCHES, counts, line, points, trained
from tune.experiments.scaling_tables import (
    StepModel,
    as_reported,
    contention,
    models,
    pairs,
    predicted,
    published_speed_ups,
    published_steps,
    ring,
    speed_up,
    steps_of,
    tables,
)


def test_devices_double_up_to_all_of_them():
    found = {slots: counts(slots) for slots in (1, 3, 6, 8)}
    assert found == {1: [1], 3: [1, 2, 3], 6: [1, 2, 4, 6], 8: [1, 2, 4, 8]}


def test_each_batch_is_measured_weakly_and_strongly_on_every_number_of_devices():
    devices = Devices(kind="cpu", count=4, model="core", precisions=("fp32",), cores=4)
    asked = points(devices, ExperimentSettings(budget="1h", families="nanogpt"))
    assert len({point.key for point in asked}) == len(asked)
    steps = {(point.devices, point.asked["rows"]) for point in asked if point.asked["measure"] == "steps"}
    assert steps == {(count, batch * each) for count in (1, 2, 4) for batch in BATCHES for each in (1, count)}
    alone = {point.asked["measure"] for point in asked if point.devices == 1}
    assert alone == {"steps", "training"}, "one device has nobody to talk to"


def test_without_communication_twice_the_devices_are_twice_as_fast():
    single, free = step(1, 32), step(2, 64)
    free["rounds"]["step"] = single["rounds"]["step"]
    assert speed_up(single, free, weak=True) == pytest.approx((2, 2, 2))
    free["rounds"]["step"] = [seconds / 2 for seconds in single["rounds"]["step"]]
    assert speed_up(single, free, weak=False) == pytest.approx((2, 2, 2))


def test_weak_pairs_have_one_batch_a_device_and_strong_ones_one_in_all():
    steps = steps_of(all_rows())
    assert {row["asked"]["rows"] / row["devices"] / batch for batch, _, row in pairs(steps, weak=True)} == {1}
    assert {row["asked"]["rows"] / batch for batch, _, row in pairs(steps, weak=False)} == {1}
    assert {single["devices"] for weak in (True, False) for _, single, _ in pairs(steps, weak=weak)} == {1}


def test_the_reports_formula_calls_compute_that_does_not_scale_communication():
    steps = {(1, 32): step(1, 32), (2, 64): step(2, 64)}
    epochs = 240 * MACHINE.step(32, 0, 1), 480 * MACHINE.step(32, 0, 1)
    steps[2, 64] |= {"epoch_steps": 240, "step_seconds": [MACHINE.step(32, 0, 1)] * 3}
    assert as_reported(steps, 2, 64) == pytest.approx((epochs[0] - epochs[1] / 2) / 240)
    steps[2, 64]["step_seconds"] = [2 * MACHINE.step(32, 0, 1)] * 3
    assert as_reported(steps, 2, 64) == pytest.approx(MACHINE.step(32, 0, 1)), "with no byte communicated"


def test_the_machine_is_found_again_and_a_batch_left_out_predicted():
    found = models(all_rows())
    assert set(found) == {2, 4}
    for model in found.values():
        for name in ("fixed", "row", "latency", "bandwidth", "exposed"):
            assert getattr(model, name) == pytest.approx(getattr(MACHINE, name))
    errors = [seconds / row["step_seconds"][0] for *_, seconds, row in predicted(all_rows())]
    assert len(errors) == 6 + 4 and errors == pytest.approx([1.0] * len(errors))


def test_a_batch_left_out_is_really_left_out():
    rows = [network(2), *(step(2, batch) for batch in (64, 128, 256))]
    rows[-1]["unsynced_seconds"] = rows[-1]["exposed_seconds"] = [1e9] * 3
    ((*_, predicted_seconds, _),) = (each for each in predicted(rows) if each[1] == 128)
    assert predicted_seconds == pytest.approx(MACHINE.step(128, BYTES, 2))


def test_a_disturbed_row_is_marked_and_is_no_ground_for_a_forecast():
    rows = all_rows()
    for row in rows:
        if row["devices"] == 2 and row["asked"].get("rows") == 256:
            row |= {"disturbed": True, "others_cores": 0.7, "unsynced_seconds": [9.0] * 3, "exposed_seconds": [9.0] * 3}
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
    assert models(rows)[2].fixed == pytest.approx(MACHINE.fixed)
    assert 128 not in [batch for count, batch, *_ in predicted(rows) if count == 2]
    rows = [row | {"disturbed": True} if row["asked"]["measure"] == "network" else row for row in rows]
    assert models(rows) == {}, "nor is communication alone that was disturbed"


def test_no_forecast_comes_from_ranks_that_contend():
    rows = all_rows()
    for row in rows:
        if row["devices"] == 4 and "unsynced_seconds" in row:
            row["unsynced_seconds"] = [1.5 * seconds for seconds in row["unsynced_seconds"]]
    assert contention(rows) == pytest.approx({2: 1.0, 4: 1.5})
    assert set(models(rows)) == {2} and {count for count, *_ in predicted(rows)} == {2}
    assert "4 devices: none, as their ranks contend" in tables(rows)[-1].note


@pytest.mark.parametrize(
    ("space", "smaller"),
    [
        (FAMILIES["nanogpt"].space, "a larger --budget, or begin anew with a smaller --fix d_model or layers"),
        (
            {"width": (8, 16), "blocks": (1, 2), "gate": ("relu", "gelu"), "learning_rate": (0.1, 0.2)},
            "a larger --budget, or begin anew with a smaller --fix width or blocks",
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
        list(trained(learner, lambda: -1.0, steps=8, every=4, factor=lambda step: 1.0, folder=tmp_path))
    assert str(told.value) == f"steps: there was time for 0 of 8: go on with --resume and {smaller}"


def test_every_table_has_a_cell_for_each_column_and_none_is_empty():
    assert all(line(row) for row in all_rows())
    made = tables(all_rows())
    assert len(made) == 8
    for table in made:
        assert {len(cells) for cells in table.rows} == {len(table.columns)}, table.title
    diverged = training(2) | {"train_loss": None, "valid_loss": None, "accuracy": None}
    assert line(diverged) == "validation loss - after 200 steps"
    assert tables([diverged])[0].rows == [["2", "12", "200", "-", "-", "-", "3.0"]]


def test_of_no_rows_and_of_one_device_there_is_less_to_tell():
    assert tables([]) == []
    alone = [row for row in all_rows() if row["devices"] == 1]
    assert [table.title.split()[0] for table in tables(alone)] == ["Weak", "Strong", "Training", "Start-up"]
    assert tables([{"devices": 1, "asked": {"measure": "steps", "rows": 32}, "skipped": "why"}]) == []


def test_published_speed_ups_are_of_the_reports_own_epochs_beside_what_it_prints():
    weak = {tuple(cells[:2]): cells[-3:] for cells in tables(all_rows())[0].rows}
    assert [weak["2", batch] for batch in ("32", "128", "512")] == [
        ["16.18", "1.23", "1.18"], ["11.05", "1.71", "1.42"], ["11.1", "1.84", "1.45"]
    ]  # fmt: skip
    printed = {key: row["speed_up"] for key, row in published_steps().items()}
    for key, times in published_speed_ups().items():
        assert printed[key] == pytest.approx(2 - 1 / times, abs=0.02), "what its printed figures are"


def test_one_device_has_nothing_to_communicate():
    assert MACHINE.step(10, BYTES, 1) == MACHINE.fixed + 10 * MACHINE.row


def test_a_ring_of_four_passes_six_messages_of_a_quarter_each():
    assert ring(4) == (6, 1.5) and ring(2) == (2, 1.0)


def test_no_part_of_a_step_is_below_zero():
    found = StepModel.fitted(
        compute={10: 1.0, 20: 2.2}, exposed={10: 0.1, 20: 0.1}, alone={10: 0.1, 1000: 0.2}, size=100, ranks=2
    )
    assert found.fixed == 0.0 and found.row > 0
