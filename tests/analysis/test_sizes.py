import numpy as np
import pytest

from analysis.efficiency import efficiency, expected, front


def front_by_definition(parameters: np.ndarray, perplexity: np.ndarray) -> list[bool]:
    """The reference: nobody is at most as large and at most as bad, and ahead in one of the two."""
    points = list(zip(parameters, perplexity, strict=True))
    return [not any(s <= size and p <= value and (s, p) != (size, value) for s, p in points) for size, value in points]


@pytest.mark.parametrize("seed", range(20))
def test_the_front_is_its_definition(seed: int) -> None:
    random = np.random.default_rng(seed)
    parameters, perplexity = random.integers(1, 8, (2, 30)).astype(float)  # with many ties
    assert front(parameters, perplexity).tolist() == front_by_definition(parameters, perplexity)


def test_efficiency_is_unknown_under_five_sizes() -> None:
    """Many trials of few sizes do not say how a curve goes between them."""
    for size in (np.arange(1.0, 5.0), np.repeat([1.0, 2.0], 9), np.ones(7)):
        assert np.isnan(efficiency(size, np.arange(1.0, len(size) + 1))).all()
    assert np.isfinite(efficiency(np.arange(1.0, 6.0), np.ones(5))).all()


def test_a_curve_of_few_sizes_does_not_bend() -> None:
    """However many trials there are of each: it is a line from its first size to its last."""
    sizes = np.logspace(4, 6, 5)
    losses = np.repeat([3.0, 2.0, 1.8, 2.0, 3.0], 4) + np.tile([-0.1, 0.0, 0.0, 0.1], 5)
    first, middle, last = expected(np.repeat(sizes, 4), np.exp(losses), sizes[[0, 2, 4]])[0]
    assert middle == pytest.approx((first + last) / 2)


def test_efficiency_is_the_distance_below_the_curve() -> None:
    sizes = np.logspace(4, 7, 9)
    perplexity = 100 * sizes**-0.2
    perplexity[4] *= np.exp(-0.3)
    value, low, high = efficiency(sizes, perplexity).T
    assert value[4] == pytest.approx(0.3, abs=0.02) and value.argmax() == 4
    assert np.abs(np.delete(value, 4)).max() < 0.02
    assert (low <= high).all() and low[4] > 0


def test_one_outlier_does_not_move_the_curve() -> None:
    sizes = np.logspace(4, 7, 12)
    clean = 100 * sizes**-0.2
    broken = clean.copy()
    broken[-1] *= 50
    assert expected(sizes, broken, sizes[:-1])[0] == pytest.approx(np.log(clean[:-1]), abs=0.05)


def test_efficiency_knows_neither_order_nor_units_of_size() -> None:
    random = np.random.default_rng(1)
    sizes, perplexity = np.exp(random.normal(14, 1, 20)), np.exp(random.normal(2, 0.3, 20))
    shuffle = random.permutation(20)
    first = efficiency(sizes, perplexity)[:, 0]
    assert efficiency(1e-6 * sizes, perplexity)[:, 0] == pytest.approx(first)
    assert efficiency(sizes[shuffle], perplexity[shuffle])[:, 0] == pytest.approx(first[shuffle])
