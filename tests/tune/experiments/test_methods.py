"""What the comparison of methods asks for, what its work leaves, and what its tables make of rows."""

import time
from pathlib import Path

import pytest
import torch

from model.config import Config
from model.data.dataset import TextData
from tests.methods_rows import METHODS, SHAPES, method_row, method_rows
from tune.backend.worker_group import Place
from tune.devices import Devices
from tune.experiments.base import ExperimentSettings, Point, Row
from tune.experiments.methods import BATCH_TOKENS, FIXED_SECONDS, REPORT, equal_shapes, flops, line, points, work
from tune.experiments.methods_tables import published_scores, ranks, runs_of, scores, tables

CPU = Devices(kind="cpu", count=1, model="core", precisions=("fp32", "bf16"), cores=1)


def asked(**more: object) -> list[Point]:
    return points(CPU, ExperimentSettings(budget="1h", families="nanogpt", **more))


def done(point: Point, data: TextData, folder: Path) -> Row:
    """The row that the work ends with; the point's configuration, small."""
    tokens = point.config.get("batch_tokens", 768) // 6
    small = {"d_model": 16, "heads": 2, "layers": 2, "context": 16, "batch_tokens": tokens}
    config = Config(**{"family": "nanogpt", **point.config, **small})
    place = Place(config=config, data=data, device=torch.device("cpu"), folder=folder, ends=time.monotonic() + 600)
    *_, last = work(place, point.asked | {"steps": 8})
    assert last.row is not None
    return {"devices": 1, "asked": point.asked, "config": {**point.config, **small}} | last.row


def test_every_method_meets_every_shape_with_checkpointing_and_without():
    found = asked()
    assert len({point.key for point in found}) == len(found)
    grid = {(p.asked["method"], p.asked["doubled"], p.asked["checkpointing"]) for p in found if "FLOPs" not in p.text}
    assert grid == {(method, shape, on) for method in METHODS for shape in SHAPES for on in ("off", "on")}
    for point in found:
        shape = SHAPES.get(point.asked["doubled"])
        assert shape in (None, tuple(point.config[name] for name in ("d_model", "heads", "layers")))
    assert len(asked(seeds=3)) == 3 * len(found) == len({point.key for point in asked(seeds=3)})


def test_shapes_of_equal_cost_cost_the_same():
    for shape in (REPORT, {**REPORT, "d_model": 256}, {**REPORT, "layers": 8}):
        others = equal_shapes(shape)
        assert len({each["layers"] for each in others} | {shape["layers"]}) == 4
        for each in others:
            assert flops(each) == pytest.approx(flops(shape), rel=0.03) and each["d_model"] % each["heads"] == 0


def test_a_share_of_the_training_costs_a_share_and_a_fixed_shape_is_what_is_doubled():
    assert {point.asked["steps"] for point in asked(scale=0.01)} == {20}
    short, whole = (sum(p.seconds - FIXED_SECONDS for p in asked(scale=scale)) for scale in (0.1, 1.0))
    assert short < 0.3 * whole
    fixed = {p.asked["doubled"]: p.config["d_model"] for p in asked(fix={"d_model": 16}) if "FLOPs" not in p.text}
    assert fixed == {"nothing": 16, "heads": 16, "layers": 16, "d_model": 32}


def test_each_method_trains_in_its_own_way(
    text_data: TextData, tmp_path: Path, warm: None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tune.experiments.methods.COUNTED_STEPS", 1)
    monkeypatch.setattr("tune.experiments.methods.EVALUATION_TOKENS", 256)
    found = [point for point in asked() if point.asked["doubled"] == "nothing"]
    plain, again = ({p.asked["method"]: p for p in found if p.asked["checkpointing"] == on} for on in ("off", "on"))
    assert plain["full precision"].config == plain["baseline"].config, "on a CPU they are one thing"
    whole, half = (dict(plain[method].config) for method in ("baseline", "smaller batch"))
    assert half == whole | {"batch_tokens": BATCH_TOKENS // 2}
    baseline, accumulation, descent, recomputed = rows = [
        done(point, text_data, tmp_path)
        for point in (plain["baseline"], plain["accumulation"], plain["SGD"], again["baseline"])
    ]
    for row in (accumulation, recomputed):
        assert row["valid_loss"] == pytest.approx(baseline["valid_loss"], abs=1e-4)
    assert abs(descent["valid_loss"] - baseline["valid_loss"]) > 1e-3
    assert accumulation["allocations_a_step"] > 2 * baseline["allocations_a_step"]
    assert recomputed["memory_bytes"] < 0.9 * baseline["memory_bytes"]
    assert recomputed["allocations_a_step"] > 1.1 * baseline["allocations_a_step"]
    assert all(map(line, rows)) and len(runs_of(rows)) == 4


def test_what_cannot_be_done_says_why(text_data: TextData, tmp_path: Path):
    first = asked()[0]
    tf32 = Point(devices=1, asked=first.asked, seconds=1, least=1, config={**first.config, "precision": "tf32"})
    with pytest.raises(ValueError, match=r"precision: 'tf32' is not native to this device: .*fp32.* are"):
        done(tf32, text_data, tmp_path)


def test_the_reports_formula_puts_its_own_rows_in_the_order_in_which_it_prints_them():
    theirs = published_scores()
    assert len(theirs) == 15 and list(theirs.values()) == sorted(theirs.values())
    assert theirs["SGD", "layers"] == pytest.approx(1.7106 - 321.56 / 192.25 - 50384042 / 50384042)


def test_of_equal_losses_the_cheaper_is_first_and_of_equal_costs_the_better():
    rows = [method_row("baseline", "nothing", seconds=100.0, valid_loss=1.5, allocations_a_step=4.0),
            method_row("smaller batch", "nothing", seconds=50.0, valid_loss=1.5, allocations_a_step=4.0),
            method_row("accumulation", "nothing", seconds=100.0, valid_loss=1.5, allocations_a_step=1.0),
            method_row("SGD", "nothing", seconds=100.0, valid_loss=1.8, allocations_a_step=4.0)]  # fmt: skip
    assert scores(runs_of(rows)) == pytest.approx([1.5 - 1 - 1, 1.5 - 2 - 1, 1.5 - 1 - 4, 1.8 - 1 - 1])
    assert ranks(scores(runs_of(rows))) == [3, 2, 1, 4] and ranks([1.0, 1.0, 0.0]) == [2, 2, 1]


def test_several_seeds_are_one_line():
    (run,) = runs_of([method_row("baseline", "nothing", seed=seed) for seed in range(3)])
    assert run.loss == pytest.approx(1.802) and len(run.losses) == 3
    (first, *_) = tables([method_row("baseline", "nothing", seed=seed) for seed in range(3)])
    assert "1.802 ±0.002" in first.rows[0] and tables([]) == []


def test_every_table_has_a_cell_for_each_column_and_published_figures_stand_beside():
    made = {table.title.split(",")[0]: table for table in tables(method_rows())}
    assert len(made) == 5
    for table in made.values():
        assert table.rows and {len(cells) for cells in table.rows} == {len(table.columns)}, table.title
    descent = ["SGD, heads doubled", "1.00", "1.00", "1.00", "+0.3000", "0.96", "1.00", "+0.0000"]
    assert descent in made["Against the baseline"].rows
    ranking = made["Ranking by the report's formula"].rows
    assert len(ranking) == 24 and [row[0] for row in ranking[:2]] == ["smaller batch", "smaller batch, heads doubled"]
    beside = {row[0]: row[3:] for row in ranking}
    assert beside["SGD, heads doubled"] == ["-3.50", "1", "1"] and beside["SGD, layers doubled"][1:] == ["15", "15"]
    assert beside["baseline"] == ["-", "-", "-"]
    assert [row[0] for row in made["Shapes of equal FLOPs"].rows] == [
        "as it is", "equal FLOPs", "equal FLOPs", "equal FLOPs", "layers doubled", "d_model doubled"
    ]  # fmt: skip
