"""A whole search whose trials hang, raise errors and diverge: each costs little, is told why, and the rest goes on."""

from pathlib import Path

from tests.soak.table import line, measured


def test_trials_that_hang_raise_errors_and_diverge_cost_little(tmp_path: Path) -> None:
    for row in measured(["faults"], tmp_path, short=True):
        assert row.kept, f"{line(row)}\n{row.details}"
