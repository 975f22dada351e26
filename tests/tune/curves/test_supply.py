"""The order of configurations, and what a law of sizes suggests from the losses it was told, level by level."""

import math
import random
from collections.abc import Mapping

import pytest

from tests.tune.curves.made import table
from tune.curves.supply import ENOUGH_FOR_LAW, SizeLaw, Supply, cheap_and_random, shuffled

CURVES = table(20).curves  # each larger than the one before
DIVERGED = dict.fromkeys(range(10, 15), (1.0, math.nan))


def chosen(losses: Mapping[int, tuple[float, float]]) -> int:
    """By a law that was told the steps and the losses of some curves, as if all were left, in falling order."""
    law = SizeLaw(CURVES)
    for index, (steps, loss) in losses.items():
        law.tell(index, steps, loss)
    return law.choose([7, *range(len(CURVES))])


@pytest.mark.parametrize(("sign", "favoured"), [(1.0, 0), (-1.0, len(CURVES) - 1)])
def test_the_size_that_the_losses_speak_for_comes_next(sign: float, favoured: int) -> None:
    losses = {index: (1.0, sign * math.log(index)) for index in range(2, 2 + ENOUGH_FOR_LAW)}
    assert chosen(losses | DIVERGED) == favoured


def test_trials_are_compared_with_those_that_trained_as_long() -> None:
    """The small ones trained longer and have the lower losses, yet among equals the larger ones do."""
    half = ENOUGH_FOR_LAW // 2
    long = {index: (64.0, 2.0 - 0.1 * index) for index in range(half)}
    short = {index: (1.0, 5.0 - 0.1 * index) for index in range(half, 2 * half)}
    assert chosen(long | short) == len(CURVES) - 1


def test_until_enough_was_measured_the_first_comes_next() -> None:
    assert chosen({index: (1.0, float(index)) for index in range(ENOUGH_FOR_LAW - 1)} | DIVERGED) == 7


@pytest.mark.parametrize("suggest", ["order", "cheap", "tpe", "size-law"])
def test_every_curve_is_handed_out_once_and_once_more_when_it_begins_again(suggest: str) -> None:
    supply = Supply(CURVES, suggest=suggest, seed=1, steps_at=lambda rung: 2.0**rung)
    for _ in range(2):
        given = []
        while supply.more:
            first = supply.first()
            given.append(supply.suggest(f"t{len(given)}")["curve"])
            assert CURVES[given[-1]] is first
            supply.tell(f"t{len(given) - 1}", 0, 1.0 / len(given))
        assert sorted(given) == list(range(len(CURVES)))
        supply.begin_again()


def test_orders_hand_out_everything_once_and_cheap_ones_first() -> None:
    configs = [5, 3, 9, 1, 7]
    order = list(cheap_and_random(configs, float, random.Random(0)))
    assert sorted(order) == sorted(configs) == sorted(shuffled(configs, random.Random(0)))
    assert order[0] == 1 and order[2] == min(set(configs) - set(order[:2]))
