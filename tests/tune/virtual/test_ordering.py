"""The order of configurations."""

import random

from tune.curves.supply import cheap_and_random, shuffled


def test_orders_hand_out_everything_once_and_cheap_ones_first():
    configs = [5, 3, 9, 1, 7]
    order = list(cheap_and_random(configs, float, random.Random(0)))
    assert sorted(order) == sorted(configs) == sorted(shuffled(configs, random.Random(0)))
    assert order[0] == 1 and order[2] == min(set(configs) - set(order[:2]))
