"""The experiment on precisions: what it asks for, what a device lacks, and differences paired by seed."""

from dataclasses import replace
from typing import Any

import pytest

from tests.training_rows import precise
from tune.devices import Devices
from tune.experiments.base import ExperimentSettings
from tune.experiments.lists import make_list_context
from tune.experiments.precision import (
    FULL_STEPS,
    PRECISION,
    added,
    by_precision,
    faster,
    points,
    report_seconds,
    tables,
)
from tune.experiments.tables import by_seed

DEVICES = Devices(kind="cpu", count=1, model="core", precisions=("fp32", "bf16"), cores=1)
LOSSES = {"fp32": [1.70, 1.72, 1.71], "bf16": [1.705, 1.725, 1.715]}
pytestmark = pytest.mark.usefixtures("known_prices")


def asked(**more: Any) -> list[Any]:
    return points(DEVICES, ExperimentSettings(**({"budget": "1h", "families": "nanogpt"} | more)))


def test_every_precision_that_the_device_has_is_asked_for_with_every_seed():
    found = [(point.config["precision"], point.config["seed"]) for point in asked(seeds=2)]
    assert found == [(precision, seed) for seed in (0, 1) for precision in DEVICES.precisions]
    assert {point.asked["steps"] for point in asked(scale=0.1)} == {FULL_STEPS // 10}


@pytest.mark.parametrize(("precisions", "alone"), [(("fp32",), True), (("fp32", "bf16"), False)])
def test_a_device_with_one_precision_is_told_to_compare_nothing(precisions, alone, monkeypatch):
    devices = replace(DEVICES, precisions=precisions)
    monkeypatch.setattr("tune.experiments.base.find_devices", lambda settings: devices)
    given = ExperimentSettings(budget=3600.0, families="nanogpt", text_corpus="builtin", seeds=2)
    notes = make_list_context(PRECISION, given, devices).notes
    assert any("compared with none" in note for note in notes) == alone


def test_differences_are_of_equal_seeds():
    found = by_precision(precise(LOSSES, {"fp32": 60.0, "bf16": 30.0}))
    assert added("valid_loss")(by_seed(found["bf16"], found["fp32"])) == pytest.approx([0.005] * 3)
    found["fp32"].pop()
    assert len(by_seed(found["bf16"], found["fp32"])) == 2


def test_tables_say_what_is_saved():
    rows = precise(LOSSES, {"fp32": 60.0, "bf16": 30.0})
    for row in rows:
        row["step_bytes"] = {"fp32": 8e6, "bf16": 6e6}[row["config"]["precision"]]
    made = tables(rows)
    assert len(made) == 3
    saved, lighter = "+50.0", "+25.0"
    name, seconds, loss, _, memory = made[2].rows[0]
    assert (name, seconds, loss, memory) == ("bf16", saved, "+0.0050", lighter)
    assert made[2].rows[1][1] == f"{100 * 14 / report_seconds():+.1f}"


@pytest.mark.parametrize("lacking", ["fp32", "bf16"])
def test_memory_is_compared_by_one_measure(lacking):
    """Where no lease paid for counting a step's, by what the process took, of both."""
    rows = precise(LOSSES, {"fp32": 60.0, "bf16": 30.0})
    for row in rows:
        row |= {"memory_bytes": 4e8, "step_bytes": 4e7}
    next(row for row in rows if row["config"]["precision"] == lacking)["step_bytes"] = None
    _, cost, saved = tables(rows)
    assert saved.rows[0][4].startswith("+0.0") and cost.rows[0][5] == cost.rows[1][5]


def test_seconds_that_were_taken_in_turns_count_and_those_of_trainings_where_there_are_none():
    rows = precise(LOSSES, {"fp32": 60.0, "bf16": 50.0})
    for row in rows:
        row["step_ratio"] = {"fp32": 1.0, "bf16": 0.75}[row["config"]["precision"]]
    rows[0]["step_ratio"] = None  # there was no time for it
    found = by_precision(rows)
    assert faster(by_seed(found["bf16"], found["fp32"])) == pytest.approx([0.25] * 2)
    for row in rows:
        row["step_ratio"] = None
    assert faster(by_seed(found["bf16"], found["fp32"])) == pytest.approx([1 / 6] * 3)
