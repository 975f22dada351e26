"""The share of a device's peak is of one peak a precision, the first that was measured; it is kept in the journal."""

from pathlib import Path
from typing import Any

from tests.tune.world import Numbered, World

REPORT = {
    "steps": 40, "tokens": 40, "training_seconds": 2.0, "train_loss": 1.0, "learning_rate": 1.0, "gradient_norm": 1.0,
    "tokens_per_second": 10.0, "step_seconds": 0.05, "memory_bytes": 1, "checkpoint": None, "parameters": 1000,
    "seconds": {"steps": 2.0}, "valid": None, "test": None, "ended": None, "micro_batches": 1, "limited_bytes": 1,
    "ran_out": False, "flops_per_token": 2.0, "peak_flops": 100.0,
}  # fmt: skip


class InTurns(Numbered):
    """Every other configuration is of another precision."""

    def suggest(self, trial: str) -> dict[str, Any]:
        return super().suggest(trial) | {"precision": ("bf16", "fp32")[self.given % 2]}


def shares(world: World, *reports: dict[str, Any]) -> list[float | None]:
    """What the journal says of reports of new trials, whose precisions alternate, fp32 first."""
    for report in reports:
        assignment = world.planner.next()
        assert assignment is not None
        world.planner.report(assignment.trial, REPORT | report)
    return [row["mfu"] for row in world.journal.rows("SELECT mfu FROM reports ORDER BY report")]


def test_the_first_peak_of_a_precision_counts_for_all_of_its_trials(tmp_path: Path) -> None:
    world = World(tmp_path, cap=1200, slots=4, shares={"nanogpt": 1.0}, suggestions=InTurns)
    assert shares(world, {}, {"peak_flops": 400.0}, {"peak_flops": 50.0}, {}) == [0.2, 0.05, 0.2, 0.05]
    assert world.journal.facts()["peak_flops"] == {"fp32": 100.0, "bf16": 400.0}


def test_what_was_not_measured_is_not_known(tmp_path: Path) -> None:
    world = World(tmp_path, cap=1200, slots=2, shares={"nanogpt": 1.0}, suggestions=InTurns)
    assert shares(world, {"tokens_per_second": 0.0}, {"tokens_per_second": None}) == [None, None]
    assert "peak_flops" not in world.journal.facts()
