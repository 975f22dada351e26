"""Tokens that stay on the device, and batches gathered from them."""

# Shapes: B batch, T target length, S source length.

import warnings
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from model.prepared import PairData, PairSplit

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
