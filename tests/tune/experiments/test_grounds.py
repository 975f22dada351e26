"""Which points of an experiment a cap pays for."""

import pytest

from tune.experiments.experiment import Point
from tune.experiments.grounds import END_SECONDS, START_SECONDS, affordable_points, affordable_share, price

CREW = START_SECONDS + END_SECONDS


def fixed(name: str, seconds: float) -> Point:
    return Point(devices=1, asked={"name": name}, seconds=seconds, least=seconds)


POINTS = [fixed("a", 10.0), fixed("b", 20.0), fixed("c", 40.0)]


PAID = [(0, 0), (CREW + 9, 0), (CREW + 10, 1), (CREW + 69, 2), (CREW + 70, 3), (1e9, 3)]


@pytest.mark.parametrize(("left", "paid"), PAID)
def test_as_many_of_the_first_points_as_the_cap_pays_for(left, paid):
    assert affordable_points(POINTS, left) == paid
    assert price(POINTS[:paid]) <= left or not paid


def test_where_a_point_is_worth_what_it_must_have_there_is_nothing_to_share_out():
    assert [affordable_share(POINTS, left) for left in (CREW + 70, 1e9)] == [1.0, 1.0]
    assert affordable_share(POINTS, CREW + 69) < 0


def test_the_share_spends_what_is_left_and_no_more():
    points = [Point(devices=2, asked={}, seconds=100.0, least=10.0), fixed("a", 10.0)]
    for left in (price(points, 0.0), 150.0, price(points)):
        assert price(points, affordable_share(points, left)) == pytest.approx(left)
    assert affordable_share(points, 1e9) == 1.0
    assert len({point.key for point in points}) == 2


def test_points_of_two_configurations_are_two():
    narrow, wide = (Point(devices=1, asked={}, seconds=1.0, least=1.0, config={"d_model": d}) for d in (16, 32))
    assert narrow.key != wide.key and narrow.text == "d_model 16"
