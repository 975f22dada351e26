"""What the transfer experiment asks for, and what it makes of the losses of its trainings."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from model.config import Config
from tests.training_rows import CURVATURE, RATE, diverged, parabola, transferred
from tests.tune.experiments.conftest import studied
from tune.arithmetic import mean_interval
from tune.devices import Devices
from tune.experiments.base import ExperimentSettings
from tune.experiments.lists import make_list_context
from tune.experiments.transfer import BASE, SIZES, TRANSFER, LossesByRate, along, base_of, points, sweeps, tables
from tune.search.simulator import PowerLaw

CORES = Devices(kind="cpu", count=2, model="core", precisions=("fp32", "bf16"), cores=2)
pytestmark = pytest.mark.usefixtures("known_prices")


def settings(**more: Any) -> ExperimentSettings:
    return ExperimentSettings(**({"budget": "1h", "families": "nanogpt"} | more))


def rates_of(**more: Any) -> dict[tuple[int, int, bool | None], list[float]]:
    """Of each shape the rates that are asked for, in their order."""
    found: dict[tuple[int, int, bool | None], list[float]] = {}
    for point in points(CORES, settings(**more)):
        config = point.config
        of = config["d_model"], config["layers"], config.get("scaling_rules")
        found.setdefault(of, []).append(config["learning_rate"])
    return found


def test_each_shape_differs_from_the_base_on_one_axis_and_is_there_with_mup_and_without() -> None:
    shapes = [*rates_of()]
    base = [each for each in shapes if each[2] is None]
    assert base == [(*BASE.values(), None)], "the base is the same in both, and is trained once"
    others = {each[:2] for each in shapes if each[2] is not None}
    assert {sum(size != own for size, own in zip(each, BASE.values(), strict=True)) for each in others} == {1}
    assert len(shapes) == 1 + 2 * len(others) and len(others) == sum(map(len, SIZES.values()))
    smallest = {each[:2] for each in rates_of(scale=0.02)}
    assert others - smallest == {(512, 4), (128, 16)}, "the widest and the deepest"


@pytest.mark.parametrize("own", [1e-3, None])
def test_rates_are_an_octave_apart_on_one_grid_and_surround_where_the_best_are_expected(own: float | None) -> None:
    found = rates_of(**{"set": {"learning_rate": own}} if own else {})
    own = own or Config(family="nanogpt").learning_rate
    grid = sorted(set().union(*found.values()))
    octaves = [math.log2(rate / own) for rate in grid]
    assert octaves == pytest.approx([*range(round(octaves[0]), round(octaves[-1]) + 1)], abs=0.01)
    for (d_model, layers, mup), rates in found.items():
        low, high = sorted((own, own if mup else own / (d_model / 128 * layers / 4)))
        assert sorted(rates) == grid[grid.index(min(rates)) : grid.index(max(rates)) + 1]
        assert [min(rates), max(rates)] == pytest.approx([low / 8, 8 * high], rel=0.01), "three octaves beyond"


def test_of_equal_costs_the_outermost_rates_come_last_as_the_cap_pays_for_the_first() -> None:
    for (_, _, mup), rates in rates_of().items():
        if mup is not False:
            distances = [abs(math.log2(rate / rates[0])) for rate in rates]
            assert [round(each) for each in distances] == [0, 1, 1, 2, 2, 3, 3]


def test_what_is_fixed_is_not_varied_and_scale_shortens() -> None:
    assert {point.config["precision"] for point in points(CORES, settings())} == {"bf16"}
    fixed = points(CORES, settings(fix={"precision": "fp32", "dropout": 0.1}))
    assert {(point.config["precision"], point.config["dropout"]) for point in fixed} == {("fp32", 0.1)}
    assert {point.asked["steps"] for point in points(CORES, settings(scale=0.1))} == {100}
    assert len(points(CORES, settings(seeds=2))) == 2 * len(fixed)


def test_a_small_cap_pays_first_for_the_base_around_the_recipes_rate(tmp_path: Path, text: Path) -> None:
    """As all else is compared with it."""
    asked = settings(scale=0.02, text_corpus=text, devices=1, budget=60.0)
    context, own = make_list_context(TRANSFER, asked, replace(CORES, count=1)), Config(family="nanogpt").learning_rate
    rows, _ = studied(TRANSFER, context, tmp_path, lambda *_: PowerLaw(step_seconds=0.1, parameters=1000))
    first = [row["config"] for row in rows[:3]]
    assert [(each["d_model"], each["layers"]) for each in first] == [(*BASE.values(),)] * 3
    assert [round(math.log2(each["learning_rate"] / own)) for each in first] == [0, -1, 1]


def test_what_diverged_is_never_the_best_and_costs_everything() -> None:
    found = LossesByRate({0.0: 1.0, 1.0: math.inf, -1.0: 2.0})
    assert found.best == 0 and found.optimum == 0 and found.is_bracketed


@pytest.mark.parametrize("spacing", [1.0, 0.5])
def test_the_optimum_of_a_parabola_is_its_vertex(spacing: float) -> None:
    for vertex in (-1.3, 0.0, 0.49, 2.2):
        rates = [spacing * step + 0.01 * (step % 2) for step in range(-9, 9)]
        found = LossesByRate({rate: 3 + 0.7 * (rate - vertex) ** 2 for rate in rates})
        assert found.optimum == pytest.approx(vertex) and found.is_bracketed
    end = LossesByRate({0.0: 1.0, 1.0: 2.0})
    assert end.optimum == 0 and not end.is_bracketed, "at an end nothing is known between"


def test_drift_and_regret_are_those_that_the_rows_were_made_with() -> None:
    found = sweeps(transferred(seeds=2))
    base = base_of(found)
    assert base is not None
    for mup, drift in ((True, 0.0), (False, -2.0)):
        wide = along(found, "d_model", mup=mup)[-1]
        assert wide.shape == {"d_model": 512, "layers": 4} and len(wide.seeds) == 2
        assert wide.drift(base) == pytest.approx((drift,) * 3)
        assert wide.regret(base) == pytest.approx((CURVATURE * drift**2,) * 3)


def test_over_seeds_an_interval_is_that_of_a_mean() -> None:
    rows = [row | {"valid_loss": row["valid_loss"] * (1 + 0.1 * row["config"]["seed"])} for row in transferred(seeds=3)]
    found = sweeps(rows)
    base, wide = base_of(found), along(found, "d_model", mup=False)[-1]
    assert base is not None and wide.regret(base) == pytest.approx(mean_interval([0.4, 0.44, 0.48]))


def test_a_seed_that_lacks_rates_of_the_others_does_not_count_until_it_has_them() -> None:
    rows = transferred(seeds=2)
    last = next(row for row in reversed(rows) if row["config"]["seed"] == 1)
    found = sweeps([row for row in rows if row is not last])
    assert sorted(len(each.seeds) for each in found) == [1, *[2] * 6]
    assert {len(each.mean.losses) for each in found} == {7}


def test_a_rate_that_a_shape_never_had_has_no_regret_and_one_that_diverged_an_infinite_one() -> None:
    wide = parabola({"d_model": 512}, False)
    without = [row for row in wide if row["config"]["learning_rate"] != RATE]
    for rows, cell in ((without, "-"), (diverged(wide, 0), "diverged")):
        width, *_, table = tables([*parabola({}), *rows])
        assert width.rows[-1][-1] == cell and cell in table.rows[-1]
    (nothing,) = tables([row | {"valid_loss": None} for row in parabola({})])
    assert set(nothing.rows[0][1:]) == {"diverged"}, "of a base without any loss there is nothing to compare"


def test_an_optimum_at_an_end_is_told_as_a_bound_and_so_is_what_the_bases_rate_costs_there() -> None:
    assert not [cell for table in tables(transferred()) for cells in table.rows for cell in cells if cell[0] in "<>"]
    falling = [row | {"valid_loss": math.log2(row["config"]["learning_rate"] / RATE)} for row in transferred()]
    wide = [row["config"].get("scaling_rules") is False and row["config"]["d_model"] == 512 for row in falling]
    width = tables([other if of_it else row for other, row, of_it in zip(falling, transferred(), wide, strict=True)])[0]
    assert width.rows[-1][-2].startswith("< ") and width.rows[-1][-1] == ">= 3.000"
    assert "base's own best" not in width.note and "base's own best" in tables(falling)[0].note


def test_of_one_rate_no_best_is_known_on_either_side() -> None:
    """As where a cap pays for no more: the best may lie above or below."""
    one = [row for row in parabola({"d_model": 512}, False) if row["config"]["learning_rate"] == RATE]
    width = tables([*parabola({}), *one])[0]
    assert len(one) == 1 and width.rows[-1][-2:] == ["-", "-"]


def test_tables_are_of_the_rows() -> None:
    width, depth, losses = tables(transferred())
    assert [cells[0] for cells in width.rows] == ["32", "128", "512"]
    assert [cells[0] for cells in depth.rows] == ["4", "16"]
    assert len(losses.rows) == 7 and all(sum("*" in cell for cell in cells) == 1 for cells in losses.rows)
    assert losses.rows[0][0] == "d128 l4 base"
    assert width.rows[-1][3:5] == ["+0.00", "0.000"] and width.rows[-1][7:] == ["-2.00", "0.400"]


def test_of_few_rows_there_is_less_to_tell() -> None:
    assert tables([]) == []
    assert len(tables(transferred()[7:])) == 1, "nothing is compared without the base"


def test_a_study_trains_them_all_and_what_diverges_is_in_its_tables(tmp_path: Path, text: Path) -> None:
    """The rates above the recipe's are far too high for all shapes: the first ones of the list among them."""
    asked = settings(scale=0.02, fix={"precision": "fp32"}, text_corpus=text, devices=1)
    context, own = make_list_context(TRANSFER, asked, CORES), Config(family="nanogpt").learning_rate

    def course(trial: str, family: str, config: Mapping[str, Any]) -> PowerLaw:
        assert context.config(family, config).optimizer == "adamw"
        return PowerLaw(step_seconds=0.1, parameters=1000, diverges=10 if config["learning_rate"] > own else math.inf)

    rows, _ = studied(TRANSFER, context, tmp_path, course)
    assert context.listed is not None and len(rows) == len(context.listed.listed)
    assert all((row["valid_loss"] is None) == (row["config"]["learning_rate"] > own) for row in rows)
    assert sum(row["valid_loss"] is None for row in rows) > 3
    losses = tables(rows)[-1]
    assert all(cells[losses.columns.index(f"{2 * own:.1e}")] == "diverged" for cells in losses.rows)
