"""The documents' commands for the kernels."""

import os
import re
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from kernels.kernel import THREADS
from tests.conftest import quick_timing
from tests.readme import of, run_here
from tune.store.journal import connect

FEW = "--kernels grid_stride_sum --sizes 1000 --implementations python,numpy"
"""In place of those that a command asks for."""
SMALL = f"{23 * THREADS}s"
"""It pays for the kernel, and not for the machine's peaks beside it, which take as long as all else."""
BUDGETED = [command for command in of("python kernels/run.py") if "--budget" in command]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("user")


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, without a Ray."""
    up = SimpleNamespace(gpus=0, run=lambda function, *arguments, on_gpu, seconds: function(*arguments))
    monkeypatch.setattr("tune.experiments.kernels.cluster", lambda: nullcontext(up))
    quick_timing(monkeypatch)


@pytest.mark.parametrize("command", sorted({*of("python kernels/run.py")} - {*BUDGETED}))
def test_kernels_are_measured(command: str, folder: Path) -> None:
    asked = re.sub(r" --(kernels|sizes|implementations) \S+", "", command)
    said = run_here(f"{asked} {FEW}", folder)
    assert "grid_stride_sum" in said and "numpy" in said and "FAIL" not in said
    assert os.listdir(folder) == []


@pytest.mark.parametrize("command", BUDGETED)
def test_a_study_is_kept_and_drawn(command: str, folder: Path) -> None:
    assert "grid_stride_sum" in run_here(f"{command} {FEW}", folder, SMALL)
    rows = connect(folder / "runs" / "kernels").execute("SELECT * FROM kernels").fetchall()
    assert {row["implementation"] for row in rows} == {"python", "numpy"}
    assert list(folder.glob("runs/kernels/tensorboard/*"))
    (draw,) = of("python analysis/plot.py roofline")
    assert "roofline.png" in run_here(draw, folder) and (folder / "roofline.png").exists()
    assert "grid_stride_sum" in (folder / "roofline.csv").read_text()
