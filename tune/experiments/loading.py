"""What the loader experiment loads, and what a running loop waits for: rows of text, or what a family of a user's own
has, such as images that are decoded and cut on the way.
"""

import multiprocessing
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import ray.cloudpickle
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, RandomSampler

from model.config import Data
from model.data.batches import Batch, BatchShape, EndlessBatches, ResidentPairs, ResidentText, batch_shape
from model.data.dataset import PairData, TextData
from model.families import BUILT_IN, FAMILIES
from model.training.learner import Learner
from tune.backend.worker_group import Place
from tune.errors import UserError

BATCHES = 16
"""Of an epoch."""
PREFETCH = 2
"""Batches ahead for each worker: torch's own number."""
SHARED_MEMORY = Path("/dev/shm")
"""Where processes lay batches for the loop."""


class Items(Dataset[Any]):
    """What a function makes one by one. It goes to a loader's processes by value: they cannot import a class of a file
    that was loaded."""

    def __init__(self, count: int, item: Callable[[int], Any]) -> None:
        self.count, self.item = count, item

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> Any:
        return self.item(number)

    def __reduce__(self) -> tuple[Any, ...]:
        return _items, (ray.cloudpickle.dumps((self.count, self.item)),)


def _items(carried: bytes) -> Items:
    return Items(*ray.cloudpickle.loads(carried))


def rows_of(data: Data, shape: BatchShape) -> Items:
    """The windows of the training text, or the packed rows of the training pairs."""
    if isinstance(data, PairData):
        pairs, rows = ResidentPairs(data, data.train, "cpu"), data.rows
        return Items(len(rows), lambda each: pairs.batch(rows.of(np.array([each])), shape.source, shape.target))
    length, tokens = shape.target, cast(TextData, data).train
    text = ResidentText(tokens, "cpu")
    return Items((len(tokens) - 1) // length, lambda each: text.batch(np.array([each * length]), length))


def together(rows: Sequence[Batch]) -> Batch:
    """Rows as one batch."""
    inputs = zip(*(row.inputs for row in rows), strict=True)
    joined = tuple(None if some[0] is None else torch.cat(some) for some in inputs)
    return Batch(joined, torch.cat([row.targets for row in rows]), sum(row.tokens for row in rows))


@dataclass(frozen=True, kw_only=True)
class Supply:
    """What is loaded, and what a loop does with a batch; own: this project's own batches of the same.

    rows: of a batch; batch_bytes: of one under way from another process.
    """

    items: Items
    rows: int
    batch_bytes: int
    use: Callable[[Batch], None]
    own: Iterator[Batch]
    seed: int

    def loader(self, *, workers: int, prefetch: int = PREFETCH, persistent: bool = True) -> DataLoader[Any]:
        """Epochs of BATCHES batches of items, drawn anew for each; prefetch: batches ahead, for each worker.

        Workers come from a server of processes that was begun without threads: a fork of this process would have locks
        of threads that it does not have.
        """
        order, own = (torch.Generator().manual_seed(self.seed) for _ in range(2))
        sampler = RandomSampler(cast(Sized, self.items), num_samples=self.rows * BATCHES, generator=order)
        processes: dict[str, Any] = {}
        if workers:
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload(["__main__", __name__])
            processes = {"multiprocessing_context": context, "prefetch_factor": prefetch}
            processes |= {"persistent_workers": persistent}
        return DataLoader(
            self.items, self.rows, sampler=sampler, num_workers=workers, collate_fn=together, generator=own, **processes
        )


def supply_of(place: Place) -> Supply:
    """The rows of the study's text, its pairs, or what a family of a user's own has, from which its configuration
    learns. UserError: such a family has none."""
    config, data = place.config, place.data
    shape = batch_shape(data, batch_tokens=config.batch_tokens, context=config.context)
    if config.family in BUILT_IN:
        items = rows_of(data, shape)
    elif (dataset := cast(Any, FAMILIES[config.family].items(config, data))) is not None:
        items = Items(len(dataset), dataset.__getitem__)
    else:
        raise UserError(f"--families: {config.family!r} has nothing for a DataLoader: write its `items`")
    learner, first = Learner(config, data, place.device), items[0]
    own, tensors = learner.batches, [each for each in (*first.inputs, first.targets) if each is not None]
    return Supply(
        items=items, rows=shape.rows, batch_bytes=shape.rows * sum(each.nbytes for each in tensors),
        use=Fed(learner).step, own=own, seed=config.seed,
    )  # fmt: skip


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


def check_shared_memory(needed: int) -> None:
    """UserError: the batches that are under way at once, so many bytes, do not fit where processes lay them."""
    free = shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.exists() else needed
    if free < needed:
        raise UserError(f"{SHARED_MEMORY}: {free:,} bytes are free, and batches under way need {needed:,}; enlarge it")


def read_through(name: str, epoch: Callable[[], Iterable[Any]], use: Callable[[Any], None]) -> dict[str, float]:
    """Use each batch; seconds a batch: `NAME wait` for it, and `NAME whole`, its use included; `NAME first`: of the
    first wait."""
    waits = []
    began = asked = time.perf_counter()
    for batch in epoch():
        waits.append(time.perf_counter() - asked)
        use(batch)
        asked = time.perf_counter()
    means = {"wait": sum(waits) / len(waits), "whole": (asked - began) / len(waits)}
    return {f"{name} {what}": seconds for what, seconds in ({"first": waits[0]} | means).items()}
