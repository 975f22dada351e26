"""Batches from tokenized text and pairs: endless, shuffled and resumable for training, fixed for evaluation."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from model.prepared import PairData, PairSplit, TextData, count_words
from model.resident import Batch, ResidentPairs, ResidentText
from model.shapes import assign_shapes, choose_shapes
from model.tokenizer import Tokenizer

EVALUATION_TOKENS = 2_048    # target tokens of an evaluation batch, padding included
EVALUATION_SHAPE_TOKENS = 1_024    # of an evaluation's target tokens for each shape: more shapes have less padding

Planned = tuple[int, np.ndarray]    # a batch to come: the number of its shape, its rows


class BatchShape(NamedTuple):
    """Rows of a training batch, and the lengths to which they are padded; text has no source."""

    rows: int
    source: int
    target: int


class Span(NamedTuple):
    """What was predicted in an evaluation."""

    tokens: int
    characters: int
    words: int


def batch_shapes(data: TextData | PairData, *, batch_tokens: int, context: int) -> list[BatchShape]:
    """The shapes that training batches have."""
    if isinstance(data, PairData):
        return [BatchShape(max(1, round(batch_tokens / target)), source, target) for source, target in data.shapes]
    return [BatchShape(max(1, batch_tokens // context), 0, context)]


class TrainBatches:
    """Endless batches; the order follows from the seed alone, the state from the batches taken.

    A batch has about `batch_tokens` target tokens, padding included. An epoch of text has windows of `context` tokens
    from an offset of its own, none twice; an epoch of pairs has every pair that a shape covers once on average.
    """

    def __init__(
        self, data: TextData | PairData, *, batch_tokens: int, context: int, seed: int,
        device: torch.device | str = "cpu",
    ) -> None:
        self._seed = seed
        self._feed: _PairFeed | _TextFeed = (
            _PairFeed(data, batch_tokens, context, device) if isinstance(data, PairData)
            else _TextFeed(data, batch_tokens, context, device))
        self._begin(epoch=0, batch=0)

    def __iter__(self) -> "TrainBatches":
        return self

    def __next__(self) -> Batch:
        while self._batch == len(self._plan):
            self._begin(epoch=self._epoch + 1, batch=0)
        self._batch += 1
        return self._feed.batch(self._plan[self._batch - 1])

    def of_shape(self, number: int) -> Batch:
        """A batch of one of `batch_shapes`, whatever is in it; it counts as none of the others."""
        return self._feed.batch((number, self._feed.some(number)))

    def state(self) -> dict[str, int]:
        """What `load_state` of another one on the same data needs to go on exactly here."""
        return {"seed": self._seed, "epoch": self._epoch, "batch": self._batch}

    def load_state(self, state: dict[str, Any]) -> None:
        self._seed = state["seed"]
        self._begin(epoch=state["epoch"], batch=state["batch"])

    def _begin(self, *, epoch: int, batch: int) -> None:
        self._epoch, self._batch = epoch, batch
        self._plan = self._feed.plan(np.random.default_rng([self._seed, epoch]))


class _TextFeed:
    """Windows of the training text."""

    def __init__(self, data: TextData, batch_tokens: int, context: int, device: torch.device | str) -> None:
        self._context = context
        self._rows = batch_shapes(data, batch_tokens=batch_tokens, context=context)[0].rows
        self._windows = (len(data.train) - context) // context
        if self._windows < self._rows:
            raise ValueError(f"--text-corpus: {data.name!r} has {len(data.train)} training tokens, fewer than a batch; "
                             f"give a text of at least {(self._rows + 1) * context} tokens")
        self._text = ResidentText(data.train, device)

    def plan(self, generator: np.random.Generator) -> list[Planned]:
        """Where the windows of each batch of one epoch begin; text has one shape."""
        begin = generator.integers(self._context)
        batches = self._windows // self._rows
        windows = generator.permutation(self._windows)[:batches * self._rows]
        return [(0, begins) for begins in (begin + windows * self._context).reshape(batches, self._rows)]

    def some(self, number: int) -> np.ndarray:
        """Rows for one batch."""
        return np.arange(self._rows) * self._context

    def batch(self, planned: Planned) -> Batch:
        return self._text.batch(planned[1], self._context)


class _PairFeed:
    """Training pairs in batches of a few static shapes."""

    def __init__(self, data: PairData, batch_tokens: int, context: int, device: torch.device | str) -> None:
        if int(data.train.lengths[:, 1].sum()) < batch_tokens:
            raise ValueError(f"--translation-corpus: {data.name!r} has {len(data.train)} training pairs, "
                             f"fewer than a batch; give a file with at least {batch_tokens} words")
        homes = assign_shapes(data.train.lengths, data.shapes)
        self._shapes = data.shapes
        self._members = [np.flatnonzero(homes == number) for number in range(len(data.shapes))]
        self._rows = [shape.rows for shape in batch_shapes(data, batch_tokens=batch_tokens, context=context)]
        lengths = data.train.lengths
        self._uniform = [bool((lengths[rows, 0] == shape[0]).all())
                         for rows, shape in zip(self._members, data.shapes, strict=True)]
        self._pairs = ResidentPairs(data, data.train, device)

    def plan(self, generator: np.random.Generator) -> list[Planned]:
        """Pairs of each batch of one epoch; what does not fill a batch becomes one with its share as odds."""
        batches = []
        for number, (members, rows) in enumerate(zip(self._members, self._rows, strict=True)):
            whole = int(len(members) / rows + generator.random())
            pairs = np.resize(generator.permutation(members), (whole, rows))
            batches += [(number, some) for some in pairs]
        return [batches[i] for i in generator.permutation(len(batches))]

    def some(self, number: int) -> np.ndarray:
        """Rows for one batch."""
        return np.resize(self._members[number], self._rows[number])

    def batch(self, planned: Planned) -> Batch:
        number, pairs = planned
        return self._pairs.batch(pairs, *self._shapes[number], masked=not self._uniform[number])


def evaluation_batches(
    data: TextData | PairData, split: str, *, tokens: int | None, context: int, device: torch.device | str = "cpu",
) -> Iterator[Batch]:
    """All of `split` or its fixed subset of about `tokens` target tokens, spread over it.

    Splits are "train", "valid" and "test", and of text "held_out". Text is cut into windows of `context` tokens without
    overlap; pairs of similar lengths come together.
    """
    if isinstance(data, PairData):
        yield from _pair_evaluation(data, getattr(data, split), tokens, device)
        return
    text = ResidentText(getattr(data, split), device)
    begins, rest = _windows(len(getattr(data, split)), tokens, context)
    rows = max(1, EVALUATION_TOKENS // context)
    for some in range(0, len(begins), rows):
        yield text.batch(begins[some:some + rows], context)
    if rest:
        yield text.batch(np.array([len(getattr(data, split)) - 1 - rest]), rest)


def span(data: TextData | PairData, split: str, tokens: int | None, *, context: int) -> Span:
    """Target tokens of `evaluation_batches` with the same arguments, and the characters and words that they spell."""
    if isinstance(data, PairData):
        pairs: PairSplit = getattr(data, split)
        rows = _subset(pairs, tokens)
        return Span(int(pairs.lengths[rows, 1].sum()), int(pairs.characters[rows].sum()), int(pairs.words[rows].sum()))
    ids: np.ndarray = getattr(data, split)
    tokenizer = Tokenizer.from_json(data.tokenizer)
    begins, rest = _windows(len(ids), tokens, context)
    windows = [(begin, context) for begin in begins.tolist()] + [(len(ids) - 1 - rest, rest)] * (rest > 0)
    texts = [tokenizer.decode(ids[begin:begin + length + 1]) for begin, length in windows]
    firsts = [tokenizer.decode(ids[begin:begin + 1]) for begin, _ in windows]
    return Span(sum(length for _, length in windows), sum(map(len, texts)) - sum(map(len, firsts)),
                sum(map(count_words, texts)))


def _windows(length: int, tokens: int | None, context: int) -> tuple[np.ndarray, int]:
    """Where the windows that predict about `tokens` of `length` tokens begin, and the length of a last, shorter one."""
    windows, rest = divmod(length - 1, context)
    if tokens is None or tokens >= windows * context:
        return np.arange(windows) * context, rest
    return _spread(max(1, tokens // context), windows) * context, 0


def _subset(pairs: PairSplit, tokens: int | None) -> np.ndarray:
    """The pairs that an evaluation on about `tokens` target tokens has."""
    share = 1.0 if tokens is None else tokens / int(pairs.lengths[:, 1].sum())
    return _spread(max(1, round(share * len(pairs))), len(pairs))


def _spread(count: int, whole: int) -> np.ndarray:
    """`count` different numbers below `whole`, evenly spread."""
    count = min(count, whole)
    return np.arange(count) * whole // count


def _pair_evaluation(
    data: PairData, split: PairSplit, tokens: int | None, device: torch.device | str,
) -> Iterator[Batch]:
    pairs, rows = ResidentPairs(data, split, device), _subset(split, tokens)
    lengths = split.lengths[rows]
    shapes = choose_shapes(lengths, most=1 + int(lengths[:, 1].sum()) // EVALUATION_SHAPE_TOKENS)
    homes = assign_shapes(lengths, shapes)
    for home in range(-1, len(shapes)):
        members = np.flatnonzero(homes == home)
        while len(members):
            count = max(1, EVALUATION_TOKENS // int(lengths[members, 1].max()))
            some, members = members[:count], members[count:]
            source, target = lengths[some].max(axis=0).tolist()
            yield pairs.batch(rows[some], source, target, masked=bool((lengths[some, 0] < source).any()))
