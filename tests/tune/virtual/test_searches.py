"""Laws of one search: what counts as regret and as hypervolume."""

import math

import pytest

from tests.tune.virtual.made import settings, table
from tune.curves.benchmark import Amount, Cell, hypervolume, search
from tune.curves.recorded import Curve


def test_regret_is_nil_for_the_oracle_and_for_all_once_everything_fits():
    made = table(12)
    for scheduler in ("oracle", "random", "ration"):
        cell = Cell(table=made, scheduler=scheduler, budget=Amount(text="300%", times=3.0), workers=2)
        assert search(cell, settings(), seed=0).regret == pytest.approx(0.0)


def test_hypervolume_of_two_points_by_hand():
    small = Curve(config={}, parameters=99, seconds_per_report=1.0, losses=(3.0,))
    large = Curve(config={}, parameters=9999, seconds_per_report=1.0, losses=(2.0,))
    widest = Curve(config={}, parameters=999999, seconds_per_report=1.0, losses=(4.0,))
    area = hypervolume([(small, 3.0), (large, 2.0)], [small, large, widest])
    assert area == pytest.approx(math.log(1e4) * 1.0 + math.log(1e2) * 1.0)
