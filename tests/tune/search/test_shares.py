"""The laws of a lease's length."""

from pathlib import Path

import pytest

from tests.tune.search.world import World
from tune.search.family import with_start_up


@pytest.mark.parametrize("cap", [40, 44])
def test_the_first_slot_leaves_the_second_as_much_to_start_with(tmp_path: Path, cap: float) -> None:
    """In a cap so small that one start with its whole margin would take most of it."""
    world = World(tmp_path, cap=cap, slots=2)
    first, second = world.engine.next(), world.engine.next()
    assert first is not None and second is not None
    assert second.seconds > 0.9 * first.seconds


def test_a_start_has_its_margin_where_that_is_left_and_never_less_than_its_price() -> None:
    assert with_start_up(9.0, 6.0, even_share=100.0) > 2 * 6.0 + 9.0
    assert with_start_up(9.0, 6.0, even_share=20.0) == 20.0
    assert with_start_up(9.0, 6.0, even_share=5.0) == 15.0
