"""What the last steps left: losses, speed, and when a trial counts as diverged."""

import math

import pytest
import torch

from model.training.learner import Step
from model.training.train import EXPLODED, Recent


def look(recent, *losses, seconds=1.0, tokens=10):
    for loss in losses:
        recent.add(Step(loss=torch.tensor(loss), gradient_norm=torch.tensor(2.0), tokens=tokens))
    recent.took(seconds)
    recent.read()
    return recent


def test_a_look_gives_the_mean_of_the_losses_since_the_last_one_and_their_speed():
    recent = look(Recent(), 5.0, 3.0, seconds=4.0)
    assert (recent.train_loss, recent.gradient_norm, recent.tokens_per_second) == (4.0, 2.0, 5.0)
    assert look(recent, 1.0).train_loss == 1.0 and recent.first_loss == 4.0


def test_a_look_without_steps_changes_nothing():
    recent = look(Recent(), 4.0)
    recent.read()
    assert recent.train_loss == 4.0 and recent.tokens_per_second == 10.0


def test_tokens_that_say_nothing_about_the_speed_are_left_out():
    recent = Recent()
    recent.add(Step(loss=torch.tensor(4.0), gradient_norm=torch.tensor(1.0), tokens=1000))
    recent.forget_tokens()
    assert look(recent, 4.0).tokens_per_second == 10.0


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_no_number_diverges_at_once(loss):
    assert look(look(Recent(), 4.0), loss).diverged


def test_a_loss_far_above_the_first_diverges_where_it_stays_there():
    high = 4.0 + 2 * EXPLODED
    once = look(look(look(Recent(), 4.0), high), 4.0)
    assert not once.diverged
    assert not look(once, high).diverged and look(once, high).diverged
