"""A life in few steps: its rates, and that it follows from its configuration."""

import dataclasses

import torch

from model.training.learner import Learner
from tune.experiments.learning_rates import ShortLife, loss_after

CPU = torch.device("cpu")


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
