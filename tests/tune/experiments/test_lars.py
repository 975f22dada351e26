"""LARS as Ration uses it: a matrix moves by its rate times its norm; gains have neither that nor decay."""

from dataclasses import replace

import pytest
import torch

from model.training import checkpoint as checkpoints
from model.training.learner import Learner
from tune.experiments.large_batch_rules import take_lars

CPU = torch.device("cpu")
RATE = 0.01


@pytest.fixture
def upstream(small_text):
    """An architecture with gains, without dropout."""
    return replace(small_text, architecture="nanogpt", dropout=0.0)


@pytest.fixture
def made(upstream, text_data):
    def new() -> Learner:
        learner = Learner(upstream, text_data, CPU)
        take_lars(learner, RATE)
        return learner

    return new


@pytest.mark.parametrize("weight", [0.1, 10.0])
@pytest.mark.parametrize("gradient", [0.1, 1.0, 1000.0])
def test_a_matrix_moves_by_its_rate_whatever_its_gradient(made, weight, gradient):
    learner, generator = made(), torch.Generator().manual_seed(0)
    for parameter in learner.names:
        parameter.data = weight * torch.randn(parameter.shape, generator=generator)
        parameter.grad = gradient * torch.randn(parameter.shape, generator=generator)
    before = [(parameter.detach().clone(), parameter.grad.clone()) for parameter in learner.names]
    learner.optimizer.step()
    ranks = set()
    for new, (old, grad) in zip(learner.names, before, strict=True):
        ranks.add(new.ndim)
        if new.ndim > 1:
            moved = (new.detach() - old).norm() / old.norm()
            assert moved.item() == pytest.approx(RATE, rel=0.06), "but for the little that decay takes"
        else:
            assert torch.allclose(new.detach(), old - RATE * grad, rtol=1e-4, atol=1e-5), "plain, and without decay"
    assert ranks == {1, 2}


def test_a_learner_goes_on_exactly_with_the_momentum_of_its_checkpoint(made, tmp_path):
    once, first, second = made(), made(), made()
    losses = [once.step(1.0).loss.item() for _ in range(4)]
    for _ in range(2):
        first.step(1.0)
    second.restore(checkpoints.load(checkpoints.save(tmp_path, first.model, first.tensors(), first.state())))
    assert [second.step(1.0).loss.item() for _ in range(2)] == losses[2:]
    assert losses[-1] < losses[0]


def test_gains_and_biases_do_not_decay_with_the_recipes_optimizer_either(upstream, text_data):
    """As Goyal et al. 2017 have it."""
    groups = Learner(upstream, text_data, CPU).optimizer.param_groups
    decays = {parameter.ndim < 2: group["weight_decay"] for group in groups for parameter in group["params"]}
    assert decays[True] == 0 and decays[False] > 0
