"""What the loader experiment loads, and what a running loop waits for: rows of text, or what a family of a user's own
has, such as images that are decoded and cut on the way.
"""

import itertools
import multiprocessing
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import ray.cloudpickle
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, RandomSampler

from model.data.batches import Batch, BatchShape, EndlessBatches, ResidentPairs, ResidentText, batch_shape
from model.data.dataset import PairData, TextData
from model.families import BUILT_IN, FAMILIES
from model.training.learner import Learner
from tune.backend.worker_group import Place
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


class Carried(Dataset[Any]):
    """A dataset whose class the processes of a loader cannot import, as it is of a file that was loaded."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, number: int) -> Any:
        return self.dataset[number]

    def __reduce__(self) -> tuple[Any, ...]:
        return _carried, (ray.cloudpickle.dumps(self.dataset),)


def _carried(dataset: bytes) -> Carried:
    return Carried(ray.cloudpickle.loads(dataset))


def make_loader(
    dataset: Dataset[Any],
    *,
    rows: int,
    batches: int,
    workers: int,
    seed: int,
    prefetch: int = 2,
    persistent: bool = True,
    collate: Callable[[Sequence[Any]], Any] | None = None,
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

    def batch(self, row: np.ndarray, there: Tensor, /) -> Batch:
        return self._batch


BATCHES = 16
"""Of a turn."""
PREFETCH = 2
"""Batches ahead for each worker: torch's own number."""
Ways = Mapping[str, Callable[[], Reading]]


@dataclass(frozen=True, kw_only=True)
class Supply:
    """What is loaded, and what a loop does with a batch; own: this project's own batches of the same.

    items: of an epoch; batch_bytes: of a batch under way from another process.
    """

    dataset: Dataset[Any]
    rows: int
    batches: int
    items: int
    batch_bytes: int
    use: Callable[[Any], None]
    seed: int
    collate: Callable[[Any], Any]
    own: Iterator[Any]

    def read(self, *, workers: int, prefetch: int = PREFETCH, persistent: bool = True) -> Ways:
        """An epoch of a loader of its own, in an empty loop or in one that uses the batches."""
        loader = make_loader(
            Carried(self.dataset), rows=self.rows, batches=self.batches, workers=workers, seed=self.seed,
            prefetch=prefetch, persistent=persistent, collate=self.collate,
        )  # fmt: skip
        return {"empty": partial(read_through, loader, unused), "loop": partial(read_through, loader, self.use)}

    def read_own(self) -> Ways:
        """As many of this project's own batches."""

        def some(use: Callable[[Any], None]) -> Reading:
            return read_through(itertools.islice(self.own, self.batches), use)

        return {"empty": partial(some, unused), "loop": partial(some, self.use)}


def unused(batch: Any) -> None:
    """An empty loop's use of it."""


def supply_of(place: Place) -> Supply:
    """The rows of the study's text, its pairs, or what a family of a user's own has, from which its configuration
    learns. UserError: such a family has none."""
    config, data = place.config, place.data
    shape = batch_shape(data, batch_tokens=config.batch_tokens, context=config.context)
    dataset: Any = FAMILIES[config.family].items(config, data)
    if config.family in BUILT_IN:
        dataset = PairRows(data, shape) if isinstance(data, PairData) else TextRows(cast(TextData, data), shape)
    elif dataset is None:
        raise UserError(f"--families: {config.family!r} has nothing for a DataLoader: write its `items`")
    learner = Learner(config, data, place.device)
    own, first = learner.batches, dataset[0]
    return Supply(
        dataset=dataset, rows=shape.rows, batches=BATCHES, items=len(own) * shape.rows, collate=together,
        batch_bytes=shape.rows * bytes_of(first), use=Fed(learner).step, own=own, seed=config.seed,
    )  # fmt: skip


def bytes_of(batch: Batch) -> int:
    """What its tensors take."""
    tensors = [each for each in (*batch.inputs, batch.targets) if each is not None]
    return sum(each.numel() * each.element_size() for each in tensors)
