"""Each way to train does what it says: the update, the gradients, and what is kept for backward."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from model.config import Config
from model.data.dataset import TextData
from model.training import checkpoint as checkpoints
from model.training.time_budget import Segment
from model.training.train import train
from tune.experiments.methods import MOMENTUM, MethodLearner

CPU = torch.device("cpu")


def gradients(learner: MethodLearner) -> dict[str, Tensor]:
    """Of the first batch, in training."""
    learner._gradients(learner.batches.some())
    return {name: parameter.grad.clone() for parameter, name in learner.names.items()}


def weights(learner: MethodLearner) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for parameter, name in learner.names.items()}


def test_descent_steps_along_the_gradient_with_momentum(small_text: Config, text_data: TextData) -> None:
    config = replace(small_text, architecture="nanogpt", dropout=0.0)
    learner = MethodLearner(config, text_data, CPU, descends=True)
    rate, velocity = learner.config.learning_rate, {}
    for _ in range(3):
        before = weights(learner)
        learner._gradients(learner.batches.some())
        torch.nn.utils.clip_grad_norm_(learner.names, learner.config.clip)
        for parameter, name in learner.names.items():
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
    kept, found = {}, {}
    for checkpointing in (False, True):
        learner = MethodLearner(config, text_data, CPU, checkpointing=checkpointing)
        sizes: list[int] = []

        def keep(tensor: Tensor, sizes: list[int] = sizes) -> Tensor:
            sizes.append(tensor.nbytes)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            found[checkpointing] = gradients(learner)
        kept[checkpointing] = sum(sizes)
    assert kept[True] < 0.6 * kept[False]
    for name, gradient in found[False].items():
        torch.testing.assert_close(found[True][name], gradient)


def test_descent_goes_on_from_its_checkpoint_as_if_it_had_not_ended(
    small_text: Config, text_data: TextData, tmp_path: Path, warm: None
) -> None:
    make = partial(MethodLearner, descends=True)

    def trained(folder: Path, steps: int, checkpoint: Path | None = None) -> Path:
        *_, last = train(
            small_text, text_data, Segment(device_seconds=1e6, steps=steps), folder=folder, checkpoint=checkpoint,
            evaluation_tokens=256, make=make,
        )  # fmt: skip
        return Path(str(last.checkpoint))

    through = checkpoints.load(trained(tmp_path / "a", 4))
    resumed = checkpoints.load(trained(tmp_path / "b", 4, trained(tmp_path / "b", 2)))
    assert {name.rsplit(".")[-1] for name in through.tensors} >= {"momentum_buffer"}
    assert all(torch.equal(through.tensors[name], value) for name, value in resumed.tensors.items())
