"""What a law of sizes suggests follows from the losses it was told, level by level."""

import math

import pytest

from tests.tune.virtual.made import table
from tune.curves.supply import ENOUGH_FOR_LAW, Supply

CURVES = table(20).curves  # each larger than the one before
DIVERGED = dict.fromkeys(range(10, 15), (1.0, math.nan))


def told(losses: dict[int, tuple[float, float]]) -> Supply:
    """A supply that was told the steps and the losses of some curves."""
    supply = Supply(CURVES, suggest="size-law", seed=0)
    for index, (steps, loss) in losses.items():
        supply.tell(index, steps, loss)
    return supply


@pytest.mark.parametrize(("sign", "favoured"), [(1.0, 0), (-1.0, len(CURVES) - 1)])
def test_the_size_that_the_losses_speak_for_comes_next(sign, favoured):
    losses = {index: (1.0, sign * math.log(index)) for index in range(2, 2 + ENOUGH_FOR_LAW)}
    assert told(losses | DIVERGED).take() == favoured


def test_trials_are_compared_with_those_that_trained_as_long():
    """The small ones trained longer and have the lower losses, yet among equals the larger ones do."""
    half = ENOUGH_FOR_LAW // 2
    long = {index: (64.0, 2.0 - 0.1 * index) for index in range(half)}
    short = {index: (1.0, 5.0 - 0.1 * index) for index in range(half, 2 * half)}
    assert told(long | short).take() == len(CURVES) - 1


def test_until_enough_was_measured_the_order_is_the_seeded_one():
    losses = {index: (1.0, float(index)) for index in range(ENOUGH_FOR_LAW - 1)}
    in_order = Supply(CURVES, suggest="order", seed=0)
    assert told(losses | DIVERGED).take() == in_order.take()
