"""Batches by torch's DataLoader, in as many processes as asked for, and how long a loop waits for them."""

import multiprocessing
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler

from model.batches import BatchShape, EndlessBatches
from model.learner import Learner
from model.prepared import PairData, TextData
from model.resident import Batch, ResidentPairs, ResidentText
from tune.errors import UserError

LEAST_ROUNDS, MOST_ROUNDS = 5, 30
MARGIN = 1.3
"""No round begins unless so many times the longest is left."""
SHARED_MEMORY = Path("/dev/shm")
"""Where processes lay batches for the loop."""
Reading = Mapping[str, float]
Rounds = dict[str, list[float]]
"""Of each reading of each way, as `way reading`: one value a round."""


class TextRows(Dataset[Batch]):
    """The windows of the training text, one by one."""

    def __init__(self, data: TextData, shape: BatchShape) -> None:
        self._text, self._length = ResidentText(data.train, "cpu"), shape.target
        self._windows = (len(data.train) - 1) // shape.target

    def __len__(self) -> int:
        return self._windows

    def __getitem__(self, number: int) -> Batch:
        return self._text.batch(np.array([number * self._length]), self._length)


class PairRows(Dataset[Batch]):
    """The packed rows of the training pairs, one by one."""

    def __init__(self, data: PairData, shape: BatchShape) -> None:
        self._pairs, self._rows, self._shape = ResidentPairs(data, data.train, "cpu"), data.rows, shape

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> Batch:
        return self._pairs.batch(self._rows.of(np.array([number])), self._shape.source, self._shape.target)


def together(rows: Sequence[Batch]) -> Batch:
    """Rows as one batch."""
    inputs = zip(*(row.inputs for row in rows), strict=True)
    joined = tuple(None if some[0] is None else torch.cat(some) for some in inputs)
    return Batch(joined, torch.cat([row.targets for row in rows]), sum(row.tokens for row in rows))


def make_loader(
    dataset: Dataset[Any], *, rows: int, batches: int, workers: int, seed: int, prefetch: int = 2,
    persistent: bool = True, collate: Callable[[Sequence[Any]], Any] | None = None,
) -> DataLoader[Any]:
    """Epochs of so many batches of so many items, drawn anew for each; prefetch: batches ahead, for each worker.

    Workers come from a server of processes that was begun without threads: a fork of this process would have locks of
    threads that it does not have.
    """
    order, own = (torch.Generator().manual_seed(seed) for _ in range(2))
    sampler = RandomSampler(cast(Sized, dataset), num_samples=rows * batches, generator=order)
    processes: dict[str, Any] = {}
    if workers:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["__main__", __name__])
        processes = {"multiprocessing_context": context, "prefetch_factor": prefetch, "persistent_workers": persistent}
    return DataLoader(
        dataset, rows, sampler=sampler, num_workers=workers, collate_fn=collate, generator=own, **processes
    )


def check_shared_memory(needed: int) -> None:
    """UserError: the batches that are under way at once, so many bytes, do not fit where processes lay them."""
    free = shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.exists() else needed
    if free < needed:
        raise UserError(f"{SHARED_MEMORY}: {free:,} bytes are free, and batches under way need {needed:,}; enlarge it")


def read_through(batches: Iterable[Any], use: Callable[[Any], None]) -> Reading:
    """Use each batch; seconds a batch: `wait` for it, and `whole`, its use included; `first`: of the first wait."""
    waits = []
    began = asked = time.perf_counter()
    for batch in batches:
        waits.append(time.perf_counter() - asked)
        use(batch)
        asked = time.perf_counter()
    return {"first": waits[0], "wait": sum(waits) / len(waits), "whole": (asked - began) / len(waits)}


def in_rounds(ways: Mapping[str, Callable[[], Reading]], left: Callable[[], float]) -> tuple[Rounds, Rounds]:
    """Take each way once a round, another one first each time, for as long as seconds are `left`.

    The first round, in which processes start, is apart: it comes first. UserError: there is no time for LEAST_ROUNDS.
    """
    begun = _round(ways, 0)
    rounds: Rounds = {name: [] for name in begun}
    longest = 0.0
    for done in range(MOST_ROUNDS):
        if left() < MARGIN * longest:
            break
        began = time.perf_counter()
        for name, seconds in _round(ways, done).items():
            rounds[name] += seconds
        longest = max(longest, time.perf_counter() - began)
        if left() < MARGIN * longest * (LEAST_ROUNDS - done - 1):
            raise UserError(f"{LEAST_ROUNDS} rounds need about {LEAST_ROUNDS * longest:.0f} s: there was less time")
    return begun, rounds


def _round(ways: Mapping[str, Callable[[], Reading]], first: int) -> Rounds:
    names = list(ways)
    turns = [names[(place + first) % len(names)] for place in range(len(names))]
    return {f"{name} {what}": [seconds] for name in turns for what, seconds in ways[name]().items()}


class Fed:
    """A learner whose steps take the batch that they are given, at a rate of zero: the loop stays the same."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        learner.batches = EndlessBatches(self, seed=0)

    def step(self, batch: Batch) -> None:
        """A step on it, to its end."""
        self._batch = batch.to(self._learner.device)
        self._learner.step(0.0)
        self._learner.wait()

    def plan(self, generator: np.random.Generator) -> np.ndarray:
        return np.zeros((1, 1))

    def batch(self, row: np.ndarray, /) -> Batch:
        return self._batch
