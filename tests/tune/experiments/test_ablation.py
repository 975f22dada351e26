"""The ablation: what it asks for, the effects that it finds, the report's parameters, and a training to its end."""

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from model.config import Config
from model.cost.estimates import plain_parameters
from model.data.dataset import PairData
from model.training import train as training
from tests.training_rows import ablated, row
from tune.backend.worker_group import Place, Said
from tune.devices import Devices
from tune.experiments import whole_training
from tune.experiments.ablation import LONG, TIMES, line, points, steps_of, work
from tune.experiments.ablation_tables import (
    UNITS,
    WORDS,
    Shape,
    agreement,
    losses,
    shape_of,
    slopes,
    tables,
    theirs,
    twists,
)
from tune.experiments.base import ExperimentSettings
from tune.experiments.whole_training import Prices

CPU = Devices(kind="cpu", count=2, model="core", precisions=("fp32", "bf16"), cores=2)
STEPS = 8


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peak that nothing measures."""
    monkeypatch.setattr("tune.experiments.whole_training.peak", lambda *_: 1e11)


def settings(**more: Any) -> ExperimentSettings:
    return ExperimentSettings(**({"budget": "1h", "families": "translation", "scale": 0.01} | more))


def test_each_configuration_of_the_report_is_asked_for_at_equal_tokens():
    asked = points(CPU, settings())
    report = [point for point in asked if point.asked["set"] == "report"]
    assert {Shape(*(point.config[name] for name in Shape._fields)) for point in report} == set(theirs())
    assert len(report) == 33 and len({point.key for point in asked}) == len(asked)
    table = [point for point in asked if point.asked["set"] in ("report", "no dropout")]
    assert {point.asked["steps"] for point in table} == {steps_of(settings())}
    assert {point.config["d_model"] for point in table if point.config["dropout"] == 0} == {64, 128, 512}
    for point in asked:
        Config(family="translation", **point.config)


def test_scale_shortens_seeds_repeat_and_fix_leaves_out():
    short, long = steps_of(settings()), steps_of(settings(scale=0.1))
    assert long == pytest.approx(10 * short, rel=1e-3)
    once, thrice = points(CPU, settings()), points(CPU, settings(seeds=3, seed=5))
    assert {point.config["seed"] for point in thrice} == {5, 6, 7} and len(thrice) == len(once) + 2 * 36
    (longer,) = [point for point in thrice if point.asked["set"] == "longer"]
    assert longer.asked["steps"] == TIMES * short and LONG.items() <= longer.config.items()
    assert {point.config["d_model"] for point in points(CPU, settings(fix={"d_model": 64}))} == {64}
    with pytest.raises(ValueError, match="leaves none of the report's configurations"):
        points(CPU, settings(fix={"d_model": 96}))


def test_a_gpu_is_held_against_its_cpu_and_a_core_against_two():
    gpu = Devices(kind="cuda", count=1, model="GPU", precisions=("fp32",), cores=16)
    for devices, others in ((gpu, [("cuda", 1, 1), ("cpu", 16, 1)]), (CPU, [("cpu", 1, 1), ("cpu", 2, 2)])):
        compared = [point for point in points(devices, settings()) if point.asked["set"] == "compare"]
        assert [(each.asked["on"], each.asked["threads"], each.devices) for each in compared] == others
    assert not [each for each in points(replace(CPU, count=1), settings()) if each.asked["set"] == "compare"]


def test_what_is_larger_or_longer_has_a_higher_price():
    prices, small = Prices(CPU), Config(family="translation", d_model=64)
    whole = prices.whole(small, 1000)
    assert prices.whole(small, 2000) > 1.9 * whole > prices.whole(replace(small, layers=2), 1000)
    assert prices.whole(replace(small, d_model=512), 1000) > 10 * whole


def test_the_reports_parameters_are_counted():
    for shape, published in theirs().items():
        counted = plain_parameters(d_model=int(shape.d_model), layers=int(shape.layers), vocabulary=WORDS)
        assert counted / 1e6 == pytest.approx(published["parameters_million"], rel=0.01), shape


def additive(d_model: int, heads: int, layers: int, dropout: float, seed: int = 0) -> float:
    """A loss that each dimension changes on its own."""
    return 5 - 0.5 * math.log2(d_model) + 0.01 * math.log2(heads) - 0.1 * math.log2(layers) + dropout + seed


def test_effects_that_add_up_are_found_and_do_not_interact():
    shapes = {shape: additive(*shape) for shape in theirs()}
    for name, effect in zip(UNITS, (-0.5, 0.01, -0.1, 0.1), strict=True):
        assert slopes(shapes, name) and slopes(shapes, name) == pytest.approx([effect] * len(slopes(shapes, name)))
    for pair in (("d_model", "dropout"), ("layers", "dropout"), ("d_model", "layers")):
        found = twists(shapes, *pair)
        assert found and found == pytest.approx([0] * len(found), abs=1e-9)


def test_an_interaction_is_found_for_each_more_of_both():
    shapes = {shape: additive(*shape) + 0.3 * math.log2(shape.layers) * 10 * shape.dropout for shape in theirs()}
    assert twists(shapes, "layers", "dropout") == pytest.approx([0.3] * len(twists(shapes, "layers", "dropout")))
    assert twists(shapes, "dropout", "layers") == pytest.approx(twists(shapes, "layers", "dropout"))


def test_only_configurations_that_every_seed_has_are_compared():
    rows = ablated(points(CPU, settings(seeds=2)), additive)
    last = next(each for each in rows if each["config"]["seed"] == 1 and each["asked"]["set"] == "report")
    found = losses([each for each in rows if each is not last])
    assert set(found) == {0, 1} and set(found[0]) == set(found[1]) and shape_of(last["config"]) not in found[0]


def test_tables_have_a_cell_for_each_column_and_effects_an_interval_of_several_seeds():
    rows = ablated(points(CPU, settings(seeds=2)), additive)
    made = {table.title: table for table in tables(rows)}
    assert len(made) == 8
    for table in made.values():
        assert {len(cells) for cells in table.rows} == {len(table.columns)}, table.title
    assert len(made["What each configuration learned"].rows) == 36
    effect = {cells[0].partition(",")[0]: cells[2] for cells in made["Main effects"].rows}
    assert effect["d_model"] == "-0.500 (-0.500 to -0.500)" and set(effect) == set(UNITS)
    assert "of all pairs of the report's stand in its order" in made["What each configuration learned"].note
    assert tables([]) == []
    refused = row({"set": "report", "steps": 20}, rows[0]["config"], 1.0)
    left = {name: refused[name] for name in ("asked", "config", "devices", "key")} | {"skipped": "why"}
    assert [table.title for table in tables([left])] == ["The report's parameters", "Not measured"]


def test_of_equal_orders_all_pairs_agree_and_of_opposite_ones_none():
    ours = {shape: float(place) for place, shape in enumerate(theirs())}
    assert agreement(ours, ours) == 1 and agreement(ours, {shape: -loss for shape, loss in ours.items()}) == 0


@pytest.fixture
def place(
    small_pairs: Config, pair_data: PairData, tmp_path: Path, eager: None, monkeypatch: pytest.MonkeyPatch
) -> Place:
    monkeypatch.setattr(whole_training, "EVALUATION_TOKENS", 256)
    monkeypatch.setattr(whole_training, "SENTENCES", 2)
    monkeypatch.setattr(whole_training, "peak_on", lambda *_: 1e11)
    ends = time.monotonic() + 600
    return Place(config=small_pairs, data=pair_data, device=torch.device("cpu"), folder=tmp_path, ends=ends)


ASKED = {"set": "report", "steps": STEPS}


def row_of(said: Iterator[Said]) -> dict[str, Any]:
    *_, last = said
    assert last.row is not None
    return last.row


def test_a_training_has_the_reports_columns_and_ours_and_one_that_died_ends_where_it_would_have_ended(
    place, monkeypatch
):
    found = row_of(work(place, ASKED))
    assert {"key": "", "devices": 1, "asked": ASKED, "config": {}} | found and line(found)
    assert found["steps"] == STEPS and found["perplexity"] == pytest.approx(math.exp(found["valid_loss"]))
    assert found["tokens"] == pytest.approx(STEPS * 256, rel=0.05) and 0 <= found["bleu"] <= 100
    assert 16 * found["parameters"] < found["memory_bytes"] and found["process_bytes"] >= 0
    assert found["stored_bytes"] == pytest.approx(4 * found["parameters"], rel=0.05)
    assert 0 < found["mfu"] < 1 and 0 < found["training_seconds"] < found["device_seconds"]
    assert found["curve"][-1][0] == STEPS and found["curve"][-1][-1] == found["valid_loss"]
    assert not list(place.folder.rglob("*.safetensors")), "it leaves no checkpoint"
    monkeypatch.setattr(training, "YIELD_SECONDS", 0.0)
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(training, "CHECKPOINT_SHARE", 1e9)
    dies = work(place, ASKED)
    for _ in range(STEPS // 2):
        next(dies)
    dies.close()
    assert list(place.folder.rglob("*.safetensors"))
    again = row_of(work(place, ASKED))
    assert again["valid_loss"] == found["valid_loss"] and again["tokens"] == found["tokens"]
    assert again["curve"][0][0] > 1, "it began anew"


def test_what_the_seconds_do_not_suffice_for_is_skipped_with_its_reason(place):
    late = replace(place, ends=time.monotonic() - 1)
    reason = f"0 of {STEPS} steps in the seconds that there were: go on with --resume"
    assert row_of(work(late, ASKED)) == {"skipped": reason}


def test_a_diverged_training_is_skipped_with_its_reason(place):
    lost = replace(place, config=replace(place.config, learning_rate=1e9, clip=1e9))
    assert row_of(work(lost, ASKED))["skipped"].startswith("diverged after")
