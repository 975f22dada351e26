"""What lies on a device: batches, and the texts that they are gathered from."""

import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from model.data.dataset import PairData, PairSplit

# Shapes: B batch, T target length, S source length.


IGNORED = -1
OUTSIDE = -1
ROUND = 8
LAID_AT_ONCE = 4_096
"""Rows that are laid out at a time, so that this takes little memory beside them."""
KEPT = 16
"""Results that `memoized` keeps: for two families the texts and rows on GPUs, and the packed rows of evaluations."""

Inputs = tuple[Tensor, ...]


@dataclass(frozen=True)
class Batch:
    """A batch: inputs of the family's forward, and targets (B, T) int64, IGNORED at padding. tokens: number of targets
    that count. block: in an evaluation, the number of rows over which losses are summed together; 0: all."""

    inputs: Inputs
    targets: Tensor
    tokens: int
    block: int = 0

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch on another device."""
        return replace(self, inputs=tuple(x.to(device) for x in self.inputs), targets=self.targets.to(device))

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(each.nbytes for each in (*self.inputs, self.targets))

    @staticmethod
    def concatenate(batches: "Sequence[Batch]") -> "Batch":
        """Return one batch with the rows of all."""
        joined = tuple(map(torch.cat, zip(*(each.inputs for each in batches), strict=True)))
        return Batch(joined, torch.cat([each.targets for each in batches]), sum(each.tokens for each in batches))

    def parts(self, count: int) -> list[tuple["Batch", Tensor]]:
        """Cut the batch into at most `count` parts, each with its share of the tokens, a scalar on the device.

        `tokens` of a part are the whole batch's.
        """
        rows = -(-len(self.targets) // count)
        parts = []
        for first in range(0, len(self.targets), rows):
            some = slice(first, first + rows)
            inputs = tuple(x[some] for x in self.inputs)
            share = (self.targets[some] != IGNORED).sum() / self.tokens
            parts.append((Batch(inputs, self.targets[some], self.tokens), share))
        return parts


class ResidentText:
    """Text on a device."""

    def __init__(self, tokens: np.ndarray, device: torch.device | str) -> None:
        self._tokens = resident(tokens, device)
        self._reach = torch.arange(0, device=device)

    def batch(self, begins: Tensor, context: int) -> Batch:
        """Return windows of `context` tokens, with the token that follows each as target; begins (B,), on the
        device."""
        if len(self._reach) != context + 1:
            self._reach = torch.arange(context + 1, device=self._tokens.device)
        places = (begins[:, None] + self._reach).clamp_(max=len(self._tokens) - 1)
        windows = self._tokens[places].long()
        return Batch((windows[:, :-1].contiguous(),), windows[:, 1:].contiguous(), len(begins) * context)


class ResidentPairs:
    """The pairs of a split on a device."""

    def __init__(self, data: PairData, split: PairSplit, device: torch.device | str) -> None:
        self._pad, self._lengths = data.pad, split.lengths
        self._source, self._target = (resident(side.tokens, device) for side in (split.source, split.target))
        self._begins = np.stack([split.source.offsets[:-1], split.target.offsets[:-1]], axis=1)

    def batch(self, rows: list[np.ndarray], source: int, target: int) -> Batch:
        """Return a batch of rows of `source` and `target` tokens, each with the pairs numbered in `rows`, end to end.

        Its inputs: sources (B, S), and the number of each token's sentence in the row (B, S), OUTSIDE at padding; the
        same for the targets (B, T), which begin with bos.
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
        """Return int64 (3, N), for each token on one side of the pairs (P,) in rows (P,) of this width: its place in
        the batch, its place in the split, and the number of its sentence in the row.
        """
        lengths, first = self._lengths[pairs, side], np.searchsorted(row, np.arange(row[-1] + 1))[row]
        before = np.cumsum(lengths) - lengths
        inside = np.arange(lengths.sum()) - np.repeat(before, lengths)
        onto = np.repeat(row * width + before - before[first], lengths) + inside
        read = np.repeat(self._begins[pairs, side], lengths) + inside
        of = np.repeat(np.arange(len(pairs)) - first, lengths)
        return to_device(np.stack([onto, read, of]), self._source.device)


def _laid(shape: tuple[int, int], empty: int, places: Tensor, values: Tensor) -> Tensor:
    """Return int64 of this shape, with the values at their places, counted row by row, and `empty` elsewhere."""
    return torch.full(shape, empty, device=values.device).view(-1).index_put_((places,), values.long()).view(shape)


class ResidentRows:
    """All packed rows of the training pairs, laid out once on a device, so that a batch is a gather.

    Rows are a little longer than `data.row` where CUDA's attention wants a multiple of ROUND.
    """

    def __init__(self, data: PairData, device: torch.device) -> None:
        source, target = (-(-side // ROUND) * ROUND for side in data.row)
        self._widths = (source, source, target, target, target)
        pairs, rows = ResidentPairs(data, data.train, device), np.arange(len(data.rows))
        self._rows = torch.empty(len(rows), sum(self._widths), dtype=torch.int16, device=device)
        for first in range(0, len(rows), LAID_AT_ONCE):
            some = rows[first : first + LAID_AT_ONCE]
            batch = pairs.batch(data.rows.of(some), source, target)
            self._rows[first : first + len(some)] = torch.cat([*batch.inputs, batch.targets], 1)

    def gather(self, numbers: Tensor) -> tuple[Inputs, Tensor]:
        """Return the rows of these numbers (B,), which are on the device: inputs and targets as of ResidentPairs."""
        *inputs, targets = self._rows.index_select(0, numbers).long().split(self._widths, 1)
        return tuple(inputs), targets


def to_device(array: np.ndarray, device: torch.device | str) -> Tensor:
    """Return the array on a device; the host does not wait for a GPU to copy it."""
    there, here = torch.device(device), torch.from_numpy(array)
    return here.pin_memory().to(there, non_blocking=True) if there.type == "cuda" else here.to(there)


Made = TypeVar("Made")
_kept = OrderedDict[tuple[Hashable, ...], tuple[Any, Any]]()


def memoized(make: Callable[..., Made], of: object, *given: Hashable) -> Made:
    """Return `make(of, *given)`, called once for all trials of this process, and for all arrays that show the same
    memory in the same way, as those of a record's field do; the latest few results are kept."""
    shown = (of.ctypes.data, of.shape, of.strides, of.dtype.str) if isinstance(of, np.ndarray) else id(of)
    key = make, shown, *given  # the object is kept too, so that no other gets its id, or memory
    if key not in _kept:
        _kept[key] = of, make(of, *given)
    _kept.move_to_end(key)
    while len(_kept) > KEPT:
        _kept.popitem(last=False)
    made: Made = _kept[key][1]
    return made


def clear_memoized() -> None:
    """Drop what `memoized` keeps, so that its memory is free once nothing else needs it."""
    _kept.clear()


def resident(array: np.ndarray, device: torch.device | str) -> Tensor:
    """Return the array as a tensor that is only read: on the CPU it shares the memory, which may be read-only.

    uint16 becomes int16, which all devices index; a vocabulary is far below 2 ** 15.
    """
    place = torch.device(device)
    return _shared(array, place) if place.type == "cpu" else memoized(_shared, array, place)


def _shared(array: np.ndarray, device: torch.device) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array.view(np.int16) if array.dtype == np.uint16 else array).to(device)
