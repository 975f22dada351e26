"""Intervals: what was measured together moves together, and a wider scatter is a wider interval."""

import random

import pytest

from model.intervals import interval, ratio


def test_what_disturbs_both_series_of_a_round_leaves_their_ratio_alone():
    noise = [1 + random.Random(seed).random() for seed in range(15)]
    rounds = {"slow": [3 * each for each in noise], "fast": noise}
    assert interval(lambda median: median["slow"] / median["fast"], rounds) == pytest.approx((3, 3, 3))
    apart = ratio(rounds["slow"], rounds["fast"])
    assert apart[0] == pytest.approx(3) and apart[1] < 2.9 < 3.1 < apart[2]


def test_the_interval_holds_the_figure_and_narrows_with_rounds():
    chance = random.Random(0)
    values = [chance.gauss(10, 1) for _ in range(400)]
    few, many = (interval(lambda median: median["x"], {"x": values[:count]}) for count in (8, 400))
    for figure, low, high in (few, many):
        assert low <= figure <= high
    assert many[2] - many[1] < (few[2] - few[1]) / 3
