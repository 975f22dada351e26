"""Memory of training by torch's own account of its tensors: alike on CPU and GPU, whatever a process held before."""

import torch

from model.account import most_bytes
from model.config import Config, Data
from model.learner import Learner

STEPS = 2
"""Of which the second has all that any step has."""


def step_bytes(config: Config, data: Data, device: torch.device) -> int:
    """The most bytes of tensors alive at once while a model, its optimizer and its batches are made and step.

    Another one steps before, and is gone: what a process allocates once, such as a resident mask, is no training's.
    """

    def run() -> None:
        learner = Learner(config, data, device)
        for _ in range(STEPS):
            learner.step(1.0)
        learner.wait()

    run()
    return most_bytes(run, device)
