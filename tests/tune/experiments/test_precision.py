"""The experiment on precisions: what it asks for, what a device lacks, and differences paired by seed."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from model.config import Config
from model.data.dataset import TextData
from model.nn.precision import PRECISIONS, native
from tests.training_rows import precise
from tune.backend.worker_group import Place
from tune.devices import Devices
from tune.experiments import whole_training
from tune.experiments.base import ExperimentSettings
from tune.experiments.precision import (
    FULL_STEPS,
    by_precision,
    conclusions,
    line,
    paired,
    points,
    report_seconds,
    tables,
    work,
)

DEVICES = Devices(kind="cpu", count=1, model="core", precisions=("fp32", "bf16"), cores=1)
LOSSES = {"fp32": [1.70, 1.72, 1.71], "bf16": [1.705, 1.725, 1.715]}


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peak that nothing measures."""
    monkeypatch.setattr("tune.experiments.whole_training.peak", lambda *_: 1e11)


def asked(**more: Any) -> list[Any]:
    return points(DEVICES, ExperimentSettings(**({"budget": "1h", "families": "nanogpt"} | more)))


def test_every_precision_is_asked_for_and_those_that_lack_once():
    found = [(point.config["precision"], point.config["seed"]) for point in asked(seeds=2)]
    assert found == [*((precision, 0) for precision in PRECISIONS), ("fp32", 1), ("bf16", 1)]
    assert {point.asked["steps"] for point in asked(scale=0.1)} == {FULL_STEPS // 10}
    prices = {point.config["precision"]: point.least for point in asked()}
    assert prices["tf32"] < prices["fp32"]


@pytest.fixture
def place(
    small_text: Config, text_data: TextData, tmp_path: Path, eager: None, monkeypatch: pytest.MonkeyPatch
) -> Place:
    monkeypatch.setattr(whole_training, "EVALUATION_TOKENS", 256)
    monkeypatch.setattr(whole_training, "peak_on", lambda *_: 1e11)
    device, ends = torch.device("cpu"), time.monotonic() + 600
    return Place(config=small_text, data=text_data, device=device, folder=tmp_path, ends=ends)


def test_a_training_has_its_curve_and_no_translations(place):
    *_, last = work(place, {"steps": 4})
    assert last.row["curve"][-1][-1] == last.row["valid_loss"] and "bleu" not in last.row and line(last.row)


@pytest.mark.parametrize("precision", [each for each in PRECISIONS if each not in native("cpu")])
def test_what_the_device_lacks_is_refused_with_its_reason(place, precision):
    lacking = Place(**{**vars(place), "config": Config(family="nanogpt", precision=precision)})
    reason = "would be fp32" if precision == "tf32" else f"has no fast {precision}: it has"
    with pytest.raises(ValueError, match=reason):
        list(work(lacking, {"steps": 2}))


def test_differences_are_of_equal_seeds():
    found = by_precision(precise(LOSSES, {"fp32": 60.0, "bf16": 30.0}))
    assert paired(found, "bf16", lambda base, row: row["valid_loss"] - base["valid_loss"]) == pytest.approx([0.005] * 3)
    found["fp32"].pop()
    assert len(paired(found, "bf16", lambda base, row: 0.0)) == 2


def test_conclusions_say_what_is_more_than_noise():
    seconds = {"fp32": 60.0, "bf16": 30.0}
    time_, loss = conclusions(precise(LOSSES, seconds))
    assert time_.startswith("bf16 takes 50 % less time than fp32 (the report: 6 % less)") and report_seconds() > 200
    assert "+0.0050 from fp32's, which is more than noise" in loss
    noisy = {"fp32": [1.70, 1.72, 1.71], "bf16": [1.75, 1.70, 1.70]}
    assert "which these seeds do not tell from noise" in conclusions(precise(noisy, seconds))[1]
    assert "give --seeds" in conclusions(precise({name: [1.7] for name in LOSSES}, seconds))[1]


def test_every_table_has_a_cell_for_each_column():
    rows = precise(LOSSES, {"fp32": 60.0, "bf16": 30.0})
    lacking = {"asked": {"steps": 8}, "config": {"precision": "tf32", "seed": 0}, "devices": 1, "skipped": "why"}
    made = tables([*rows, lacking])
    assert len(made) == 5
    for table in made:
        assert {len(cells) for cells in table.rows} == {len(table.columns)}, table.title
    assert tables([]) == [] and conclusions([]) == []
