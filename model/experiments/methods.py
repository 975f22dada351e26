"""Ways to train that no search uses, for comparison: plain descent, and activations that backward computes again."""

from functools import partial

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from model.config import Config, Data
from model.gpt import GPT
from model.learner import Learner

MOMENTUM = 0.9


class MethodLearner(Learner):
    """A Learner of a GPT that is never compiled, so that all methods are compared in one form.

    descends: by SGD with momentum in AdamW's place, with one rate for all parameters and no weight decay;
    checkpointing: as `recompute`.
    """

    def __init__(
        self, config: Config, data: Data, device: torch.device, micro_batches: int = 1, *, descends: bool = False,
        checkpointing: bool = False,
    ):  # fmt: skip
        self._descends = descends
        if descends:
            self.moments = ("momentum_buffer",)
        super().__init__(config, data, device, micro_batches)
        if checkpointing:
            recompute(self.model)

    def make_optimizer(self) -> torch.optim.Optimizer:
        if not self._descends:
            return super().make_optimizer()
        rate = self.config.learning_rate
        group = {"params": list(self.model.parameters()), "peak_rate": rate}
        return torch.optim.SGD([group], lr=rate, momentum=MOMENTUM, fused=True)

    def can_compile(self) -> bool:
        return False


def recompute(model: nn.Module) -> None:
    """Let each block of a GPT keep its input only, and compute the rest again for backward (Chen et al. 2016,
    arXiv:1604.06174). Weights and their names stay as they are.
    """
    assert isinstance(model, GPT), "of no other model the blocks are known"
    for block in model.transformer.h:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
