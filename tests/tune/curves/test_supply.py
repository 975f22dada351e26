"""The order of configurations."""

import random

import pytest

from tests.tune.curves.made import table
from tune.curves.supply import Supply, cheap_and_random, shuffled

CURVES = table(20).curves  # each larger than the one before


@pytest.mark.parametrize("suggest", ["order", "cheap", "tpe", "prior"])
def test_every_curve_is_handed_out_once_and_once_more_when_it_begins_again(suggest: str) -> None:
    prior = (lambda config: float(config["depth"]) + 1.0) if suggest == "prior" else None
    supply = Supply(CURVES, suggest=suggest, seed=1, steps_at=lambda rung: 2.0**rung, prior=prior)
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
