"""The share of a device's peak is of one peak a precision, the first that was measured; it is kept in the journal."""

from pathlib import Path
from typing import Any

import pytest

from tests.tune.search.world import Numbered, World
from tune.reports import Report

FLOPS = 20.0
"""What training reaches a second."""


class InTurns(Numbered):
    """Every other configuration is of another precision."""

    def suggest(self, trial: str) -> dict[str, Any]:
        return super().suggest(trial) | {"precision": ("bf16", "fp32")[self.given % 2]}


def shares(world: World, *peaks: float | None) -> list[float | None]:
    """What the journal says of new trials, by the peak that each measured; their precisions alternate, fp32 first."""
    for peak in peaks:
        assignment = world.engine.next()
        assert assignment is not None
        report = Report(steps=40, tokens=40, training_seconds=2.0, mfu=peak and FLOPS / peak, peak_flops=peak)
        world.engine.report(assignment.trial, report)
    return [row["mfu"] for row in world.journal.rows("SELECT mfu FROM reports ORDER BY report")]


def test_the_first_peak_of_a_precision_counts_for_all_of_its_trials(tmp_path: Path) -> None:
    world = World(tmp_path, cap=1200, slots=4, shares={"nanogpt": 1.0}, suggestions=InTurns)
    assert shares(world, 100.0, 400.0, 50.0, 100.0) == pytest.approx([0.2, 0.05, 0.2, 0.05])
    assert world.journal.facts()["peak_flops"] == {"fp32": 100.0, "bf16": 400.0}


def test_what_was_not_measured_is_not_known(tmp_path: Path) -> None:
    world = World(tmp_path, cap=1200, slots=2, shares={"nanogpt": 1.0}, suggestions=InTurns)
    assert shares(world, None, None) == [None, None]
    assert "peak_flops" not in world.journal.facts()
