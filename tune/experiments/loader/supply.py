"""What the loader experiment loads, and what its running loop does with it."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F
from torch.utils.data import Dataset

from model.batches import batch_shape
from model.experiments.images import Classifier, Images
from model.experiments.loading import Fed, PairRows, Reading, TextRows, make_loader, read_through, together
from model.learner import Learner
from model.prepared import PairData
from model.resident import Batch
from tune.distributed import Place

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
