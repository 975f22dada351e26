"""The laws of a family: what its trials' losses are worth to each other."""

from tests.tune.search.alone import bare
from tests.tune.search.world import WARM_UP_STEPS, Numbered
from tune.search.family import WARM_UPS_BEFORE_A_FALL_TELLS, CostModel, Family


def family(step_seconds: float | None) -> Family:
    return Family(
        seconds=600, policy=bare(), cost_model=CostModel(), suggestions=Numbered(), step_seconds=step_seconds,
        warm_up_steps=WARM_UP_STEPS,
    )  # fmt: skip


def test_a_fall_tells_once_the_rung_below_it_lies_behind_the_warm_up() -> None:
    """Counted in steps of the family, so that all trials of a rung are compared in the same way."""
    for rung, share, tells in ((1, 0.99, True), (1, 1.01, False), (3, 0.99, True), (3, 1.01, False)):
        shortest = family(None).policy.rung_seconds(rung - 1) / (WARM_UPS_BEFORE_A_FALL_TELLS * WARM_UP_STEPS)
        step_seconds = share * shortest
        judged = family(step_seconds)
        judged.policy.promoted("t001", 0, 1.0)
        judged.reached("t001", rung, 2.0)
        assert judged.policy.trials["t001"].telling == tells
