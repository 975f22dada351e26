"""Intervals: what was measured together moves together, and a wider scatter is a wider interval."""

import random
import statistics

import pytest

from tune.experiments.parallel_timing import interval, mean_interval, ratio


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


def test_the_interval_of_a_few_means_holds_the_truth_as_often_as_it_says():
    chance = random.Random(0)
    for count in (2, 3, 5):
        drawn = [[chance.gauss(10, 1) for _ in range(count)] for _ in range(2000)]
        held = [low <= 10 <= high for _, low, high in map(mean_interval, drawn)]
        assert 0.93 < statistics.fmean(held) < 0.97


def test_one_value_has_no_interval():
    assert mean_interval([3.0]) is None and mean_interval([]) is None
    assert mean_interval([1.0] * 40) == (1.0, 1.0, 1.0)
