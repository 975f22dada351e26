"""Each idea can be left out."""

import math

import pytest

from tests.tune.virtual.made import settings, table
from tune.curves.benchmark import IDEAS, Amount, Cell, search


@pytest.mark.parametrize("idea", IDEAS)
def test_each_idea_can_be_left_out_and_is_back_afterwards(idea):
    cells = [
        Cell(table=table(30, reports=30), scheduler=scheduler, budget=Amount(text="10%", times=0.1), workers=4)
        for scheduler in ("ration", f"without {idea}", "ration")
    ]
    before, without, after = (search(cell, settings(), seed=0) for cell in cells)
    assert before == after and 0 <= without.regret < math.inf
