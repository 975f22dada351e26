"""Each way to train does what it says: the update, the gradients, what is kept for backward, what is allocated."""

import itertools
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from model.config import Config
from model.cost.allocations import count_allocations, step_ratio
from model.cost.memory_estimate import memory_estimate
from model.data.dataset import TextData
from model.training.learner import MOMENTUM, Learner
from tests.model.conftest import gradients

CPU = torch.device("cpu")


def weights(learner: Learner) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for parameter, name in learner.parameter_names.items()}


def test_descent_steps_along_the_gradient_with_momentum(small_text: Config, text_data: TextData) -> None:
    config = replace(small_text, architecture="nanogpt", dropout=0.0, optimizer="sgd")
    learner = Learner(config, text_data, CPU)
    rate, velocity = learner.config.learning_rate, {}
    for _ in range(3):
        before = weights(learner)
        learner._gradients(learner.batches.any_batch())
        torch.nn.utils.clip_grad_norm_(learner.parameter_names, learner.config.clip)
        for parameter, name in learner.parameter_names.items():
            velocity[name] = MOMENTUM * velocity.get(name, 0.0) + parameter.grad.clone()
        learner.optimizer.zero_grad()
        learner.batches.load_state({"seed": 0, "epoch": 0, "batch": 0})
        learner.step(1.0)
        for name, after in weights(learner).items():
            torch.testing.assert_close(after, before[name] - rate * velocity[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("architecture", ["nanogpt", "modern"])
def test_checkpointing_keeps_less_and_the_gradients_are_the_same(
    architecture: str, small_text: Config, text_data: TextData
) -> None:
    config = replace(small_text, architecture=architecture, dropout=0.2, layers=4)
    kept, found, estimate = {}, {}, {}
    for checkpointing in (False, True):
        learner = Learner(replace(config, checkpointing=checkpointing), text_data, CPU)
        sizes: list[int] = []

        def keep(tensor: Tensor, sizes: list[int] = sizes) -> Tensor:
            sizes.append(tensor.nbytes)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            found[checkpointing] = gradients(learner)
        kept[checkpointing] = sum(sizes)
        many = replace(learner.config, batch_tokens=100_000)
        estimate[checkpointing] = memory_estimate(many, text_data, micro_batches=1, device=CPU)
    assert kept[True] < 0.6 * kept[False] and estimate[True] < 0.6 * estimate[False]
    for name, gradient in found[False].items():
        torch.testing.assert_close(found[True][name], gradient)


def test_a_recipe_says_of_how_many_parts_a_batch_is_and_they_allocate_more_often(
    small_text: Config, text_data: TextData
) -> None:
    config = replace(small_text, architecture="nanogpt", dropout=0.0, optimizer="sgd")
    whole, cut = (replace(config, micro_batches=parts) for parts in (1, 4))
    assert Learner(cut, text_data, CPU).micro_batches == 4
    one, four = (count_allocations(partial(Learner, each, text_data, CPU), CPU) for each in (whole, cut))
    assert four.count > 2 * one.count > 0 and one.peak_bytes > 0


@pytest.mark.parametrize("slower", [0.5, 3.0])
def test_a_step_is_timed_against_anothers_in_the_same_turn_so_that_a_busy_machine_takes_of_both(
    monkeypatch: pytest.MonkeyPatch, slower: float
) -> None:
    now, switched, steps = [0.0], list[str](), itertools.count()
    monkeypatch.setattr("model.cost.allocations.prepare", lambda precision, _: switched.append(precision))
    monkeypatch.setattr("model.cost.allocations.time.perf_counter", lambda: now[0])

    def learner(seconds: float, precision: str) -> Any:
        def take(factors: list[float]) -> None:
            assert factors == [0] and switched[-1] == precision, "nothing is learned, and each in its own precision"
            now[0] += seconds * (1 + next(steps) // 2)  # each turn on a busier machine

        return SimpleNamespace(
            take_steps=take, synchronize=lambda: None, config=SimpleNamespace(precision=precision), device=CPU
        )

    assert step_ratio(learner(slower, "fp32"), learner(1.0, "tf32")) == pytest.approx(slower)


def test_of_another_family_no_blocks_are_known(small_pairs: Config) -> None:
    with pytest.raises(ValueError, match="checkpointing: of 'translation'"):
        replace(small_pairs, checkpointing=True)
