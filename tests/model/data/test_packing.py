"""Packed rows: every pair that fits in exactly one, none too full, and hardly any room left."""

import numpy as np
import pytest

from model.data.packing import pack, row_shape


@pytest.fixture(scope="module")
def lengths() -> np.ndarray:
    """Like sentence pairs: skewed, the two sides alike."""
    generator = np.random.default_rng(0)
    sources = generator.gamma(4, 2.5, 20_000) + 1
    return np.stack([sources, sources * generator.normal(1.1, 0.2, 20_000).clip(0.5) + 2], axis=1).astype(np.int64)


def test_all_but_the_longest_fit_in_a_row(lengths: np.ndarray) -> None:
    assert (lengths > row_shape(lengths)).any(axis=1).mean() < 0.003


@pytest.mark.parametrize("pairs", [1, 2, 3_000])
def test_every_pair_that_fits_is_in_one_row_and_no_row_is_too_full(lengths: np.ndarray, pairs: int) -> None:
    some = lengths[:pairs]
    shape = row_shape(some)
    rows = pack(some, shape)
    assert sorted(rows.pairs.tolist()) == np.flatnonzero((some <= shape).all(axis=1)).tolist()
    packed = rows.of(np.arange(len(rows)))
    assert all(len(row) and (some[row].sum(axis=0) <= shape).all() for row in packed)
    assert sum(map(len, packed)) == len(rows.pairs)


@pytest.mark.parametrize(("pairs", "most"), [(1_000, 0.05), (20_000, 0.01)])
def test_hardly_any_of_the_rows_is_padding(lengths: np.ndarray, pairs: int, most: float) -> None:
    shape = row_shape(lengths)
    some = lengths[:pairs][(lengths[:pairs] <= shape).all(axis=1)]
    assert 1 - some.sum() / (len(pack(some, shape)) * sum(shape)) < most


def test_where_one_side_is_longer_by_far_the_row_is_shaped_like_the_pairs() -> None:
    lengths = np.random.default_rng(0).integers((20, 2), (40, 5), (2_000, 2))
    source, target = row_shape(lengths)
    assert 8 < source / target < 12
    assert len(pack(lengths, (source, target))) * source < 1.05 * lengths[:, 0].sum()


def test_rows_follow_from_the_lengths_alone_and_leave_other_random_streams_alone(lengths: np.ndarray) -> None:
    state = str(np.random.get_state(legacy=False))
    one, same = (pack(lengths[:500], (55, 64)) for _ in range(2))
    assert np.array_equal(one.pairs, same.pairs) and np.array_equal(one.offsets, same.offsets)
    assert str(np.random.get_state(legacy=False)) == state


def test_equal_pairs_do_not_keep_the_order_of_the_corpus() -> None:
    lengths = np.full((1_000, 2), 8)
    assert (np.diff(pack(lengths, (64, 64)).pairs) == 1).mean() < 0.1


def test_nothing_fits_in_no_row(lengths: np.ndarray) -> None:
    assert len(pack(lengths[:0], (55, 64))) == len(pack(np.array([[70, 1], [1, 70]]), (55, 64))) == 0
