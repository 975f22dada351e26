"""Other ways to train on several devices than DistributedDataParallel as it comes, each made to be held against it."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from model.config import Config, Data
from model.experiments.parallel_timing import Reading
from model.learner import Learner
from model.parallel import Levers, ParallelLearner, distance, flat_gradient
from tune.errors import UserError

FIRST_STEPS = 3    # before gradients are compared: at first most of them are zero, and buckets are laid out anew


def ready_learner(config: Config, data: Data, device: torch.device, **levers: Any) -> ParallelLearner:
    """One with these of Levers, after its first steps. UserError: the backend cannot do that, found by trying."""
    try:
        learner = ParallelLearner(config, data, device, levers=Levers(**levers))
        for _ in range(FIRST_STEPS):
            learner.step(1.0)
    except (TypeError, RuntimeError) as error:
        asked = ", ".join(f"{name} {value}" for name, value in levers.items())
        raise UserError(f"{asked}: {dist.get_backend()} refuses it: {str(error).splitlines()[0]}") from error
    return learner


def gradient_distance(learner: Learner, other: Learner) -> float:
    """How far the one's gradient of a batch is from the other's, at the other's weights and without dropout."""
    learner.model.load_state_dict(other.model.state_dict())
    return distance(_gradient(learner), _gradient(other))


def _gradient(learner: Learner) -> Tensor:
    learner.model.eval()
    try:
        return flat_gradient(learner, lambda: learner._gradients(learner.batches.some()))
    finally:
        learner.model.train()


def data_parallel(config: Config, data: Data, device: torch.device) -> Learner:
    """One process on the devices of all ranks: torch's DataParallel, its model on `device`. UserError: none there."""
    rule = "one process divides a batch among at least two GPUs of its machine"
    if device.type != "cuda":
        raise UserError(f"DataParallel: there is no GPU here: {rule}")
    count, seen = dist.get_world_size(), torch.cuda.device_count()
    if count < 2 or seen < count:
        raise UserError(f"DataParallel: {seen} GPU for {count} ranks: {rule}")
    learner = Learner(config, data, device)
    others = [place for place in range(count) if place != device.index]
    learner.forward = nn.DataParallel(learner.model, device_ids=[device.index, *others])
    return learner


class FirstRankStep:
    """A step that the first rank takes; the others wait on their hosts, where they keep no device from it."""

    def __init__(self, learner: Learner) -> None:
        self._learner, self._hosts = learner, dist.new_group(backend="gloo")

    def __call__(self) -> Reading:
        if dist.get_rank() == 0:
            self._learner.step(0.0)
            self._learner.wait()
        dist.barrier(self._hosts)
        return None
