"""The README's commands for the kernels, beside the searches of the others: they take one core."""

from pathlib import Path

import pytest

from tests.readme import of, run

FEW = "--kernels scalar_add,softmax --sizes 1000"


@pytest.mark.parametrize("command", of("python kernels/run.py"))
def test_kernels_are_measured(command: str, tmp_path: Path) -> None:
    said = run(f"{command} {FEW}", tmp_path)
    assert "softmax" in said and "njit-parallel" in said and "FAIL" not in said
