"""So many steps together, with checkpoints between: where a rank dies, all go on from the newest."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from model import checkpoint as checkpoints
from model.learner import Learner
from model.parallel import as_first, mean_over_ranks, ranks

MARGIN = 1.5    # nothing begins unless so many times the longest of its kind is left


@dataclass(frozen=True, kw_only=True)
class Trained:
    """How far the ranks have come, and in which checkpoint that is kept; loss: the mean since the one before."""

    steps: int
    tokens: int
    loss: float
    seconds: float    # of the steps since the one before
    checkpoint: Path


def train_together(
    learner: Learner, *, steps: int, every: int, factor: Callable[[int], float], folder: Path,
    left: Callable[[], float],
) -> Iterator[Trained]:
    """From the newest checkpoint in `folder`, if there is one, to so many steps of a life, as far as seconds are left.

    every: steps between two checkpoints; factor: the share of the peak rates at a step. All ranks read one folder.
    """
    newest = checkpoints.latest(folder)
    if newest is not None:
        learner.restore(checkpoints.load(newest))
    longest = 0.0
    while learner.steps < steps and as_first(left(), learner.device) >= MARGIN * longest:
        began = time.perf_counter()
        count = min(every, steps - learner.steps)
        losses = [learner.step(factor(learner.steps)).loss for _ in range(count)]
        loss = mean_over_ranks(torch.stack(losses).mean()).item()
        seconds = time.perf_counter() - began
        path = _save(learner, folder)
        longest = max(longest, time.perf_counter() - began)
        yield Trained(steps=learner.steps, tokens=learner.tokens, loss=loss, seconds=seconds, checkpoint=path)


def _save(learner: Learner, folder: Path) -> Path:
    """Written by the first rank; no other goes on before it is there."""
    tensors, state = learner.tensors(), learner.state()
    path = folder / f"step-{learner.steps:06d}"
    if learner.rank == 0:
        checkpoints.save(folder, learner.model, tensors, state)
    if ranks() > 1:
        dist.barrier()
    return path
