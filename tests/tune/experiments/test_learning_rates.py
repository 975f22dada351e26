"""Losses over rates: where the best one lies, and how it is found; and lives in few steps that tell them."""

import dataclasses
import math
import random

import pytest
import torch

from model.training.learner import Learner
from tune.experiments.learning_rates import ShortLife, Valley, loss_after, next_rate

CPU = torch.device("cpu")


def descended(loss, begin, farthest):
    """The losses that were asked for, in their order."""
    losses = {}
    while (rate := next_rate(losses, begin, farthest)) is not None:
        assert rate not in losses
        losses[rate] = loss(rate)
    return losses


@pytest.mark.parametrize("seed", range(8))
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


def test_the_rate_rises_stays_and_falls_to_nothing(small_text, text_data, monkeypatch):
    factors = []

    def step(learner, factor):
        factors.append(factor)
        learner.steps += 1

    monkeypatch.setattr(Learner, "step", step)
    life = ShortLife(small_text, text_data, 50, CPU)
    while life.steps_left:
        life.step()
    assert len(factors) == 50 and factors.index(1.0) == small_text.warm_up_steps - 1
    falling = factors[-round(50 * small_text.decay_share) :]
    assert factors[5 : -len(falling)] == [1.0] * (45 - len(falling)) and falling == sorted(falling, reverse=True)
    assert 0 < falling[-1] <= 1 / len(falling)


def test_a_short_life_warms_up_shorter_than_the_recipe(small_text, text_data):
    config = dataclasses.replace(small_text, warm_up_steps=1000)
    life = ShortLife(config, text_data, 20, CPU)
    for _ in range(4):
        life.step()
    assert {group["lr"] for group in life.learner.optimizer.param_groups} == {
        group["peak_rate"] for group in life.learner.optimizer.param_groups
    }


def test_it_learns_the_same_each_time_and_nothing_at_no_rate(small_text, text_data):
    first, again, still = (
        loss_after(dataclasses.replace(small_text, learning_rate=rate), text_data, 12, CPU)
        for rate in (1e-2, 1e-2, 1e-12)
    )
    assert first == again < still
