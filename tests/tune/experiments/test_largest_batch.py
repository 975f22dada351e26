"""The largest batch: what is tried next, and what smaller ones foretell."""

import pytest

from tune.experiments.batch_size import fitted, largest_rows, next_rows


@pytest.mark.parametrize("held", [1, 31, 32, 100, 500, 2047, 2048, 7000])
def test_the_largest_batch_is_found_to_a_hundredth(held):
    fits, fails, tried = 0, None, 0
    while (rows := next_rows(fits, fails, 10_000, 32)) is not None:
        fits, fails, tried = (rows, fails, tried + 1) if rows <= held else (fits, rows, tried + 1)
    assert fits <= held < fails and fails - fits <= max(1, fits / 100) and tried < 20


def test_where_nothing_fits_and_where_everything_does():
    assert next_rows(0, 1, 100, 32) is None
    assert [next_rows(fits, None, 100, 32) for fits in (0, 32, 100)] == [32, 100, None]


def test_a_line_through_small_batches_foretells_the_largest():
    def paper(rows):
        return 1000 + 10 * rows

    measured = {rows: 500 + 1.25 * paper(rows) for rows in (32, 128)}
    assert largest_rows(fitted(measured, paper), 500 + 1.25 * paper(900), 10**6) == 900
    assert largest_rows(fitted({32: 2 * paper(32)}, paper), 2 * paper(50), 10**6) == 50
    assert largest_rows(paper, 999, 10**6) == 0 and largest_rows(paper, 1e12, 77) == 77


@pytest.mark.parametrize("measured", [[32], [32, 128], [32, 128, 512]])
def test_bytes_that_no_64_bit_integer_holds_the_square_of_foretell_as_many_rows(measured):
    def paper(rows):
        return 10**7 + 3 * 10**6 * rows

    foretold = fitted({rows: 2 * paper(rows) for rows in measured}, paper)
    taken = [foretold(rows) for rows in (1, 100, 10**4, 2**24)]
    assert taken == pytest.approx([2 * paper(rows) for rows in (1, 100, 10**4, 2**24)])
    assert largest_rows(foretold, 2 * paper(103) + 1, 2**24) == 103
