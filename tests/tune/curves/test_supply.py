"""The order of configurations."""

import pytest

from tests.tune.curves.made import table
from tune.curves.supply import Supply

CURVES = table(20).curves  # each larger than the one before


@pytest.mark.parametrize("suggest", ["order", "prior"])
def test_every_curve_is_handed_out_once_and_once_more_when_it_begins_again(suggest: str) -> None:
    prior = (lambda config: float(config["depth"]) + 1.0) if suggest == "prior" else None
    supply = Supply(CURVES, seed=1, prior=prior)
    for _ in range(2):
        given = []
        while supply.more:
            first = supply.first()
            given.append(supply.suggest(f"t{len(given)}")["curve"])
            assert CURVES[given[-1]] is first
            supply.tell(f"t{len(given) - 1}", 0, 1.0 / len(given))
        assert sorted(given) == list(range(len(CURVES)))
        supply.begin_again()
