"""Each way to train does what it says: the update, the gradients, and what is kept for backward."""

from collections.abc import Callable
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
from tune.experiments.methods import MOMENTUM, MethodLearner, count_allocations

CPU = torch.device("cpu")
Make = Callable[..., MethodLearner]


@pytest.fixture
def make(small_text: Config, text_data: TextData) -> Make:
    """A learner of the report's architecture without dropout, its blocks wide enough to weigh."""
    config = replace(small_text, architecture="nanogpt", dropout=0.0, layers=4, context=64, batch_tokens=16 * 64)
    return lambda parts=1, **method: MethodLearner(config, text_data, CPU, parts, **method)


def gradients(learner: MethodLearner) -> dict[str, Tensor]:
    """Of the first batch, in training."""
    learner._gradients(learner.batches.some())
    return {name: parameter.grad.clone() for parameter, name in learner.names.items()}


def weights(learner: MethodLearner) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for parameter, name in learner.names.items()}


def test_descent_steps_along_the_gradient_with_momentum(make: Make) -> None:
    learner = make(descends=True)
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


def test_descent_is_another_update_than_adamws(make: Make) -> None:
    adam, descent = make(), make(descends=True)
    assert all(torch.equal(weights(adam)[name], weight) for name, weight in weights(descent).items())
    for learner in (adam, descent):
        learner.step(1.0)
    assert not any(torch.allclose(weights(adam)[name], weight) for name, weight in weights(descent).items())


@pytest.mark.parametrize("parts", [2, 4, 16])
def test_accumulated_gradients_are_the_whole_batchs(parts: int, make: Make) -> None:
    whole, cut = gradients(make()), gradients(make(parts))
    for name, gradient in whole.items():
        torch.testing.assert_close(cut[name], gradient, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("architecture", ["nanogpt", "modern"])
def test_checkpointing_keeps_less_and_the_gradients_are_the_same(
    architecture: str, dropout: float, small_text: Config, text_data: TextData
) -> None:
    config = replace(small_text, architecture=architecture, dropout=dropout, layers=4)
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


def test_what_is_kept_shows_in_the_peak_and_what_is_computed_again_in_the_count(make: Make) -> None:
    plain, again, cut = (
        count_allocations(each, CPU, steps=3) for each in (make, partial(make, checkpointing=True), partial(make, 8))
    )
    assert again.peak_bytes < plain.peak_bytes and cut.peak_bytes < plain.peak_bytes
    assert again.a_step > plain.a_step and cut.a_step > plain.a_step


def test_descent_goes_on_from_its_checkpoint_as_if_it_had_not_ended(
    small_text: Config, text_data: TextData, tmp_path: Path
) -> None:
    make = partial(MethodLearner, descends=True)

    def trained(folder: Path, steps: int, checkpoint: Path | None = None) -> Path:
        *_, last = train(
            small_text, text_data, Segment(device_seconds=1e6, steps=steps), folder=folder, checkpoint=checkpoint,
            evaluation_tokens=256, make=make,
        )  # fmt: skip
        return Path(str(last.checkpoint))

    through = checkpoints.load(trained(tmp_path / "a", 8))
    resumed = checkpoints.load(trained(tmp_path / "b", 8, trained(tmp_path / "b", 4)))
    assert {name.rsplit(".")[-1] for name in through.tensors} >= {"momentum_buffer"}
    assert all(torch.equal(through.tensors[name], value) for name, value in resumed.tensors.items())
