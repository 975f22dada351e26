"""Losses over rates: where the best one lies, and how it is found."""

import math
import random

import pytest

from tune.experiments.learning_rates import Valley, next_rate


def descended(loss, begin, farthest):
    """The losses that were asked for, in their order."""
    losses = {}
    while (rate := next_rate(losses, begin, farthest)) is not None:
        assert rate not in losses
        losses[rate] = loss(rate)
    return losses


@pytest.mark.parametrize("seed", range(20))
def test_the_lowest_loss_is_found_from_wherever_one_begins(seed):
    chosen = random.Random(seed)
    lowest, steep = chosen.randint(-8, 8), chosen.uniform(0.1, 10)
    begin = chosen.sample(range(-8, 9), k=chosen.randint(1, 4))
    found = Valley(descended(lambda rate: steep * (rate - lowest) ** 2, begin, 10))
    assert found.best == lowest and found.bracketed
    assert list(found.losses)[: len(begin)] == begin
    assert len(found.losses) <= len(begin) + min(abs(rate - lowest) for rate in begin) + 2, "none is tried for nothing"


def test_nothing_is_tried_farther_off_than_allowed():
    found = Valley(descended(lambda rate: -rate, [0], 3))
    assert found.best == 3 and max(found.losses) == 3 and not found.bracketed


def test_what_diverged_is_never_the_best_and_costs_everything():
    found = Valley(descended(lambda rate: math.nan if rate > 0 else -rate, [0, 1, 2], 9))
    assert found.best == 0 and found.regret(1) == math.inf and found.optimum == 0
    assert Valley({0: math.nan, 1: 5.0}).best == 1


def test_the_optimum_of_a_parabola_is_its_vertex():
    for vertex in (-1.3, 0.0, 0.49, 2.2):
        losses = descended(lambda rate, vertex=vertex: 3 + 0.7 * (rate - vertex) ** 2, [0], 9)
        assert Valley(losses).optimum == pytest.approx(vertex)
    assert Valley({0: 1.0, 1: 2.0}).optimum == 0, "at an end nothing is known between"
