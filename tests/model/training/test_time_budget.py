"""What a segment of training makes of its time: the lease, the time of a step, the rate over a life."""

import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from model.config import Config
from model.data.dataset import TextData
from model.training import checkpoint as checkpoints
from model.training.learner import Learner
from model.training.time_budget import (
    FIRST_SECONDS,
    MARGIN,
    WARM,
    Decay,
    PhaseTimer,
    Segment,
    StepTimer,
    TimeBudget,
    warm_up,
)
from tests.model.conftest import SUBSET, Reports, Script
from tune import machine
from tune.reports import Report

Begin, Life = Callable[..., Reports], Callable[..., list[Report]]


@pytest.fixture(autouse=True)
def counted(clock: Script) -> None:
    """Steps take the script's time, and are counted only."""
    clock.learns = False


@pytest.mark.parametrize("seed", range(16))
def test_the_lease_is_never_overrun(seed: int, clock: Script, life: Life) -> None:
    chance = random.Random(seed)

    def durations(first: float) -> Iterator[float]:
        """Each at most half longer than the longest before it: the most that the margin promises to absorb."""
        longest = first
        while True:
            now = longest * chance.choice([0.2, 0.5, 1.0, 1.0, 1.49])
            longest = max(longest, now)
            yield min(now, 3.0)

    clock.start = itertools.repeat(chance.uniform(0, 1))
    clock.step, clock.batch, clock.save = durations(0.05), durations(chance.choice([0.001, 0.1])), durations(0.05)
    kind = ({"final": True}, {"steps": 150}, {"training_seconds": 9.0}, {"steps": 60, "final": True})[seed % 4]
    seconds = chance.uniform(1.0, 30.0)
    opened = clock.now
    reports = life(device_seconds=seconds, **kind)
    assert clock.now - opened <= seconds
    assert sum(sum(report.seconds.values()) for report in reports) == pytest.approx(clock.now - opened)
    assert [report.ended is None for report in reports] == [True] * (len(reports) - 1) + [False]


def test_a_lease_pays_for_steps_where_the_disk_is_known_to_take_the_checkpoint_in_time(life: Life) -> None:
    for disk_bytes, steps in ((1e3, 0), (1e9, 3)):
        last = life(steps=3, device_seconds=20.0, disk_bytes=disk_bytes)[-1]
        assert (last.ended, last.steps) == ("rung" if steps else "lease", steps)


def test_a_lease_too_short_begins_nothing(life: Life) -> None:
    last = life(steps=100, device_seconds=1.01)[-1]
    assert (last.ended, last.steps, last.valid, last.checkpoint) == ("lease", 0, None, None)
    assert last.seconds["start"] == pytest.approx(1.0)


def test_a_final_segment_fills_its_lease_with_a_decay_to_zero(
    small_text: Config, tmp_path: Path, clock: Script, life: Life
) -> None:
    opened = clock.now
    reports = life(device_seconds=60.0, final=True)
    last = reports[-1]
    rates = [report.learning_rate for report in reports]
    falling = rates[rates.count(small_text.learning_rate) :]
    assert falling == sorted(falling, reverse=True) and falling[-1] < 0.02 * small_text.learning_rate
    assert abs(len(falling) / len(rates) - small_text.decay_share) < 0.1
    assert last.ended == "final" and last.whole and last.test is not None
    assert 0.95 * 60.0 < clock.now - opened <= 60.0
    assert sum(report.valid is not None for report in reports) in range(8, 13)
    assert 0 < checkpoints.load(tmp_path / checkpoints.BEFORE_DECAY).state["steps"] < last.steps


@pytest.mark.parametrize("before", [100, 400])
def test_the_decay_ends_at_zero_where_a_step_was_held_up(
    before: int, small_text: Config, clock: Script, life: Life
) -> None:
    """As by a machine that slept, before the decay or inside it."""
    clock.step = itertools.chain(itertools.repeat(0.1, before), [10.0], itertools.repeat(0.1))
    last = life(device_seconds=70.0, final=True)[-1]
    assert last.ended == "final" and last.steps > before + 1
    assert last.learning_rate is not None and last.learning_rate < 0.02 * small_text.learning_rate


def test_a_final_segment_of_steps_has_exactly_them(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    rates, step = [], Learner.step
    monkeypatch.setattr(Learner, "step", lambda self, factor: rates.append(factor) or step(self, factor))
    last = life(steps=50, final=True)[-1]
    assert last.ended == "final" and last.steps == len(rates) == 50
    assert rates[:5] == [warm_up(i, 5) for i in range(5)] and set(rates[5:30]) == {1.0}
    assert np.allclose(rates[30:], np.arange(20, 0, -1) / 20)


def test_a_final_segment_whose_lease_is_too_short_for_its_steps_is_not_its_end(life: Life) -> None:
    last = life(steps=1000, device_seconds=20.0, final=True)[-1]
    assert last.ended == "lease" and 0 < last.steps < 1000 and not last.final


def test_an_earlier_segment_keeps_the_rate_and_the_decay_takes_at_most_the_last(
    small_text: Config, tmp_path: Path, life: Life
) -> None:
    rung = life(steps=100)[-1]
    assert rung.learning_rate == small_text.learning_rate
    assert life(checkpoint=rung.checkpoint, steps=110, final=True)[-1].ended == "final"
    before = tmp_path / checkpoints.BEFORE_DECAY
    assert checkpoints.load(before).state["steps"] == 100
    on = life(folder=tmp_path / "on", checkpoint=before, steps=105)[-1]
    assert (on.ended, on.steps, on.learning_rate) == ("rung", 105, small_text.learning_rate)


def test_what_a_checkpoint_takes_is_known_to_the_segment_that_goes_on_from_it(clock: Script, life: Life) -> None:
    clock.save = itertools.repeat(3.0)
    first = life(device_seconds=60.0, steps=30)[-1]
    opened = clock.now
    second = life(checkpoint=first.checkpoint, device_seconds=12.0)[-1]
    assert clock.now - opened <= 12.0 and second.steps > first.steps and second.checkpoint != first.checkpoint


@pytest.mark.parametrize(("what", "asked"), [("files", {"steps": 30}), ("names", {})])
def test_what_a_disk_takes_to_keep_a_checkpoint_is_known_to_this_segment_and_the_next(
    what: str, asked: dict[str, int], tmp_path: Path, clock: Script, life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, sync = set[int](), machine.sync

    def slow(path: Path) -> None:
        file = path.stat().st_ino
        waits = path == tmp_path if what == "names" else path.suffix == ".safetensors" and file not in kept
        clock.now += 2.0 * waits
        kept.add(file)
        sync(path)

    monkeypatch.setattr(machine, "sync", slow)
    opened = clock.now
    first = life(device_seconds=75.0, **asked)[-1]
    then = clock.now
    second = life(checkpoint=first.checkpoint, device_seconds=12.0)[-1]
    assert then - opened <= 75.0 and clock.now - then <= 12.0
    assert second.steps > first.steps and second.checkpoint != first.checkpoint


@pytest.mark.parametrize("what", ["step", "batch", "save"])
def test_what_was_held_up_once_keeps_no_later_and_shorter_lease_from_training(
    what: str, clock: Script, life: Life
) -> None:
    """As by a machine that slept."""
    setattr(clock, what, itertools.chain([20.0], itertools.repeat(0.02)))
    first = life(device_seconds=100.0, steps=60)[-1]
    assert (first.ended, first.steps) == ("rung", 60)
    last = life(checkpoint=first.checkpoint, device_seconds=12.0, steps=100)[-1]
    assert (last.ended, last.steps) == ("rung", 100)


@pytest.mark.parametrize(("what", "takes"), [("batch", 2.1), ("save", 4.0)])
def test_what_takes_long_each_time_has_that_time_on_a_shorter_lease(
    what: str, takes: float, clock: Script, life: Life
) -> None:
    setattr(clock, what, itertools.repeat(takes))
    first = life(device_seconds=200.0, steps=60)[-1]
    opened = clock.now
    last = life(checkpoint=first.checkpoint, device_seconds=12.0)[-1]
    assert clock.now - opened <= 12.0 and last.steps > 60 and last.valid and last.checkpoint != first.checkpoint


def test_what_a_lease_does_not_measure_is_known_from_the_latest_that_did(clock: Script, life: Life) -> None:
    fast = life(steps=30)[-1]
    clock.batch = itertools.repeat(2.1)
    first = life(checkpoint=fast.checkpoint, device_seconds=200.0, steps=60)[-1]
    stopped = life(checkpoint=first.checkpoint, device_seconds=200.0, stop=iter([False, True]).__next__)[-1]
    opened = clock.now
    last = life(checkpoint=stopped.checkpoint, device_seconds=12.0)[-1]
    assert stopped.steps == 61 and clock.now - opened <= 12.0 and last.steps > 61 and last.valid


@pytest.mark.parametrize(("seconds", "final"), [(8.0, True), (67.0, False)])
def test_a_checkpoint_on_the_way_takes_no_time_from_the_end(
    seconds: float, final: bool, tmp_path: Path, clock: Script, life: Life
) -> None:
    """Before a decay that begins at once, or a minute after the beginning."""
    clock.save = itertools.repeat(3.0)
    first = life(steps=100)[-1]
    last = life(checkpoint=first.checkpoint, device_seconds=seconds, final=final)[-1]
    assert last.valid and checkpoints.load(Path(str(last.checkpoint))).state["steps"] == last.steps > 100
    assert {path.name for path in tmp_path.iterdir()} == {"step-000100", Path(str(last.checkpoint)).name}


@pytest.mark.parametrize("left", [1.2, 1.7])
def test_after_a_step_that_was_held_up_a_checkpoint_comes_before_an_evaluation_and_only_where_it_fits(
    left: float, clock: Script, life: Life
) -> None:
    clock.save, clock.batch = itertools.chain([1.0], itertools.repeat(1.4)), itertools.repeat(0.2)
    first = life(steps=100)[-1]
    clock.step, opened = itertools.chain([0.1, 8.9 - left], itertools.repeat(0.1)), clock.now
    last = life(checkpoint=first.checkpoint, device_seconds=10.0)[-1]
    assert last.steps == 102 and clock.now - opened <= 10.0
    assert (last.checkpoint != first.checkpoint) == (left > MARGIN * 1.0)


def test_a_final_segment_claims_nothing_of_weights_that_it_could_not_save(clock: Script, life: Life) -> None:
    """After a step that was held up; what it had before counts."""
    first = life(steps=200)[-1]
    clock.save, clock.step = itertools.repeat(1.0), itertools.chain([0.1, 6.9], itertools.repeat(0.1))
    last = life(checkpoint=first.checkpoint, device_seconds=10.0, final=True)[-1]
    assert (last.steps, last.ended, last.valid, last.checkpoint) == (202, "lease", None, first.checkpoint)
    assert (first.lost, last.lost) == (0, 2)


def test_a_rate_that_falls_never_rises_after_a_lease_on_which_a_step_was_held_up(
    clock: Script, life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates, step = list[float](), Learner.step
    monkeypatch.setattr(Learner, "step", lambda self, factor: rates.append(factor) or step(self, factor))
    clock.step = itertools.chain(itertools.repeat(0.1, 100), [5.0], itertools.repeat(0.1))
    written = None
    for seconds, until in ((70.0, 0.5), (30.0, -1.0)):
        reports = life(
            checkpoint=written, device_seconds=seconds, final=True,
            stop=lambda least=until: len(rates) > 101 and rates[-1] < least,
        )  # fmt: skip
        written = reports[-1].checkpoint
    assert rates[101:] == sorted(rates[101:], reverse=True) and rates[-1] < 0.02


def test_a_decay_for_which_nothing_is_left_is_over() -> None:
    for left in (0.0, -0.1):
        decay = Decay(0.4)
        decay.begin(left)
        assert decay.factor(left) == 0.0


def test_training_seconds_become_a_fixed_number_of_steps(clock: Script, life: Life) -> None:
    clock.step = itertools.chain([2.0, 2.0, 1.0], itertools.repeat(0.1, 17), itertools.repeat(0.4))
    last = life(training_seconds=8.0)[-1]
    assert (last.ended, last.steps) == ("rung", 80)
    assert last.training_seconds == pytest.approx(5 + 1.7 + 60 * 0.4)
    assert life(checkpoint=last.checkpoint, training_seconds=10.0)[-1].steps == 100


def test_seconds_count_until_the_step_time_is_settled(life: Life) -> None:
    first = life(training_seconds=1.0)[-1]
    assert first.ended == "rung" and first.steps in (10, 11)
    assert life(checkpoint=first.checkpoint, training_seconds=3.0)[-1].steps == 30


def test_pace_ignores_the_first_steps_and_later_noise() -> None:
    timer = StepTimer()
    for seconds in [9.0] * WARM + [1.0, 2.0, 3.0] * 5 + [7.0] * 50:
        timer.add(seconds)
    assert timer.steps_in(60.0) == 30 and timer.median() == 7.0


def test_it_yields_about_once_a_second_and_what_the_consumer_takes_is_charged_too(clock: Script, begin: Begin) -> None:
    opened, reports = clock.now, []
    for report in begin(device_seconds=60.0, steps=100):
        reports.append(report)
        clock.now += 0.25 * (report.ended is None)
    assert sum(sum(report.seconds.values()) for report in reports) == pytest.approx(clock.now - opened)
    assert reports[-1].training_seconds == pytest.approx(10.0)
    assert all(sum(report.seconds.values()) < 2.25 for report in reports[1:-1]) and len(reports) in range(8, 14)


def test_the_decay_reaches_zero_and_goes_on_where_it_was() -> None:
    decay = Decay(0.4)
    assert not decay.is_due(50, 50) and decay.is_due(60, 40)
    decay.begin(40)
    assert [decay.factor(left) for left in (40, 20, 0)] == [1.0, 0.5, 0.0]
    moved = Decay(0.4, **(decay.state(20)))
    assert moved.is_due(80, 500)
    moved.begin(500)
    assert [moved.factor(left) for left in (500, 250, 0)] == [0.5, 0.25, 0.0]


def test_a_resumed_decay_has_the_same_rates_to_the_last_bit() -> None:
    through = Decay(0.4)
    through.begin(30)
    for resumed_at in range(1, 30):
        resumed = Decay(0.4, **through.state(resumed_at))
        assert resumed.is_due(1000, resumed_at)
        resumed.begin(resumed_at)
        rest = range(resumed_at)
        assert [resumed.factor(left) for left in rest] == [through.factor(left) for left in rest], resumed_at


def test_one_slow_evaluation_does_not_cost_a_final_segment_its_time(clock: Script, life: Life) -> None:
    clock.batch = itertools.chain([0.15] * 3, itertools.repeat(0.05))
    opened = clock.now
    last = life(device_seconds=60.0, final=True)[-1]
    assert last.ended == "final" and last.whole and last.test is not None
    assert 0.97 * 60.0 < clock.now - opened <= 60.0


def test_at_the_end_of_a_lease_there_is_time_for_the_average_too(clock: Script, life: Life) -> None:
    clock.batch = itertools.repeat(0.5)
    first = life(steps=60)[-1]
    last = life(checkpoint=first.checkpoint, device_seconds=30.0)[-1]
    assert last.ended == "lease" and last.valid and last.averaged


def test_a_subset_larger_than_its_split_keeps_time_for_the_split_alone(clock: Script, life: Life) -> None:
    opened = clock.now
    assert life(device_seconds=20.0, evaluation_tokens=10**6)[-1].valid
    assert 0.9 * 20.0 < clock.now - opened <= 20.0


def test_an_evaluation_that_becomes_slow_is_given_up(clock: Script, life: Life) -> None:
    clock.batch = itertools.chain(itertools.repeat(0.02, 30), (0.02 * 1.4**i for i in itertools.count()))
    opened = clock.now
    last = life(device_seconds=20.0, final=True)[-1]
    assert clock.now - opened <= 20.0
    assert last.ended == "final" and last.test is None and last.checkpoint is not None


def test_an_evaluation_on_the_way_that_becomes_slow_leaves_time_to_save_what_was_trained(
    clock: Script, life: Life
) -> None:
    clock.save = itertools.repeat(4.0)
    first = life(steps=100)[-1]
    clock.batch, opened = itertools.chain(itertools.repeat(0.02, 3), itertools.repeat(1.2)), clock.now
    last = life(checkpoint=first.checkpoint, device_seconds=30.0, final=True, evaluation_tokens=8_000)[-1]
    assert clock.now - opened <= 30.0 and last.ended == "final"
    assert checkpoints.load(Path(str(last.checkpoint))).state["steps"] == last.steps


def test_a_curve_ends_on_the_subset_that_it_began_with_and_the_whole_split_is_beside_it(
    text_data: TextData, life: Life
) -> None:
    rung = life(steps=100)
    final = life(checkpoint=rung[-1].checkpoint, device_seconds=60.0, final=True)
    curve = [report.valid for report in (*rung, *final) if report.valid is not None]
    assert len(curve) > 2 and {point.tokens for point in curve} == {SUBSET}
    last = final[-1]
    assert last.valid is curve[-1] and last.valid_subset == SUBSET and last.whole is not None
    assert last.whole.tokens == len(text_data.valid) - 1 > SUBSET


def test_a_final_segment_closes_with_the_subset_alone_where_it_is_told_to(life: Life) -> None:
    last = life(steps=20, final=True, whole=False)[-1]
    assert last.ended == "final" and not last.whole and last.test is None
    assert last.valid is not None and last.valid.tokens <= SUBSET


def test_where_whole_splits_would_take_most_of_a_final_segment_it_trains_and_closes_with_the_subset(
    clock: Script, life: Life
) -> None:
    clock.batch = itertools.repeat(1.0)
    opened = clock.now
    last = life(device_seconds=12.0, final=True)[-1]
    assert last.ended == "final" and not last.whole and last.test is None
    assert last.valid is not None and last.valid.tokens == SUBSET
    assert last.steps > 30 and clock.now - opened <= 12.0


def time_budget(peak_flops: float | None) -> TimeBudget:
    """Before anything was measured."""
    learner: Any = SimpleNamespace(
        device=torch.device("cpu"), parameters=10_000_000, average=None, config=SimpleNamespace(batch_tokens=1024)
    )
    segment = Segment(device_seconds=60.0, peak_flops=peak_flops)
    phase_timer = PhaseTimer(60.0, lambda: 0.0)
    return TimeBudget(segment, phase_timer, learner, StepTimer(), evaluation_tokens=2048, whole_tokens=4096)


def test_a_first_step_is_expected_to_take_what_the_peak_tells_but_not_to_reach_it() -> None:
    slow, fast = (time_budget(peak).step_seconds() - FIRST_SECONDS for peak in (1e11, 2e11))
    assert fast == pytest.approx(slow / 2) and slow > 2 * 6 * 10_000_000 * 1024 / 1e11
    assert time_budget(2e11).evaluation_seconds(1000) < time_budget(1e11).evaluation_seconds(1000)
    assert time_budget(None).step_seconds() > FIRST_SECONDS
    made = time_budget(1e11)
    made.phase_timer.observe("step", 0.5)
    assert made.step_seconds() == 0.5, "what was measured counts more"
