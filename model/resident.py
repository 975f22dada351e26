"""Tokens that stay on the device, and batches gathered from them."""

# Shapes: B batch, T target length, S source length.

import warnings
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from model.prepared import PairData, PairSplit

IGNORED = -1


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
        self._pad = data.pad
        self._source, self._target = (_resident(side.tokens, device) for side in (split.source, split.target))
        self._places = np.stack([
            split.source.offsets[:-1], split.target.offsets[:-1], split.lengths[:, 0], split.lengths[:, 1]])

    def batch(self, rows: np.ndarray, source: int, target: int, *, masked: bool) -> Batch:
        """The pairs, padded to the two lengths; `masked` where a source is shorter than its."""
        places = self._places[:, rows, None]
        sources, targets, source_lengths, target_lengths = torch.from_numpy(places).to(self._source.device)    # (B, 1)
        beyond = torch.arange(source, device=sources.device) >= source_lengths    # (B, S)
        words = _gather(self._source, sources, source).masked_fill_(beyond, self._pad)    # (B, S)
        after = torch.arange(target, device=sources.device) >= target_lengths    # (B, T)
        written = _gather(self._target, targets, target + 1)    # (B, T + 1)
        inputs = words, ~beyond if masked else None, written[:, :-1].masked_fill(after, self._pad)
        return Batch(inputs, written[:, 1:].masked_fill(after, IGNORED), int(places[3].sum()))


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
