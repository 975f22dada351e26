"""What the transfer experiment asks for, does, and makes of its rows."""

import dataclasses
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from model.config import Config
from model.data.dataset import TextData
from tests.transfer_rows import CURVATURE, all_rows
from tune.backend.worker_group import Place
from tune.devices import Devices
from tune.experiments.base import ExperimentSettings
from tune.experiments.learning_rates import BASE, core_rates, work
from tune.experiments.transfer import SIZES, Descent, along, base_of, further, line, points, tables, told

CORES = Devices(kind="cpu", count=2, model="core", precisions=("fp32", "bf16"), cores=2)
CONFIG = Config(
    family="nanogpt", d_model=16, heads=4, layers=1, context=16, batch_tokens=128, dropout=0.0, learning_rate=1e-2
)


@pytest.fixture(autouse=True)
def known_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tune.experiments.transfer.peak", lambda *_: 1e11)


def asked(**more: Any) -> list[Any]:
    return points(CORES, ExperimentSettings(budget="1h", families="nanogpt", **more))


def place(data: TextData, seconds: float = 600.0, **changes: Any) -> Place:
    config = dataclasses.replace(CONFIG, **changes)
    ends = time.monotonic() + seconds
    return Place(config=config, data=data, device=torch.device("cpu"), folder=Path("/proc/no"), ends=ends)


def test_each_shape_differs_from_the_base_on_one_axis_and_is_there_with_the_rules_and_without():
    first, *others = asked()
    assert dict(first.config).items() >= BASE.items()
    shapes = [tuple(point.config[axis] for axis in BASE) for point in others]
    assert {sum(size != own for size, own in zip(shape, BASE.values(), strict=True)) for shape in shapes} == {1}
    ways = {(shape, point.config["scaling_rules"]) for shape, point in zip(shapes, others, strict=True)}
    assert len(ways) == len(others) == 2 * sum(map(len, SIZES.values()))


def test_the_price_grows_with_steps_seeds_and_shape():
    prices = {tuple(point.config[axis] for axis in BASE): point.seconds for point in asked()}
    assert prices[32, 4] < prices[128, 4] < prices[512, 4] and prices[128, 2] < prices[128, 16]
    assert sum(point.least for point in asked(seeds=3)) > 2.9 * sum(point.least for point in asked())
    short, shortest = asked(scale=0.08), asked(scale=0.01)
    assert sum(point.seconds for point in short) < 0.2 * sum(point.seconds for point in asked())
    assert {point.asked["octaves"] for point in short} == {1.0} and len(shortest) < len(short) == len(asked())


def test_what_is_fixed_is_not_varied():
    assert {point.config["precision"] for point in asked()} == {"bf16"}
    assert {point.config["precision"] for point in asked(fix="precision=fp32")} == {"fp32"}


def test_the_rates_in_common_surround_the_recipes_nearest_first():
    assert core_rates(1.0) == [0, -1, 1] and core_rates(0.5) == [0, -1, 1, -2, 2, -3, 3]


def test_the_work_goes_down_to_the_best_rate_of_real_lives(text_data):
    said = list(work(place(text_data), {"steps": 8, "octaves": 1.0, "seeds": 2}))
    found = said[-1].row
    assert {each.what for each in said} == {"start", "steps", "evaluation"}
    assert found is not None and {len(losses) for _, losses in found["losses"]} == {2}
    whole = found | {"asked": {"octaves": 1.0, "seeds": 2}, "config": {**BASE, "scaling_rules": True}}
    descent = Descent.of(whole)
    assert set(descent.mean.losses) >= {-1, 0, 1} and descent.mean.bracketed
    assert {valley.losses[0] for valley in descent.seeds} == set(dict(found["losses"])[0]), "seeds are told apart"
    assert len(set(dict(found["losses"])[0])) == 2


def test_a_rate_at_which_nothing_is_learned_is_no_number_and_costs_all(text_data):
    (*_, last) = work(place(text_data, learning_rate=1e20), {"steps": 6, "octaves": 1.5, "seeds": 1})
    losses = dict(last.row["losses"])
    assert None in {loss for (loss,) in losses.values()} or min(loss for (loss,) in losses.values()) > 3


@pytest.mark.parametrize("seconds", [0.0, 0.2])
def test_where_there_is_no_time_it_says_what_it_needs(text_data, seconds):
    with pytest.raises(ValueError, match=r"(steps|rates) need about \d+ s: there was less time|when time was out"):
        list(work(place(text_data, seconds), {"steps": 500, "octaves": 1.0, "seeds": 1}))


@pytest.mark.parametrize("octaves", [1.0, 0.5])
def test_drift_and_regret_are_those_that_the_rows_were_made_with(octaves):
    rows = all_rows(octaves=octaves, seeds=2)
    base = base_of(rows)
    for ruled, drift in ((True, 0.0), (False, -2.0)):
        wide = along(rows, "d_model", ruled=ruled)[-1]
        assert wide.shape == {"d_model": 512, "layers": 4}
        assert wide.drift(base) == pytest.approx((drift,) * 3)
        assert wide.regret(base) == pytest.approx((CURVATURE * drift**2,) * 3)


def test_a_rate_that_a_shape_never_had_has_no_regret_and_one_that_diverged_an_infinite_one():
    rows = all_rows()
    rows[1]["losses"] = [each for each in rows[1]["losses"] if each[0] != 0]
    rows[2]["losses"] = [[step, [None] if step == 0 else losses] for step, losses in rows[2]["losses"]]
    missing, diverged = (Descent.of(rows[place]).regret(base_of(rows)) for place in (1, 2))
    assert missing is None and diverged is not None and diverged[0] == float("inf")
    cells = [cell for table in tables(rows) for cells in table.rows for cell in cells]
    assert "-" in cells and "diverged" in cells


def test_an_optimum_at_an_end_is_told_as_a_bound_and_so_is_what_the_bases_rate_costs_there():
    rows = all_rows()
    assert not [cell for table in tables(rows) for cells in table.rows for cell in cells if cell[0] in "<>"]
    rows[4]["losses"] = [[step, [step]] for step, _ in rows[4]["losses"]]
    assert rows[4]["config"] == {"d_model": 512, "layers": 4, "scaling_rules": False}
    width = tables(rows)[0]
    assert width.rows[-1][-2].startswith("< ") and width.rows[-1][-1] == ">= 3.000" and "or beyond" in line(rows[4])


def cut(row: dict[str, Any], steps: int) -> dict[str, Any]:
    """With the rates up to so many steps from the recipe's alone."""
    return row | {"losses": [each for each in row["losses"] if abs(each[0]) <= steps], "rate_seconds": 2.0}


def test_a_best_rate_at_the_end_of_what_was_tried_is_bracketed_before_it_is_judged():
    whole = all_rows()
    rows = [cut(row, 2) for row in whole]
    open_ends = [row for row in rows if not Descent.of(row).mean.bracketed]
    assert [row["config"]["scaling_rules"] for row in open_ends] == [False] * 3
    points = further(rows)
    assert [point.config for point in points] == [row["config"] for row in open_ends]
    for point in points:
        assert told(point, rows)["known"] == next(row["losses"] for row in rows if row["config"] == point.config)
    gone_on = [row | {"asked": row["asked"] | {"beyond": True}} for row in whole if not row["config"]["scaling_rules"]]
    assert tables([*rows, *gone_on]) == tables([*(row for row in rows if row not in open_ends), *gone_on])
    assert "<" in str(tables(rows)) and "<" not in str(tables([*rows, *gone_on]))
    assert told(asked()[0], rows) == {}
    assert further([row | {"rate_seconds": 0.0} for row in whole]) == [], "all are bracketed"


def test_known_losses_are_not_measured_again(text_data):
    known = [[-1, [1.0]], [0, [0.5]]]
    (*_, last) = work(place(text_data), {"steps": 8, "octaves": 3.0, "seeds": 1, "known": known})
    losses = dict(last.row["losses"])
    assert losses[-1] == [1.0] and losses[0] == [0.5] and set(losses) == {-1, 0, 1}
    assert last.row["rate_seconds"] > 0 and last.row["parameters"] > 0


def test_that_the_bases_own_best_rate_is_open_is_said():
    rows = all_rows()
    assert "base's own best" not in tables(rows)[0].note
    rows[0]["losses"] = [[step, [step]] for step, _ in rows[0]["losses"]]
    assert "base's own best" in tables(rows)[0].note


def test_tables_are_of_the_rows():
    width, depth, losses = tables(all_rows())
    assert [cells[0] for cells in width.rows] == ["32", "128", "512"]
    assert [cells[0] for cells in depth.rows] == ["4", "16"]
    for table in (width, depth, losses):
        assert {len(cells) for cells in table.rows} == {len(table.columns)}
    assert len(losses.rows) == 7 and all(sum("*" in cell for cell in cells) == 1 for cells in losses.rows)
    assert width.rows[-1][3:5] == ["+0.00", "0.000"] and width.rows[-1][7:] == ["-2.00", "0.400"]


def test_of_few_rows_there_is_less_to_tell():
    assert tables([]) == []
    assert len(tables(all_rows()[1:])) == 1, "nothing is compared without the base"
    skipped = {"devices": 1, "asked": {}, "config": {}, "skipped": "why"}
    assert len(tables([all_rows()[0], skipped])) == 3
