"""What several experiments share: batches of so many rows, and a training on all ranks with checkpoints."""

import dataclasses
import math
import time
from collections.abc import Callable, Generator
from pathlib import Path

import torch
import torch.distributed as dist

from model.config import Config, Data
from model.data.batches import batch_shape
from model.training import checkpoint as checkpoints
from model.training.ddp import mean_over_ranks, ranks, value_of_first_rank
from model.training.evaluation import evaluate
from model.training.learner import Learner
from tune.backend.worker_group import Message
from tune.errors import UserError
from tune.experiments.base import Row
from tune.experiments.prices import EVALUATION_TOKENS


def of_rows(config: Config, data: Data, rows: int) -> Config:
    """Return the config with batches of so many rows, on all devices together."""
    target = batch_shape(data, batch_tokens=config.batch_tokens, context=config.context).target
    return dataclasses.replace(config, batch_tokens=rows * target)


def batch_rows(config: Config, data: Data) -> int:
    """Return the rows of a batch of a config's batch_tokens."""
    return batch_shape(data, batch_tokens=config.batch_tokens, context=config.context).rows


MARGIN = 1.5
"""No stretch of steps up to a checkpoint begins unless this many times the longest one so far is left."""


def train_with_checkpoints(
    learner: Learner, left: Callable[[], float], *, steps: int, every: int, factor: Callable[[int], float],
    folder: Path, evaluation_tokens: int = EVALUATION_TOKENS,
) -> Generator[Message, None, Row]:  # fmt: skip
    """Train all ranks to so many steps, from the newest checkpoint in `folder` if there is one; return the row, in
    which a loss that diverged is None. UserError: there was less time.

    left: returns the seconds that are left; every: steps between two checkpoints; factor: returns the share of the peak
    rates at a step. All ranks read one folder.
    """
    newest, whole, longest, loss = checkpoints.latest(folder), 0.0, 0.0, math.nan
    if newest is not None:
        saved = checkpoints.load(newest)
        learner.restore(saved)
        whole, loss = saved.state.get(TRAINED, (whole, loss))
    while learner.steps < steps and value_of_first_rank(left(), learner.device) >= MARGIN * longest:
        began = time.perf_counter()
        losses = [learner.step(factor(learner.steps)).loss for _ in range(min(every, steps - learner.steps))]
        loss = mean_over_ranks(torch.stack(losses).mean()).item()
        whole += time.perf_counter() - began
        _save(learner, folder, (whole, loss))
        longest = max(longest, time.perf_counter() - began)
        yield Message(kind="steps")
    if learner.steps < steps:
        space = learner.family.space or {"d_model": (0,), "layers": (0,)}
        sizes = " or ".join(name for name, values in space.items() if isinstance(values[0], int))
        smaller = f", or begin again with a smaller --fix {sizes}" if sizes else ""
        reason = f"there was time for {learner.steps} of {steps}"
        raise UserError(f"steps: {reason}: go on with --resume and a larger --budget{smaller}")
    config, data, device = learner.config, learner.data, learner.device
    valid = evaluate(learner.model, config, data, "valid", tokens=evaluation_tokens, device=device)
    assert valid is not None, "nothing refuses it"
    sound = math.isfinite(valid.loss)
    return {
        "parameters": learner.parameters, "steps": learner.steps, "tokens": learner.tokens,
        "train_loss": loss if math.isfinite(loss) else None, "valid_loss": valid.loss if sound else None,
        "accuracy": valid.accuracy if sound else None, "training_seconds": whole,
    }  # fmt: skip


TRAINED = "trained"
"""Key in a checkpoint's state: seconds of the steps so far, and the loss of the last ones."""


def _save(learner: Learner, folder: Path, done: tuple[float, float]) -> None:
    """Let the first rank write a checkpoint; no other goes on before it is written."""
    tensors, state = learner.tensors(), learner.state() | {TRAINED: done}
    if learner.rank == 0:
        checkpoints.save(folder, learner.model, tensors, state)
    if ranks() > 1:
        dist.barrier()
