"""Ranks for the tests: processes in one gloo group, each of which does what it is told and returns what came of it."""

import os
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch
from torch.distributed import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from model.config import Config, Data
from model.training import checkpoint as checkpoints
from model.training.ddp import ParallelLearner, agreement, mean_over_ranks
from model.training.learner import Learner
from tests.forked import FORKING
from tune.experiments.data_parallel import first_rank_step, gradient_distance, ready_learner
from tune.experiments.large_batch import watched_learner

CPU = torch.device("cpu")


class Ranks:
    """So many processes, up until closed."""

    def __init__(self, count: int, store: Path) -> None:
        self._lines, self._processes = [], []
        for rank in range(count):
            line, end = FORKING.Pipe()
            process = FORKING.Process(target=_serve, args=(end, rank, count, str(store)), daemon=True)
            process.start()
            end.close()
            self._lines.append(line)
            self._processes.append(process)

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """What the function returned, by rank. An error of one is raised at once: the others may wait for it."""
        for line in self._lines:
            line.send((function, arguments))
        answers: dict[Any, Any] = {}
        while len(answers) < len(self._lines):
            for line in wait([each for each in self._lines if each not in answers]):
                answers[line] = line.recv()
                if isinstance(answers[line], Exception):
                    raise answers[line]
        return [answers[line] for line in self._lines]

    def close(self) -> None:
        for process in self._processes:
            process.terminate()
            process.join()


def _serve(line: Any, rank: int, count: int, store: str) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=count)
    while True:
        function, arguments = line.recv()
        try:
            line.send(function(*arguments))
        except Exception as error:
            line.send(error)


def learner(config: Config, data: Data, **changes: Any) -> ParallelLearner:
    return ParallelLearner(replace(config, **changes), data, CPU)


def agreements(config: Config, data: Data) -> dict[str, Any]:
    return agreement(begun(config, data))


def begun(config: Config, data: Data) -> ParallelLearner:
    """After a few steps: at first most gradients are zero."""
    made = learner(config, data)
    trained(made, 3)
    return made


def trained(made: Learner, steps: int) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses of the whole batches, and the weights afterwards."""
    losses = [mean_over_ranks(made.step(1.0).loss).item() for _ in range(steps)]
    return losses, {name: parameter.detach().clone() for parameter, name in made.parameter_names.items()}


def after_steps(config: Config, data: Data, steps: int, micro_batches: int = 1) -> Any:
    made = learner(config, data)
    made.micro_batches = micro_batches
    return trained(made, steps)


def in_two_lives(config: Config, data: Data, folder: Path) -> tuple[Any, Any]:
    """Four steps in one life, and two and two with a checkpoint between."""
    once = trained(learner(config, data), 4)
    second = learner(config, data)
    trained(second, 2)
    tensors = second.tensors()
    if second.rank == 0:
        checkpoints.save(folder, second.model, tensors, second.state())
    torch.distributed.barrier()
    saved = checkpoints.load(folder / "step-000002")
    third = learner(config, data)
    third.restore(saved)
    losses, weights = trained(third, 2)
    return once, (losses, weights)


def unsynced_gradient(config: Config, data: Data) -> torch.Tensor:
    made = begun(config, data)
    with made.together.no_sync():
        made._gradients(next(made.batches))
    return next(iter(made.parameter_names)).grad


def communications(config: Config, data: Data, micro_batches: int) -> int:
    """Buckets that a step sends."""
    made, sent = learner(config, data), []

    def counted(group: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        sent.append(bucket)
        return default_hooks.allreduce_hook(group, bucket)

    made.together.register_comm_hook(None, counted)
    made.micro_batches = micro_batches
    trained(made, 2)  # after the first step buckets are laid out anew
    sent.clear()
    trained(made, 1)
    return len(sent)


def random_numbers(config: Config, data: Data) -> torch.Tensor:
    learner(config, data)
    return torch.rand(4)


def noise(config: Config, data: Data) -> Any:
    """What the gradients of the first step tell of their noise."""
    watched = watched_learner(config, data, CPU)
    watched.step(1.0)
    return [each.item() for each in watched.estimates()]


def distances(config: Config, data: Data, ways: list[dict[str, Any]]) -> list[Any]:
    """How far each way's gradients are from the default's; where it is refused, why."""
    default, found = ready_learner(config, data, CPU), []
    for way in ways:
        try:
            found.append(gradient_distance(ready_learner(config, data, CPU, **way), default))
        except ValueError as error:
            found.append(str(error))
    return found


def first_rank_steps(config: Config, data: Data) -> int:
    """The steps that a rank took of three that only the first is to take."""
    made = Learner(config, data, CPU)
    step = first_rank_step(made)
    for _ in range(3):
        step()
    return made.steps
