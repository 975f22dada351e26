"""A roofline's numbers by hand: two peaks, three kernels, one machine."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from analysis.experiments.kernels import reached, roofline
from analysis.settings import PlotSettings
from analysis.study import open_kernels
from tests.analysis.conftest import Printed, Written

PEAKS = {
    "bytes_per_second": {"1": 1e10, "2": 2e10},
    "flops_per_second": {"fp32": {"1": 1e11, "2": 2e11}, "bf16": {"1": 4e11, "2": 8e11}},
}


def timed(study: Written, kernel: str, implementation: str = "njit", **columns: object) -> None:
    row = {
        "at": 0.0, "kernel": kernel, "implementation": implementation, "size": 1000, "shape": "[]", "dtype": "float64",
        "device": "CPU", "threads": 1, "status": "timed", "ratios": "{}", "values_seconds": "[]", "unstable": 0,
        "bytes": 24_000, "flops": 1000, "median_seconds": 24e-7,
    }  # fmt: skip
    study.journal.insert("kernels", row | columns)


@pytest.fixture
def study(write: Callable[..., Written]) -> Written:
    made = write("kernels", kernels=["vector_add"], peaks={"CPU": PEAKS})
    timed(made, "vector_add")
    timed(made, "vector_add", "c", median_seconds=48e-7)
    return made


def rows(study: Written) -> pd.DataFrame:
    return reached(open_kernels(study.folder)).set_index(["kernel", "implementation", "threads"])


def test_rate_and_roof_are_of_flops_and_bytes(study: Written) -> None:
    timed(study, "vector_add", "njit-parallel", threads=2, median_seconds=12e-7)
    found = rows(study)
    assert found["intensity"].tolist() == pytest.approx([1 / 24] * 3)
    assert found["rate"].tolist() == pytest.approx([1000 / 24e-7, 1000 / 48e-7, 1000 / 12e-7])
    assert found["roof"].tolist() == pytest.approx([1e10 / 24, 1e10 / 24, 2e10 / 24])


def test_where_arithmetic_is_dense_products_are_the_roof(study: Written) -> None:
    timed(study, "dense", flops=24_000_000)
    assert rows(study).loc[("dense", "njit", 1), "roof"] == 4e11


def test_what_is_unstable_or_has_no_arithmetic_or_a_larger_size_is_left_out(study: Written) -> None:
    timed(study, "triad", unstable=1)
    timed(study, "copy", flops=0)
    timed(study, "monte_carlo_pi", bytes=0)
    timed(study, "softmax", median_seconds=None)
    timed(study, "vector_add", size=10)
    assert rows(study).index.tolist() == [("vector_add", "njit", 1), ("vector_add", "c", 1)]
    assert rows(study)["size"].tolist() == [1000, 1000]


def test_a_machine_without_peaks_has_no_roof(write: Callable[..., Written]) -> None:
    study = write("kernels", kernels=["vector_add"])
    timed(study, "vector_add")
    assert rows(study)["roof"].isna().all()


def test_a_study_without_rows_is_refused(write: Callable[..., Written]) -> None:
    with pytest.raises(ValueError, match=r"^kernels: no row"):
        roofline(open_kernels(write("kernels", kernels=["copy"]).folder))


def test_the_command_writes_a_picture_and_its_data(study: Written, tmp_path: Path, printed: Printed) -> None:
    timed(study, "softmax", "cuda-shared", device="GPU", threads=None, flops=5000, bytes=8000)
    told = printed(PlotSettings, "roofline", study.folder, "--out", tmp_path / "here")
    assert "roofline.csv" in told and (tmp_path / "here" / "roofline.png").exists()
    drawn = pd.read_csv(tmp_path / "here" / "roofline.csv")
    assert drawn["kernel"].tolist() == ["vector_add", "vector_add", "softmax"]
    assert drawn["threads"].tolist() == [1, 1, 0]
