"""A whole life in few steps, warm-up and decay included: what a learning rate is worth to a shape."""

import torch

from model.config import Config, Data
from model.evaluation import evaluate
from model.learner import Learner
from model.schedule import Decay, warm_up

WARM_UP_SHARE = 0.2
"""Of the steps, at most; a longer life has the recipe's own warm-up."""
EVALUATION_TOKENS = 16_384


class ShortLife:
    """A model that learns for so many steps, each one asked for."""

    def __init__(self, config: Config, data: Data, steps: int, device: torch.device) -> None:
        self.learner = Learner(config, data, device)
        self.steps_left = steps
        self._decay = Decay(config.decay_share)
        self._warm_up_steps = min(config.warm_up_steps, round(WARM_UP_SHARE * steps))

    def step(self) -> None:
        """The next optimizer step."""
        done, left = self.learner.steps, self.steps_left
        if self._decay.begins(done, left):
            self._decay.begin(left)
        self.learner.step(warm_up(done, self._warm_up_steps) * self._decay.factor(left))
        self.steps_left -= 1

    def loss(self) -> float:
        """Nats a token on a part of the validation split; infinite or NaN where it diverged."""
        learner = self.learner
        evaluation = evaluate(
            learner.model, learner.config, learner.data, "valid", tokens=EVALUATION_TOKENS, device=learner.device
        )
        assert evaluation is not None, "nothing refuses it"
        return evaluation.loss


def loss_after(config: Config, data: Data, steps: int, device: torch.device) -> float:
    """The loss at the end of a life of so many steps."""
    life = ShortLife(config, data, steps, device)
    while life.steps_left:
        life.step()
    return life.loss()
