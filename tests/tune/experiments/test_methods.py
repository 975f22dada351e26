"""What the comparison of methods asks for, and what its tables make of rows."""

from typing import Any

import pytest

from model.config import Config
from tests.methods_rows import METHODS, SHAPES, method_row, method_rows
from tune.devices import Devices
from tune.experiments import methods
from tune.experiments.base import ExperimentSettings, Point
from tune.experiments.methods import (
    BATCHES,
    RECIPE,
    ROWS,
    SHAPE,
    STEPS,
    alike,
    flops,
    grid,
    parameters,
    points,
    published_scores,
    ranks,
    runs_of,
    scores,
    tables,
)
from tune.experiments.tables import final_tables

CPU = Devices(kind="cpu", count=1, model="core", precisions=("fp32", "bf16"), cores=1)
GPU = Devices(kind="cuda", count=1, model="card", precisions=("fp32", "tf32", "bf16", "fp16"), cores=1)
pytestmark = pytest.mark.usefixtures("known_prices")


def asked(devices: Devices = CPU, **more: Any) -> list[Point]:
    return points(devices, ExperimentSettings(budget="1h", families="nanogpt", **more))


def trained(found: list[Point]) -> list[dict[str, Any]]:
    """As rows that trainings of these points leave."""
    return [{"config": dict(point.config), "steps": point.asked["steps"]} for point in found]


@pytest.mark.parametrize(("devices", "more"), [(CPU, set()), (GPU, {"baseline"})])
def test_every_method_meets_every_shape_with_checkpointing_and_without(devices: Devices, more: set[str]):
    found = asked(devices)
    assert len({point.key for point in found}) == len(found)
    runs = grid(runs_of(trained(found)))
    met = [(run.method, run.doubled, run.checkpointing) for run in runs]
    assert {*met} == {(method, shape, on) for method in {*METHODS} | more for shape in SHAPES for on in (False, True)}
    assert len({*met}) == len(met)
    for point in found:
        Config(family="nanogpt", **RECIPE, **point.config)


def test_batches_are_trained_at_equal_steps_and_at_equal_samples():
    found = [run for run in runs_of(trained(asked())) if run.doubled == "nothing" and not run.checkpointing]
    for rows in BATCHES:
        of_batch = {run.steps for run in found if run.batch == rows}
        assert of_batch == {STEPS, STEPS * ROWS // rows}


def test_a_share_has_that_share_of_the_steps_and_fix_takes_a_part():
    short = {point.asked["steps"] for point in asked(scale=0.25)}
    assert short == {STEPS // 4, STEPS // 2, round(STEPS / 4 * ROWS / 32)}
    assert {point.config["heads"] for point in asked(fix={"heads": 8})} == {8}
    assert {point.config["dropout"] for point in asked(fix={"dropout": 0.2})} == {0.2}
    assert len(asked(seeds=3)) == 3 * len(asked()) == len({point.key for point in asked(seeds=3)})


@pytest.mark.parametrize("size", [flops, parameters])
def test_shapes_of_equal_size_are_of_that_size(size: Any):
    others = alike(size)
    assert len({each["layers"] for each in others} | {SHAPE["layers"]}) == 4
    for each in others:
        assert size(each) == pytest.approx(size(SHAPE), rel=0.03) and each["d_model"] % each["heads"] == 0
        Config(family="nanogpt", **each)


def test_the_reports_formula_puts_its_own_rows_in_the_order_in_which_it_prints_them():
    theirs = published_scores()
    assert len(theirs) == 15 and list(theirs.values()) == sorted(theirs.values())
    assert theirs["SGD", "layers"] == pytest.approx(1.7106 - 321.56 / 192.25 - 50384042 / 50384042)


def test_of_equal_losses_the_cheaper_is_first_and_of_equal_costs_the_better():
    found = scores([(1.5, 100.0, 4.0), (1.5, 50.0, 4.0), (1.5, 100.0, 1.0), (1.8, 100.0, 4.0)])
    assert found == pytest.approx([1.5 - 1 - 1, 1.5 - 2 - 1, 1.5 - 1 - 4, 1.8 - 1 - 1])
    assert ranks(found) == [3, 2, 1, 4] and ranks([1.0, 1.0, 0.0]) == [2, 2, 1]


def test_several_seeds_are_one_line_and_methods_are_compared_with_equal_seeds():
    rows = [method_row("full precision", seed=seed) for seed in range(3)]
    rows += [method_row("SGD", seed=seed, step_ratio=ratio) for seed, ratio in enumerate((2.5, 2.5, None))]
    assert [len(run.rows) for run in runs_of(rows)] == [3, 3]
    first, against, *_ = tables(rows)
    assert "1.802 (1.797-1.807)" in first.rows[1]
    assert against.rows[0][:5] == ["SGD", "2.50 (2.50-2.50)", "1.00", "1.00", "+0.300 (+0.300 to +0.300)"]


def test_published_figures_stand_beside_and_no_table_is_empty():
    found = {table.title.split(",")[0]: table for table in tables(method_rows())}
    assert len(found) == 6 and all(table.rows for table in found.values())
    descent = ["SGD, heads doubled", "1.00", "1.00", "1.00", "+0.3000", "0.96", "1.00", "+0.0000"]
    assert descent in found["Against the baseline"].rows
    assert {tuple(row[1:4]) for row in found["Activation checkpointing"].rows} == {("1.33", "0.50", "1.00")}
    ranking = found["Ranking by the report's formula"].rows
    assert len(ranking) == 20 and [row[0] for row in ranking[:2]] == ["smaller batch", "smaller batch, heads doubled"]
    beside = {row[0]: row[4:] for row in ranking}
    assert beside["SGD, heads doubled"] == ["-3.50", "1", "1"] and beside["SGD, layers doubled"][1:] == ["15", "15"]
    assert beside["SGD"] == ["-", "-", "-"]
    assert [row[:3] for row in found["Batches"].rows] == [
        [str(rows), f"{steps:,}", f"{rows * steps:,}"] for rows, steps in ((6, 2_000), (6, 4_000), (12, 2_000))
    ]
    shapes = [(row[0], row[5]) for row in found["Shapes of equal FLOPs and of equal parameters"].rows]
    assert shapes[0] == ("as it is", "1.000") and ("heads doubled", "1.000") in shapes
    assert len(shapes) == 6 and ("d_model 184, layers 2", "1.041") in shapes


def test_what_diverged_is_in_a_table_of_its_own():
    """Of five seeds one came to its end: its mean says nothing of the others."""
    plain = [method_row("full precision", seed=seed) for seed in range(5)]
    other = [method_row("SGD", seed=seed, valid_loss=1.5 if seed == 4 else None) for seed in range(5)]
    made = {table.title: table for table in final_tables(methods.METHODS, [*plain, *other])}
    (row,) = made["Diverged"].rows
    assert "sgd" in row[0] and row[1:] == ["4", "5"] and len(made) > 1
    assert "Diverged" not in {table.title for table in final_tables(methods.METHODS, plain)}


def test_what_no_lease_paid_to_count_is_not_ranked_and_to_time_not_compared():
    uncounted = {"step_bytes": None, "step_allocations": None, "step_ratio": None}
    rows = [method_row("full precision", **uncounted), method_row("SGD")]
    found = {table.title.split(",")[0]: table for table in tables(rows)}
    assert [row[0] for row in found["Ranking by the report's formula"].rows] == ["SGD"]
    assert found["Against the baseline"].rows[0][:4] == ["SGD", "-", "-", "-"]
    assert len(next(iter(found.values())).rows) == 2
