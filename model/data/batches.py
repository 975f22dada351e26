"""Batches: rows gathered from tokens that stay on the device, in an order that a checkpoint can resume."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from model.data.dataset import OwnData, PairData, PairSplit, TextData
from model.data.packing import Shape, pack
from model.data.resident import IGNORED, Batch, Inputs, ResidentPairs, ResidentRows, ResidentText, memoized, to_device
from tune.errors import UserError

EVALUATION_TOKENS = 2_048  # most of an evaluation's block on either side, padding included, unless it is a single row
TIMES_ON_A_GPU = 8  # blocks of a batch on a GPU, as fewer do not fill it
COUNTED_AT_ONCE = 1 << 20  # tokens whose characters and words are counted at a time


class BatchShape(NamedTuple):
    """Rows of a training batch, and their tokens of source (0 for text) and target."""

    rows: int
    source: int
    target: int


class Span(NamedTuple):
    """What an evaluation predicts: target tokens, and the characters and words that they spell."""

    tokens: int
    characters: int
    words: int


def batch_shape(data: TextData | PairData | OwnData, *, batch_tokens: int, context: int) -> BatchShape:
    """Return the one shape that all training batches have."""
    source, target = data.row if isinstance(data, PairData) else (0, 1 if isinstance(data, OwnData) else context)
    return BatchShape(max(1, round(batch_tokens / target)), source, target)


class BatchSource(Protocol):
    """Source of batches: an epoch is planned as an array, and each of its rows makes a batch; `there` is the same row
    on the device."""

    def plan(self, generator: np.random.Generator) -> np.ndarray: ...

    def batch(self, row: np.ndarray, there: Tensor, /) -> Batch: ...


class EndlessBatches:
    """Epoch after epoch of a source; the order depends on the seed alone, the state on the batches taken."""

    def __init__(self, source: BatchSource, seed: int, device: torch.device | str = "cpu") -> None:
        """device: where the source wants its plan"""
        self._source, self._seed, self._device = source, seed, device
        self._begin(epoch=0, batch=0)

    def __iter__(self) -> "EndlessBatches":
        return self

    def __next__(self) -> Batch:
        self._go_on()
        self._batch += 1
        return self._at(self._batch - 1)

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        return len(self._plan)

    def any_batch(self) -> Batch:
        """Return a batch of the epoch, no matter which; it does not count as taken."""
        return self._at(0)

    def state(self) -> dict[str, int]:
        """Return what `load_state` of another one on the same data needs to continue exactly here."""
        return {"seed": self._seed, "epoch": self._epoch, "batch": self._batch}

    def load_state(self, state: dict[str, Any]) -> None:
        self._seed = state["seed"]
        self._begin(epoch=state["epoch"], batch=state["batch"])

    def _go_on(self) -> None:
        while self._batch == len(self._plan):
            self._begin(epoch=self._epoch + 1, batch=0)

    def order(self, epoch: int) -> np.ndarray:
        """Return the plan of an epoch."""
        return self._source.plan(np.random.default_rng([self._seed, epoch]))

    def _begin(self, *, epoch: int, batch: int) -> None:
        self._epoch, self._batch, self._plan = epoch, batch, self.order(epoch)
        if not len(self._plan):
            raise UserError("batch_tokens: one batch is more than there is to train on: write fewer, or give more")
        self._there = to_device(self._plan, self._device)

    def _at(self, index: int) -> Batch:
        return self._source.batch(self._plan[index], self._there[index])


class Samples(Dataset[Batch]):
    """The rows of the first epoch, each as a batch of its own, for the processes of a DataLoader."""

    def __init__(self, batches: EndlessBatches) -> None:
        self._source, plan = batches._source, batches.order(0)
        self._rows = plan.reshape(-1, 1, *plan.shape[2:])

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> Batch:
        row = self._rows[number]
        return self._source.batch(row, torch.from_numpy(row))


class TrainBatches(EndlessBatches):
    """Batches of about `batch_tokens` target tokens, padding included.

    An epoch of text has windows of `context` tokens from a random offset, none twice; an epoch of pairs has the packed
    rows, none twice.
    """

    def __init__(
        self,
        data: TextData | PairData,
        *,
        batch_tokens: int,
        context: int,
        seed: int,
        device: torch.device | str = "cpu",
    ) -> None:
        shape = batch_shape(data, batch_tokens=batch_tokens, context=context)
        source = _PairSource(data, shape, device) if isinstance(data, PairData) else _TextSource(data, shape, device)
        super().__init__(source, seed, device)
        self._resident: _PairSource | _TextSource = source

    def take(self, most: int) -> tuple[Tensor, list[int]]:
        """Take the next batches, at most so many and of one epoch: return their plan on the device (N, rows) and their
        target tokens."""
        self._go_on()
        some = slice(self._batch, min(self._batch + most, len(self._plan)))
        self._batch = some.stop
        return self._there[some], [self._resident.tokens(row) for row in self._plan[some]]

    def gather(self, there: Tensor) -> tuple[Inputs, Tensor]:
        """Return inputs and targets of a batch that was taken, without the host reading which."""
        return self._resident.gather(there)

    @staticmethod
    def plan_steps(several: "Sequence[TrainBatches]", most: int) -> tuple[Tensor, list[tuple[int, ...]]]:
        """Return what `take` does for K of the same data and shape: plans (N, K, rows), and the tokens of each
        batch."""
        for each in several:
            each._go_on()
        most = min(most, *(len(each._plan) - each._batch for each in several))
        rows, tokens = zip(*(each.take(most) for each in several), strict=True)
        return torch.stack(rows, 1), list(zip(*tokens, strict=True))

    @staticmethod
    def next_joined(several: "Sequence[TrainBatches]") -> tuple[Batch, list[int]]:
        """Return the next batches of several, all of the same data and shape, as one, and the target tokens of each."""
        for each in several:
            each._go_on()
            each._batch += 1
        rows = [each._plan[each._batch - 1] for each in several]
        there = torch.cat([each._there[each._batch - 1] for each in several])
        source = several[0]._resident
        return source.batch(np.concatenate(rows), there), [source.tokens(row) for row in rows]


class _TextSource:
    """Windows of the training text."""

    def __init__(self, data: TextData, shape: BatchShape, device: torch.device | str) -> None:
        self._shape = shape
        self._windows = (len(data.train) - shape.target) // shape.target
        if self._windows < shape.rows:
            raise UserError(
                f"--text-corpus: {data.name!r} has {len(data.train)} training tokens, fewer than a batch; "
                f"give a text that has at least {(shape.rows + 1) * shape.target} of them"
            )
        self._text = ResidentText(data.train, device)

    def plan(self, generator: np.random.Generator) -> np.ndarray:
        """Return where the windows of each batch of one epoch begin (batches, rows)."""
        begin = generator.integers(self._shape.target)
        return begin + drawn(self._windows, self._shape.rows, generator) * self._shape.target

    def batch(self, begins: np.ndarray, there: Tensor) -> Batch:
        inputs, targets = self.gather(there)
        return Batch(inputs, targets, self.tokens(begins))

    def gather(self, there: Tensor) -> tuple[Inputs, Tensor]:
        batch = self._text.batch(there, self._shape.target)
        return batch.inputs, batch.targets

    def tokens(self, begins: np.ndarray) -> int:
        return len(begins) * self._shape.target


class _PairSource:
    """Packed rows of the training pairs: on a GPU laid out once; on a CPU made from the text that processes share."""

    def __init__(self, data: PairData, shape: BatchShape, device: torch.device | str) -> None:
        self._shape, self._rows = shape, data.rows
        if len(data.rows) < shape.rows:
            wanted = math.ceil(len(data.train) * shape.rows / len(data.rows))
            raise UserError(
                f"--translation-corpus: {data.name!r} has {len(data.train)} training pairs, "
                f"fewer than a batch; give a file that has about {wanted} of them"
            )
        place = torch.device(device)
        self._laid = None if place.type == "cpu" else memoized(ResidentRows, data, place)
        self._pairs = ResidentPairs(data, data.train, device)
        self._tokens = np.add.reduceat(data.train.lengths[data.rows.pairs, 1], data.rows.offsets[:-1])

    def plan(self, generator: np.random.Generator) -> np.ndarray:
        """Return the numbers of the rows of each batch of one epoch (batches, rows)."""
        return drawn(len(self._rows), self._shape.rows, generator)

    def batch(self, rows: np.ndarray, there: Tensor) -> Batch:
        if self._laid is not None:
            return Batch(*self.gather(there), self.tokens(rows))
        return self._pairs.batch(self._rows.of(rows), self._shape.source, self._shape.target)

    def gather(self, there: Tensor) -> tuple[Inputs, Tensor]:
        assert self._laid is not None, "rows are put together by the host"
        return self._laid.gather(there)

    def tokens(self, rows: np.ndarray) -> int:
        return int(self._tokens[rows].sum())


def drawn(count: int, rows: int, generator: np.random.Generator) -> np.ndarray:
    """Return the numbers below `count` shuffled into batches (batches, rows); what does not fill one is left out."""
    batches = count // rows
    return generator.permutation(count)[: batches * rows].reshape(batches, rows)


def evaluation_batches(
    data: TextData | PairData,
    split: str,
    *,
    tokens: int | None,
    context: int,
    window: int | None = None,
    device: torch.device | str = "cpu",
) -> Iterator[Batch]:
    """Yield all of `split`, or its fixed subset of about `tokens` target tokens, spread over it.

    Text is cut into windows of `context` tokens without overlap. With a `window` that is a multiple of several
    contexts, all of these have the same targets, block by block.
    """
    most = most_evaluation_tokens(torch.device(device).type)
    if isinstance(data, PairData):
        yield from _pair_evaluation(data, getattr(data, split), tokens, most, device)
        return
    ids, window = getattr(data, split), window or context
    text, last = ResidentText(ids, device), len(ids) - 1
    begins = _windows(last, tokens, window)
    begins = (begins[:, None] + np.arange(0, window, context)).flatten()
    begins, block = begins[begins < last], max(1, EVALUATION_TOKENS // window) * window // context
    there, rows = to_device(begins, device), _rows(block, context, most)
    for first in range(0, len(begins), rows):
        some = begins[first : first + rows]
        batch = replace(text.batch(there[first : first + rows], context), block=block)
        yield batch if (beyond := int(some[-1]) + context - last) <= 0 else _cut(batch, beyond)


def most_evaluation_tokens(kind: str) -> int:
    """Return the most tokens of an evaluation batch on a kind of device."""
    return EVALUATION_TOKENS * (TIMES_ON_A_GPU if kind == "cuda" else 1)


def _rows(block: int, length: int, most: int) -> int:
    """Return the rows of an evaluation batch: as many whole blocks as have at most `most` tokens, but at least one."""
    return block * max(1, most // (block * length))


def _cut(batch: Batch, beyond: int) -> Batch:
    """Leave out of a batch of text the last `beyond` targets of its last row, which are beyond the end."""
    (inputs,), targets = batch.inputs, batch.targets
    if len(targets) == 1:
        inputs, targets = inputs[:, :-beyond], targets[:, :-beyond]
    else:
        targets[-1, -beyond:] = IGNORED
    return replace(batch, inputs=(inputs,), targets=targets, tokens=batch.tokens - beyond)


def span(data: TextData | PairData, split: str, tokens: int | None, context: int) -> Span:
    """Return the target tokens of `evaluation_batches` with the same arguments, the characters that they spell, and how
    many words begin in them."""
    if isinstance(data, PairData):
        pairs: PairSplit = getattr(data, split)
        rows = _subset(pairs, tokens)
        return Span(int(pairs.lengths[rows, 1].sum()), int(pairs.characters[rows].sum()), int(pairs.words[rows].sum()))
    ids: np.ndarray = getattr(data, split)
    last, found = len(ids) - 1, Span(0, 0, 0)
    begins = _windows(last, tokens, context)
    for some in np.array_split(begins, max(1, len(begins) * context // COUNTED_AT_ONCE)):
        at = (some[:, None] + np.arange(context)).flatten()
        at = at[at < last]
        counted = data.token_counts.count(ids[at], ids[at + 1])
        found = Span(found.tokens + len(at), found.characters + counted[0], found.words + counted[1])
    return found


def _windows(targets: int, tokens: int | None, window: int) -> np.ndarray:
    """Return where windows begin that predict about `tokens` of so many targets; None: all, and the last may be
    short."""
    windows = targets // window
    if tokens is None or tokens >= windows * window:
        return np.arange(0, targets, window)
    return spread(max(1, tokens // window), windows) * window


def _subset(pairs: PairSplit, tokens: int | None) -> np.ndarray:
    """Return the numbers of the pairs in an evaluation on about `tokens` target tokens."""
    share = 1.0 if tokens is None else tokens / int(pairs.lengths[:, 1].sum())
    return spread(max(1, round(share * len(pairs))), len(pairs))


def spread(count: int, whole: int) -> np.ndarray:
    """Return `count` different numbers below `whole`, evenly spread."""
    count = min(count, whole)
    return np.arange(count) * whole // count


def _pair_evaluation(
    data: PairData,
    split: PairSplit,
    tokens: int | None,
    most: int,
    device: torch.device | str,
) -> Iterator[Batch]:
    """Yield batches of pairs, packed as in training; pairs too long for that are packed into longer rows."""
    pairs = ResidentPairs(data, split, device)
    for rows, (source, target) in memoized(_measured_rows, split, tokens, *data.row):
        block = max(1, EVALUATION_TOKENS // max(source, target))
        count = _rows(block, max(source, target), most)
        for first in range(0, len(rows), count):
            yield replace(pairs.batch(rows[first : first + count], source, target), block=block)


def _measured_rows(split: PairSplit, tokens: int | None, *row: int) -> list[tuple[list[np.ndarray], Shape]]:
    """Return the pairs of each row of an evaluation, and the shape of the rows. Kept, as packing takes longer than a
    GPU takes to evaluate."""
    some = _subset(split, tokens)
    lengths = split.lengths[some]
    long, found = (lengths > row).any(axis=1), list[tuple[list[np.ndarray], Shape]]()
    for chosen, (source, target) in ((~long, row), (long, lengths.max(axis=0))):
        shape = int(source), int(target)
        rows = pack(lengths[chosen], shape)
        found.append(([some[chosen][each] for each in rows.of(np.arange(len(rows)))], shape))
    return found
