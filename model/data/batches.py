"""Batches: tokens that stay on the device, rows gathered from them, in an order that a checkpoint can take up again."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from model.data.dataset import PairData, PairSplit, TextData, count_words
from model.data.packing import pack
from model.data.tokenizer import Tokenizer
from tune.errors import UserError

# Shapes: B batch, T target length, S source length.


IGNORED = -1
OUTSIDE = -1


@dataclass(frozen=True)
class Batch:
    """`inputs` are what the family's forward takes; targets (B, T) int64, IGNORED at padding; `tokens` count."""

    inputs: tuple[Tensor | None, ...]
    targets: Tensor
    tokens: int

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch on another device."""
        inputs = tuple(None if x is None else x.to(device) for x in self.inputs)
        return Batch(inputs, self.targets.to(device), self.tokens)

    def parts(self, count: int) -> list[tuple["Batch", Tensor]]:
        """The batch in at most `count` parts, each with its share of the tokens: a scalar on the device.

        `tokens` of a part are the whole batch's.
        """
        rows = -(-len(self.targets) // count)
        parts = []
        for first in range(0, len(self.targets), rows):
            some = slice(first, first + rows)
            inputs = tuple(None if x is None else x[some] for x in self.inputs)
            share = (self.targets[some] != IGNORED).sum() / self.tokens
            parts.append((Batch(inputs, self.targets[some], self.tokens), share))
        return parts


class ResidentText:
    """Text on a device."""

    def __init__(self, tokens: np.ndarray, device: torch.device | str) -> None:
        self._tokens = _resident(tokens, device)

    def batch(self, begins: np.ndarray, context: int) -> Batch:
        """Windows of `context` tokens and what follows each token."""
        windows = _gather(self._tokens, torch.from_numpy(begins).to(self._tokens.device)[:, None], context + 1)
        return Batch((windows[:, :-1].contiguous(),), windows[:, 1:].contiguous(), len(begins) * context)


class ResidentPairs:
    """The pairs of a split on a device."""

    def __init__(self, data: PairData, split: PairSplit, device: torch.device | str) -> None:
        self._pad, self._lengths = data.pad, split.lengths
        self._source, self._target = (_resident(side.tokens, device) for side in (split.source, split.target))
        self._begins = np.stack([split.source.offsets[:-1], split.target.offsets[:-1]], axis=1)

    def batch(self, rows: list[np.ndarray], source: int, target: int) -> Batch:
        """Rows of these lengths, each with the pairs of these numbers, one after the other from its begin.

        `inputs`: sources (B, S), and for each token the place in its row of the sentence that it is of (B, S), OUTSIDE
        at padding; the same of the targets (B, T), from their bos on.
        """
        pairs = np.concatenate(rows)
        row = np.repeat(np.arange(len(rows)), [len(some) for some in rows])
        wide, tall = (len(rows), source), (len(rows), target)
        onto, read, of = self._tokens(0, pairs, row, source)
        words, word_of = _laid(wide, self._pad, onto, self._source[read]), _laid(wide, OUTSIDE, onto, of)
        onto, read, of = self._tokens(1, pairs, row, target)
        written, written_of = _laid(tall, self._pad, onto, self._target[read]), _laid(tall, OUTSIDE, onto, of)
        targets = _laid(tall, IGNORED, onto, self._target[read + 1])
        return Batch((words, word_of, written, written_of), targets, len(read))

    def _tokens(self, side: int, pairs: np.ndarray, row: np.ndarray, width: int) -> Tensor:
        """int64 (3, N), of each token on one side of the pairs (P,) in rows (P,) of this width: its place in the batch,
        its place in the split, the place of its sentence in the row.
        """
        lengths, first = self._lengths[pairs, side], np.searchsorted(row, np.arange(row[-1] + 1))[row]
        before = np.cumsum(lengths) - lengths
        inside = np.arange(lengths.sum()) - np.repeat(before, lengths)
        onto = np.repeat(row * width + before - before[first], lengths) + inside
        read = np.repeat(self._begins[pairs, side], lengths) + inside
        of = np.repeat(np.arange(len(pairs)) - first, lengths)
        return torch.from_numpy(np.stack([onto, read, of])).to(self._source.device)


def _laid(shape: tuple[int, int], empty: int, places: Tensor, values: Tensor) -> Tensor:
    """int64 of this shape: the values at their places, counted row by row, and `empty` elsewhere."""
    return torch.full(shape, empty, device=values.device).view(-1).index_put_((places,), values.long()).view(shape)


def _gather(tokens: Tensor, begins: Tensor, length: int) -> Tensor:
    """int64 (B, length): tokens from each of begins (B, 1) on, whatever they belong to."""
    places = begins + torch.arange(length, device=tokens.device)
    return tokens[places.clamp_(max=len(tokens) - 1)].long()


def _resident(array: np.ndarray, device: torch.device | str) -> Tensor:
    """The array as a tensor that is only read: on the CPU it shares the memory, which may be read-only.

    uint16 becomes int16, which all devices index; a vocabulary is far below 2 ** 15.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array.view(np.int16) if array.dtype == np.uint16 else array).to(device)


EVALUATION_TOKENS = 2_048  # of an evaluation batch on either side, padding included, unless it is a single row


class BatchShape(NamedTuple):
    """Rows of a training batch, and their lengths; text has no source."""

    rows: int
    source: int
    target: int


class Span(NamedTuple):
    """What was predicted in an evaluation."""

    tokens: int
    characters: int
    words: int


def batch_shape(data: TextData | PairData, *, batch_tokens: int, context: int) -> BatchShape:
    """The one shape that training batches have."""
    source, target = data.row if isinstance(data, PairData) else (0, context)
    return BatchShape(max(1, round(batch_tokens / target)), source, target)


class Feed(Protocol):
    """Where batches come from: an epoch is planned as an array, of which each row makes a batch."""

    def plan(self, generator: np.random.Generator) -> np.ndarray: ...

    def batch(self, row: np.ndarray, /) -> Batch: ...


class EndlessBatches:
    """Epoch after epoch of a feed; the order follows from the seed alone, the state from the batches taken."""

    def __init__(self, feed: Feed, seed: int) -> None:
        self._feed, self._seed = feed, seed
        self._begin(epoch=0, batch=0)

    def __iter__(self) -> "EndlessBatches":
        return self

    def __next__(self) -> Batch:
        while self._batch == len(self._plan):
            self._begin(epoch=self._epoch + 1, batch=0)
        self._batch += 1
        return self._feed.batch(self._plan[self._batch - 1])

    def __len__(self) -> int:
        """Batches of an epoch."""
        return len(self._plan)

    def some(self) -> Batch:
        """A batch of the epoch, whatever is in it; it counts as none of the others."""
        return self._feed.batch(self._plan[0])

    def state(self) -> dict[str, int]:
        """What `load_state` of another one on the same data needs to go on exactly here."""
        return {"seed": self._seed, "epoch": self._epoch, "batch": self._batch}

    def load_state(self, state: dict[str, Any]) -> None:
        self._seed = state["seed"]
        self._begin(epoch=state["epoch"], batch=state["batch"])

    def _begin(self, *, epoch: int, batch: int) -> None:
        self._epoch, self._batch = epoch, batch
        self._plan = self._feed.plan(np.random.default_rng([self._seed, epoch]))


class TrainBatches(EndlessBatches):
    """A batch has about `batch_tokens` target tokens, padding included.

    An epoch of text has windows of `context` tokens from an offset of its own, none twice; an epoch of pairs has the
    packed rows, none twice.
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
        feed = _PairFeed(data, shape, device) if isinstance(data, PairData) else _TextFeed(data, shape, device)
        super().__init__(feed, seed)


class _TextFeed:
    """Windows of the training text."""

    def __init__(self, data: TextData, shape: BatchShape, device: torch.device | str) -> None:
        self._shape = shape
        self._windows = (len(data.train) - shape.target) // shape.target
        if self._windows < shape.rows:
            raise UserError(
                f"--text-corpus: {data.name!r} has {len(data.train)} training tokens, fewer than a batch; "
                f"give a text of at least {(shape.rows + 1) * shape.target} tokens"
            )
        self._text = ResidentText(data.train, device)

    def plan(self, generator: np.random.Generator) -> np.ndarray:
        """Where the windows of each batch of one epoch begin (batches, rows)."""
        begin = generator.integers(self._shape.target)
        return begin + _drawn(self._windows, self._shape.rows, generator) * self._shape.target

    def batch(self, begins: np.ndarray) -> Batch:
        return self._text.batch(begins, self._shape.target)


class _PairFeed:
    """Packed rows of the training pairs."""

    def __init__(self, data: PairData, shape: BatchShape, device: torch.device | str) -> None:
        self._shape, self._rows = shape, data.rows
        if len(data.rows) < shape.rows:
            raise UserError(
                f"--translation-corpus: {data.name!r} has {len(data.train)} training pairs, "
                f"fewer than a batch; give a file with at least {shape.rows * shape.target} words"
            )
        self._pairs = ResidentPairs(data, data.train, device)

    def plan(self, generator: np.random.Generator) -> np.ndarray:
        """The rows of each batch of one epoch (batches, rows)."""
        return _drawn(len(self._rows), self._shape.rows, generator)

    def batch(self, rows: np.ndarray) -> Batch:
        return self._pairs.batch(self._rows.of(rows), self._shape.source, self._shape.target)


def _drawn(count: int, rows: int, generator: np.random.Generator) -> np.ndarray:
    """Numbers below `count` in a new order, by batches (batches, rows); what does not fill one has to wait."""
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
    """All of `split` or its fixed subset of about `tokens` target tokens, spread over it.

    Splits are "train", "valid" and "test", and of text "held_out". Text is cut into windows of `context` tokens without
    overlap. Where one `window` is a multiple of several contexts, each has the same targets, batch by batch.
    """
    if isinstance(data, PairData):
        yield from _pair_evaluation(data, getattr(data, split), tokens, device)
        return
    ids, window = getattr(data, split), window or context
    text, last = ResidentText(ids, device), len(ids) - 1
    begins = _windows(last, tokens, window)
    begins = (begins[:, None] + np.arange(0, window, context)).flatten()
    begins, rows = begins[begins < last], max(1, EVALUATION_TOKENS // window) * window // context
    for first in range(0, len(begins), rows):
        some = begins[first : first + rows]
        batch = text.batch(some, context)
        yield batch if (beyond := int(some[-1]) + context - last) <= 0 else _cut(batch, beyond)


def _cut(batch: Batch, beyond: int) -> Batch:
    """A batch of text whose last row has so many targets beyond the end: they count for nothing."""
    (inputs,), targets = batch.inputs, batch.targets
    assert inputs is not None, "it is of text"
    if len(targets) == 1:
        return Batch((inputs[:, :-beyond],), targets[:, :-beyond], batch.tokens - beyond)
    targets[-1, -beyond:] = IGNORED
    return Batch((inputs,), targets, batch.tokens - beyond)


def span(data: TextData | PairData, split: str, tokens: int | None, *, context: int) -> Span:
    """Target tokens of `evaluation_batches` with the same arguments, and the characters and words that they spell."""
    if isinstance(data, PairData):
        pairs: PairSplit = getattr(data, split)
        rows = _subset(pairs, tokens)
        return Span(int(pairs.lengths[rows, 1].sum()), int(pairs.characters[rows].sum()), int(pairs.words[rows].sum()))
    ids: np.ndarray = getattr(data, split)
    tokenizer = Tokenizer.from_json(data.tokenizer)
    last = len(ids) - 1
    windows = [(begin, min(context, last - begin)) for begin in _windows(last, tokens, context).tolist()]
    texts = [tokenizer.decode(ids[begin : begin + length + 1]) for begin, length in windows]
    firsts = [tokenizer.decode(ids[begin : begin + 1]) for begin, _ in windows]
    return Span(
        sum(length for _, length in windows), sum(map(len, texts)) - sum(map(len, firsts)), sum(map(count_words, texts))
    )


def _windows(targets: int, tokens: int | None, window: int) -> np.ndarray:
    """Where the windows begin that predict about `tokens` of so many targets; the last of all may be shorter."""
    windows = targets // window
    if tokens is None or tokens >= windows * window:
        return np.arange(0, targets, window)
    return spread(max(1, tokens // window), windows) * window


def _subset(pairs: PairSplit, tokens: int | None) -> np.ndarray:
    """The pairs that an evaluation on about `tokens` target tokens has."""
    share = 1.0 if tokens is None else tokens / int(pairs.lengths[:, 1].sum())
    return spread(max(1, round(share * len(pairs))), len(pairs))


def spread(count: int, whole: int) -> np.ndarray:
    """`count` different numbers below `whole`, evenly spread."""
    count = min(count, whole)
    return np.arange(count) * whole // count


def _pair_evaluation(
    data: PairData,
    split: PairSplit,
    tokens: int | None,
    device: torch.device | str,
) -> Iterator[Batch]:
    """Packed as in training; what is longer than that has rows of its own."""
    pairs, some = ResidentPairs(data, split, device), _subset(split, tokens)
    lengths = split.lengths[some]
    long = (lengths > data.row).any(axis=1)
    for chosen, (source, target) in ((~long, data.row), (long, lengths.max(axis=0))):
        rows = pack(lengths[chosen], (int(source), int(target)))
        count = max(1, EVALUATION_TOKENS // int(max(source, target)))
        for first in range(0, len(rows), count):
            packed = rows.of(np.arange(first, min(first + count, len(rows))))
            yield pairs.batch([some[chosen][row] for row in packed], int(source), int(target))
