"""What the loader experiment loads, and what a running loop waits for: made-up images, small JPEGs that are decoded and
cut on the way, and rows of text.
"""

import io
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
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, RandomSampler

from model.data.batches import Batch, BatchShape, EndlessBatches, ResidentPairs, ResidentText, batch_shape
from model.data.dataset import PairData, TextData
from model.training.learner import Learner
from tune.backend.worker_group import Place
from tune.errors import UserError

SIZE, CHANNELS, CLASSES = 32, 3, 10  # CIFAR-10's (Krizhevsky 2009)
PADDING = 4
QUALITY = 90  # of the JPEG


class Images(Dataset[tuple[Tensor, Tensor]]):
    """`count` images, each decoded when it is asked for, cut at random from a padded one, mirrored or not, normalised.

    What is drawn for an image follows from the seed and its number, whichever process asks. Item: (3, 32, 32) fp32 and
    its class, int64.
    """

    def __init__(self, count: int, seed: int) -> None:
        self._seed = seed
        generator = np.random.default_rng(seed)
        self._classes = generator.integers(CLASSES, size=count)
        tints = generator.integers(64, 192, size=(CLASSES, 8, 8, CHANNELS))
        self._files = [_jpeg(tints[each], generator) for each in self._classes]

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        pixels = np.asarray(Image.open(io.BytesIO(self._files[number])).convert("RGB"))
        padded = np.pad(pixels, ((PADDING, PADDING), (PADDING, PADDING), (0, 0)))
        generator = np.random.default_rng([self._seed, number])
        top, left = generator.integers(2 * PADDING + 1, size=2)
        cut = padded[top : top + SIZE, left : left + SIZE]
        if generator.random() < 0.5:
            cut = cut[:, ::-1]
        image = torch.from_numpy(cut.transpose(2, 0, 1).astype(np.float32) / 127.5 - 1)
        return image, torch.tensor(self._classes[number])


def _jpeg(tint: np.ndarray, generator: np.random.Generator) -> bytes:
    """An image of a class's colours with noise."""
    colors = Image.fromarray(tint.astype(np.uint8)).resize((SIZE, SIZE))
    noisy = np.asarray(colors) + generator.normal(scale=20, size=(SIZE, SIZE, CHANNELS))
    file = io.BytesIO()
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=QUALITY)
    return file.getvalue()


class Classifier(nn.Sequential):
    """Three convolutions, small enough that a CPU core takes tens of milliseconds a batch."""

    def __init__(self) -> None:
        widths = (CHANNELS, 16, 32, 64)
        blocks = [
            nn.Sequential(nn.Conv2d(narrow, wide, 3, padding=1), nn.BatchNorm2d(wide), nn.ReLU(), nn.MaxPool2d(2))
            for narrow, wide in itertools.pairwise(widths)
        ]
        super().__init__(*blocks, nn.Flatten(), nn.Linear(widths[-1] * (SIZE // 8) ** 2, CLASSES))


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


IMAGES, ALL_IMAGES = 4096, 50_000
"""That are made, and that CIFAR-10 has to train on."""
ROWS = 128
"""Images of a batch."""
BATCHES = {"images": 32, "text": 64}
"""Of a turn."""
PREFETCH = 2
"""Batches ahead for each worker: torch's own number."""
Ways = Mapping[str, Callable[[], Reading]]


@dataclass(frozen=True, kw_only=True)
class Supply:
    """What is loaded, and what a loop does with a batch; own: this project's own batches of the same, where it has any.

    items: of an epoch; batch_bytes: of a batch under way from another process.
    """

    dataset: Dataset[Any]
    rows: int
    batches: int
    items: int
    batch_bytes: int
    use: Callable[[Any], None]
    seed: int
    collate: Callable[[Any], Any] | None = None
    own: Iterator[Any] | None = None

    def read(self, *, workers: int, prefetch: int = PREFETCH, persistent: bool = True) -> Ways:
        """An epoch of a loader of its own, in an empty loop or in one that uses the batches."""
        loader = make_loader(
            self.dataset, rows=self.rows, batches=self.batches, workers=workers, seed=self.seed, prefetch=prefetch,
            persistent=persistent, collate=self.collate,
        )  # fmt: skip
        return {"empty": partial(read_through, loader, unused), "loop": partial(read_through, loader, self.use)}

    def read_own(self) -> Ways:
        """As many of this project's own batches."""
        own = self.own
        assert own is not None, "asked for only where there are some"

        def some(use: Callable[[Any], None]) -> Reading:
            return read_through(itertools.islice(own, self.batches), use)

        return {"empty": partial(some, unused), "loop": partial(some, self.use)}


def unused(batch: Any) -> None:
    """An empty loop's use of it."""


def supply_of(place: Place, what: str) -> Supply:
    """Images or the study's text."""
    return image_supply(place) if what == "images" else text_supply(place)


def image_supply(place: Place) -> Supply:
    """Images, on which a small classifier is trained."""
    torch.manual_seed(place.config.seed)
    model = Classifier().to(place.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def use(batch: list[torch.Tensor]) -> None:
        images, classes = (each.to(place.device) for each in batch)
        optimizer.zero_grad()
        F.cross_entropy(model(images), classes).backward()
        optimizer.step()
        if place.device.type == "cuda":
            torch.cuda.synchronize(place.device)

    dataset = Images(IMAGES, place.config.seed)
    size = ROWS * sum(each.numel() * each.element_size() for each in dataset[0])
    return Supply(
        dataset=dataset, rows=ROWS, batches=BATCHES["images"], items=ALL_IMAGES, batch_bytes=size, use=use,
        seed=place.config.seed,
    )  # fmt: skip


def text_supply(place: Place) -> Supply:
    """The study's text or pairs, from which its configuration learns."""
    config, data = place.config, place.data
    shape = batch_shape(data, batch_tokens=config.batch_tokens, context=config.context)
    dataset = PairRows(data, shape) if isinstance(data, PairData) else TextRows(data, shape)
    learner = Learner(config, data, place.device)
    own, first = learner.batches, dataset[0]
    return Supply(
        dataset=dataset, rows=shape.rows, batches=BATCHES["text"], items=len(dataset), collate=together,
        batch_bytes=shape.rows * bytes_of(first), use=Fed(learner).step, own=own, seed=config.seed,
    )  # fmt: skip


def bytes_of(batch: Batch) -> int:
    """What its tensors take."""
    tensors = [each for each in (*batch.inputs, batch.targets) if each is not None]
    return sum(each.numel() * each.element_size() for each in tensors)
