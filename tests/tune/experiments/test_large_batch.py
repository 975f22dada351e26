"""The experiment large_batch: equal samples in every training, and what its tables make of rows."""

import itertools
import json
import math
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.legend import Legend

from analysis.experiments.large_batch import losses, losses_table
from analysis.study import open_study
from model.config import RECIPES, Config
from model.data.dataset import TextData
from tests.analysis.conftest import Written
from tune.arithmetic import mean_interval
from tune.backend.worker_group import Place
from tune.devices import Devices
from tune.experiments import large_batch as its_work
from tune.experiments.base import ExperimentSettings
from tune.experiments.large_batch import BASE_RATE, RULES, TIMES, line, points, tables, work
from tune.experiments.tables import with_interval

SMALL: dict[str, Any] = {"d_model": 16, "heads": 4, "layers": 2, "context": 16, "warm_up_steps": 4}
TOKENS, STEPS = 128, 40
LATE = 1e9


def asked_points(**settings: Any) -> list[Any]:
    devices = Devices(kind="cpu", count=2, model="core", precisions=("fp32",), cores=2)
    return points(devices, ExperimentSettings(budget="1h", families="nanogpt", **settings))


def trainings(found: list[Any]) -> list[Any]:
    return [point for point in found if point.asked["measure"] == "training"]


@pytest.mark.parametrize("scale", [0.3, 0.001])
def test_every_training_is_asked_for_equal_samples(scale):
    found = trainings(asked_points(scale=scale))
    assert len({point.asked["steps"] * point.config["batch_tokens"] for point in found}) == 1
    asked = {(point.asked["times"], point.asked["rule"]) for point in found}
    every = set(itertools.product(TIMES[1:], ("unchanged", "linear", "square root", "LARS")))
    assert asked == every | {(1, "unchanged"), (1, "LARS")}, "with the recipe's batch no rule changes AdamW's rate"


def test_only_batch_rate_and_seed_change_beside_adamw_and_each_seed_repeats_all():
    found = asked_points(seeds=3, seed=5)
    assert {name for point in found for name in point.config} == {"batch_tokens", "learning_rate", "optimizer", "seed"}
    assert [point.config["seed"] for point in found] == [seed for seed in (5, 6, 7) for _ in range(len(found) // 3)]
    assert len({point.key for point in found}) == len(found) and {point.devices for point in found} == {2}


def test_the_batch_is_the_recipes_or_the_one_that_is_set_and_the_rate_follows_it():
    own = {point.asked["times"]: point.config for point in trainings(asked_points()) if point.asked["rule"] == "linear"}
    given = asked_points(set={"batch_tokens": 4 * RECIPES["nanogpt"]["batch_tokens"]})
    base = next(point.config for point in trainings(given) if point.asked["times"] == 1)
    assert base["batch_tokens"] == own[4]["batch_tokens"]
    assert base["learning_rate"] == pytest.approx(2 * RECIPES["nanogpt"]["learning_rate"])
    assert {point.config["batch_tokens"] for point in given if "batch_tokens" in point.config} == {
        times * base["batch_tokens"] for times in TIMES
    }
    set_too = asked_points(set={"batch_tokens": 6144, "learning_rate": 0.001})
    assert next(point.config["learning_rate"] for point in trainings(set_too)) == 0.001


def worked(data: TextData, folder: Path, asked: dict[str, Any], seconds: float = LATE, **config: Any) -> dict[str, Any]:
    """The row of one point, in this process."""
    made = Config(family="nanogpt", **SMALL, **config)
    place = Place(config=made, data=data, device=torch.device("cpu"), folder=folder, ends=time.monotonic() + seconds)
    *before, last = work(place, asked)
    assert [said.what for said in before] == ["start", *["steps"] * (len(before) - 1)] and last.what == "evaluation"
    return {"key": json.dumps(asked), "devices": 1, "asked": asked, "config": config} | json.loads(json.dumps(last.row))


@pytest.fixture(scope="module")
def rows(text_data: TextData, warm: None, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Two batches, each rule, and both orders; what no time was for."""
    folder, found = tmp_path_factory.mktemp("trials"), []
    for times, rule in ((1, "unchanged"), (1, "LARS"), *((4, name) for name in RULES)):
        asked = {"measure": "training", "rule": rule, "times": times, "steps": STEPS // times}
        rate = RULES[rule].rate(BASE_RATE if rule == "LARS" else 1e-2, times)
        found.append(
            worked(text_data, folder / f"{times} {rule}", asked, batch_tokens=times * TOKENS, learning_rate=rate)
        )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(its_work, "EPOCH_BATCHES", 4)
        for on in (True, False):
            asked = {"measure": "epochs", "set_epoch": on, "epochs": 3, "steps": 3 * 4}
            found.append(worked(text_data, folder / "epochs", asked, batch_tokens=TOKENS))
    return [*found, {"key": "late", "asked": {"measure": "training", "rule": "linear", "times": 16}, "skipped": "why"}]


def test_every_training_saw_equal_samples_and_learned(rows):
    found = [row for row in rows if row["asked"]["measure"] == "training" and "skipped" not in row]
    assert {row["samples"] for row in found} == {STEPS * 8} and {row["tokens"] for row in found} == {STEPS * TOKENS}
    assert {row["batch_tokens"] for row in found} == {TOKENS, 4 * TOKENS}
    assert all(row["valid_loss"] < 0.97 * math.log(16) for row in found), [row["valid_loss"] for row in found]
    assert len({row["valid_loss"] for row in found}) == len(found), "each rule is a training of its own"
    assert all(len(row["noise_course"]) == 5 for row in found)


def test_set_epoch_is_a_new_order_each_epoch(rows):
    on, off = (row for row in rows if row["asked"]["measure"] == "epochs")
    assert (on["orders"], off["orders"]) == (3, 1) and on["samples"] == off["samples"] == 3 * on["epoch_samples"]
    assert on["valid_loss"] != off["valid_loss"]


def test_too_little_time_is_no_row_and_the_next_goes_on_from_there(text_data, tmp_path):
    asked = {"measure": "training", "rule": "unchanged", "times": 1, "steps": 8}
    with pytest.raises(ValueError, match=r"^steps: there was time for \d+ of 8: go on with --resume"):
        worked(text_data, tmp_path, asked, seconds=0.0, batch_tokens=TOKENS)
    assert worked(text_data, tmp_path, asked, batch_tokens=TOKENS)["steps"] == 8


def test_a_training_that_diverges_has_no_loss(text_data, tmp_path):
    asked = {"measure": "training", "rule": "unchanged", "times": 1, "steps": 8}
    row = worked(text_data, tmp_path, asked, batch_tokens=TOKENS, learning_rate=1e30)
    assert [row[name] for name in ("train_loss", "valid_loss", "accuracy")] == [None] * 3 and row["steps"] == 8


def test_published_figures_stand_beside(rows):
    assert all(line(row) for row in rows if "skipped" not in row) and line({"valid_loss": None}) == "diverged"
    made = tables(rows)
    assert len(made) == 3 and all(table.rows for table in made) and tables([]) == []
    beside = {cells[1]: cells[-2:] for cells in made[0].rows if cells[2] == "unchanged"}
    assert beside["x1"] == ["0.05", "61.9%"] and beside["x4"] == ["-", "-"]


def lost(rows: list[dict[str, Any]], **losses: float | None) -> list[dict[str, Any]]:
    """The rows with these losses of the larger batch, and 1.0 of the recipe's."""
    named = {"square root": "root"}
    return [row | {"valid_loss": losses.get(named.get(row["asked"]["rule"], row["asked"]["rule"]), 1.0)
                   if row["asked"]["times"] > 1 else 1.0}
            for row in rows if row["asked"]["measure"] == "training" and "skipped" not in row]  # fmt: skip


def test_of_several_seeds_the_mean_and_its_interval(rows):
    first, second = lost(rows), lost(rows, unchanged=2.0)
    (table, *_) = tables([*first, *second])
    cells = {(cells[1], cells[2]): cells for cells in table.rows}
    assert cells["x4", "unchanged"][7] == with_interval(mean_interval([1.0, 2.0]), "{:.4f}")
    assert cells["x4", "linear"][7] == "1.0000 (1.0000-1.0000)"
    (table, *_) = tables(lost(rows, linear=None))
    assert [cells[7] for cells in table.rows if cells[2] == "linear"] == ["diverged"]


def test_the_picture_is_of_the_rows(rows, tmp_path):
    written = Written(tmp_path / "study", experiment="large_batch")
    written.trial("t001")
    for row in lost(rows, unchanged=1.5, linear=None, root=1.25, LARS=1.375):
        written.journal.insert("rows", {"at": 0.0, "experiment": "large_batch", "value": json.dumps(row)})
    written.journal.close()
    study = open_study(written.folder)
    table = losses_table(study).set_index(["rule", "times"])
    assert math.isnan(table.loc["linear", 4]["loss"]) and table.loc["square root", 4]["loss"] == 1.25
    (legend,) = losses(study).figure.axes[0].findobj(Legend)
    assert {each.get_text() for each in legend.get_texts()} & {*RULES} == {*RULES} - {"linear"}
