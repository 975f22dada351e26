"""What a first step is expected to take, before anything was measured."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from model.training.time_budget import FIRST_SECONDS, Forecast, Lease, Pace, Segment


def forecast(peak_flops: float | None) -> Forecast:
    learner: Any = SimpleNamespace(
        device=torch.device("cpu"), parameters=10_000_000, config=SimpleNamespace(batch_tokens=1024)
    )
    return Forecast(
        Segment(device_seconds=60.0, peak_flops=peak_flops), Lease(60.0, lambda: 0.0), learner, Pace(),
        evaluation_tokens=2048, whole_tokens=4096,
    )  # fmt: skip


def test_a_device_of_twice_the_peak_is_expected_to_take_half_the_time() -> None:
    slow, fast = (forecast(peak).step_seconds() - FIRST_SECONDS for peak in (1e11, 2e11))
    assert fast == pytest.approx(slow / 2)
    assert forecast(2e11).evaluation_seconds(1000) < forecast(1e11).evaluation_seconds(1000)


def test_no_trial_is_expected_to_reach_the_peak_and_what_was_measured_counts_more() -> None:
    made = forecast(1e11)
    assert made.step_seconds() - FIRST_SECONDS > 2 * 6 * 10_000_000 * 1024 / 1e11
    made.lease.observe("step", 0.5)
    assert made.step_seconds() == 0.5


def test_without_a_peak_something_is_expected_all_the_same() -> None:
    assert forecast(None).step_seconds() > FIRST_SECONDS
