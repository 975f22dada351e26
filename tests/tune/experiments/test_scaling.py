"""What the scaling experiment asks for, and what its tables make of rows."""

import pytest

from tests.scaling_rows import all_rows, computing, step, training
from tune.devices import Devices
from tune.experiments.base import ExperimentSettings
from tune.experiments.scaling import (
    BATCHES,
    as_reported,
    counts,
    line,
    pairs,
    points,
    published_speed_ups,
    published_steps,
    ring,
    speed_up,
    steps_of,
    tables,
)  # fmt: skip


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
    epochs = 240 * computing(32), 480 * computing(32)
    steps[2, 64] |= {"epoch_steps": 240, "step_seconds": [computing(32)] * 3}
    assert as_reported(steps, 2, 64) == pytest.approx((epochs[0] - epochs[1] / 2) / 240)
    steps[2, 64]["step_seconds"] = [2 * computing(32)] * 3
    assert as_reported(steps, 2, 64) == pytest.approx(computing(32)), "with no byte communicated"


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


def test_a_ring_of_four_passes_all_bytes_one_and_a_half_times():
    assert ring(4) == 1.5 and ring(2) == 1.0
