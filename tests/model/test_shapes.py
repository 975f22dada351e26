"""Static shapes: few, covering, and with as little padding as can be."""

import numpy as np
import pytest

from model.shapes import SHAPES, assign_shapes, choose_shapes


def padding(lengths: np.ndarray, most: int) -> float:
    shapes = choose_shapes(lengths, most)
    homes = assign_shapes(lengths, shapes)
    kept = homes >= 0
    return float(1 - lengths[kept].sum() / np.array(shapes)[homes[kept]].sum())


@pytest.fixture(scope="module")
def lengths() -> np.ndarray:
    """Like sentence pairs: skewed, the two sides alike."""
    generator = np.random.default_rng(0)
    sources = generator.gamma(4, 2.5, 5_000) + 1
    return np.stack([sources, sources * generator.normal(1.1, 0.2, 5_000).clip(0.5) + 2], axis=1).astype(np.int64)


def test_every_pair_but_the_longest_fits_its_shape(lengths: np.ndarray) -> None:
    shapes = choose_shapes(lengths)
    assert len(shapes) <= SHAPES
    homes = assign_shapes(lengths, shapes)
    assert (homes < 0).mean() < 0.003
    kept = homes >= 0
    assert (lengths[kept] <= np.array(shapes)[homes[kept]]).all()


def test_each_pair_has_the_smallest_shape_that_covers_it(lengths: np.ndarray) -> None:
    shapes = choose_shapes(lengths)
    for pair, home in zip(lengths[:300].tolist(), assign_shapes(lengths[:300], shapes).tolist(), strict=True):
        covering = [sum(shape) for shape in shapes if pair[0] <= shape[0] and pair[1] <= shape[1]]
        assert (min(covering) == sum(shapes[home])) if covering else home == -1


def test_more_shapes_have_less_padding(lengths: np.ndarray) -> None:
    falling = [padding(lengths, most) for most in (1, 2, 4, 8, 16, 32)]
    assert falling == sorted(falling, reverse=True) and len(set(falling)) == len(falling)


def test_as_many_shapes_as_lengths_need_no_padding() -> None:
    lengths = np.array([[3, 4], [5, 4], [7, 9], [2, 2]] * 10)
    assert sorted(choose_shapes(lengths, 9)) == [(2, 2), (3, 4), (5, 4), (7, 9)]
    assert padding(lengths, 9) == 0


def test_the_first_cut_is_the_best_of_all(lengths: np.ndarray) -> None:
    some = lengths[:200]

    def cost(group: np.ndarray) -> int:
        return int(group.max(axis=0).sum()) * len(group) if len(group) else 0

    best = min(cost(some[some[:, side] <= limit]) + cost(some[some[:, side] > limit])
               for side in (0, 1) for limit in set(some[:, side].tolist()))
    sizes = np.array(choose_shapes(some, 2)).sum(axis=1)
    ours = min(cost(some[some[:, side] <= limit]) + cost(some[some[:, side] > limit])
               for side in (0, 1) for limit in set(some[:, side].tolist())
               if {int(some[some[:, side] <= limit].max(axis=0).sum()),
                   int(some[some[:, side] > limit].max(axis=0, initial=0).sum())} == set(sizes.tolist()))
    assert ours == best
