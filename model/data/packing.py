"""Pairs packed into rows of one static shape: several in each row, with hardly any padding."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

ROW_TOKENS = 64  # least target tokens of a row; more would cost attention and gain nothing
PACKED_SHARE = 0.999  # quantile of the pairs' lengths that fits in a row; the longest few are not trained on

Shape = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Packed rows: row i has the pairs numbered `pairs[offsets[i]:offsets[i + 1]]`, pairs int32, offsets int64."""

    pairs: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def of(self, rows: np.ndarray) -> list[np.ndarray]:
        """Return the numbers of the pairs of each of these rows."""
        return [self.pairs[self.offsets[row] : self.offsets[row + 1]] for row in rows]


def row_shape(lengths: np.ndarray) -> Shape:
    """Return how many source and target tokens a row has, such that both sides fill alike; lengths (pairs, 2)."""
    longest = np.quantile(lengths, PACKED_SHARE, axis=0, method="higher")
    fitting = lengths[(lengths <= longest).all(axis=1)]
    source, target = fitting.max(axis=0).tolist()
    ratio = fitting[:, 0].sum() / fitting[:, 1].sum()
    target = max(target, ROW_TOKENS, round(source / ratio))
    return max(source, round(target * ratio)), target


def pack(lengths: np.ndarray, shape: Shape) -> Rows:
    """Pack all pairs that fit into rows; lengths (pairs, 2). Which pair of a given length goes where is random.

    A row begins with the longest pair left, goes on with the lengths of which most are left, and closes, as soon as
    that is possible, with one or two pairs that fill both sides to the last token.
    """
    fitting = np.random.default_rng(0).permutation(np.flatnonzero((lengths <= shape).all(axis=1)))
    kinds = np.ravel_multi_index(tuple(lengths[fitting].T), (shape[0] + 1, shape[1] + 1))  # equal lengths, one kind
    rows = list(_Stock(lengths[fitting], shape).rows())
    taken = np.concatenate([np.tile(row, times) for row, times in rows]) if rows else kinds
    pairs = np.empty(len(fitting), dtype=np.int32)
    pairs[taken.argsort(kind="stable")] = fitting[kinds.argsort(kind="stable")]
    counts = np.repeat([len(row) for row, _ in rows], [times for _, times in rows])
    return Rows(pairs=pairs, offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64))


class _Stock:
    """The pairs that are in no row yet, as counts of each source and target length."""

    def __init__(self, lengths: np.ndarray, shape: Shape) -> None:
        self._shape = np.array(shape)
        self._left = np.zeros(self._shape + 1, dtype=np.int64)
        np.add.at(self._left, tuple(lengths.T), 1)
        kinds = np.argwhere(self._left)
        self._kinds = kinds[np.argsort(-(kinds / self._shape).max(axis=1), kind="stable")]  # the longest first

    def rows(self) -> Iterator[tuple[np.ndarray, int]]:
        """Yield the kinds of pairs in a row, as places in the table of all lengths, and how many rows have these."""
        while len(self._kinds):
            row = np.array(list(self._row()))
            kinds, times = np.unique(row, axis=0, return_counts=True)
            again = int((self._left[tuple(kinds.T)] // times).min())
            self._left[tuple(kinds.T)] -= again * times
            self._kinds = self._kinds[self._left[tuple(self._kinds.T)] > 0]
            yield np.ravel_multi_index(tuple(row.T), self._left.shape), 1 + again

    def _row(self) -> Iterator[np.ndarray]:
        room, kind = self._shape, self._kinds[0]
        while kind is not None:
            self._left[tuple(kind)] -= 1
            room = room - kind
            yield kind
            kind = self._next(room)

    def _next(self, room: np.ndarray) -> np.ndarray | None:
        """Return the kind that comes next in a row with so much room; None where none fits."""
        fits = self._kinds[(self._kinds <= room).all(axis=1)]
        fits = fits[self._left[tuple(fits.T)] > 0]
        if len(fits) == 0:
            return None
        counts, rests = self._left[tuple(fits.T)], room - fits
        alike = (rests == fits).all(axis=1)
        closing = np.minimum(counts, self._left[tuple(rests.T)] - alike)  # with another pair that takes the rest
        closing[(rests == 0).all(axis=1)] = counts.sum()  # alone
        best = closing if closing.max() > 0 else counts * (fits / self._shape).sum(axis=1)
        chosen: np.ndarray = fits[best.argmax()]
        return chosen
