"""What a segment of training makes of its time: the lease, the pace, the rate over a life."""

import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model.config import Config
from model.data.dataset import TextData
from model.training import checkpoint as checkpoints
from model.training import learner
from model.training.learner import Learner
from model.training.schedule import Decay, warm_up
from model.training.time_budget import WARM, Pace, Segment
from model.training.train import train
from tune.reports import Report

SUBSET = 256
Run = Callable[..., list[Report]]
pytestmark = pytest.mark.usefixtures("eager")


@pytest.mark.parametrize("seed", range(40))
def test_the_lease_is_never_overrun(
    seed: int,
    small_text: Config,
    text_data: TextData,
    tmp_path: Path,
    clock: Any,
    run: Run,
) -> None:
    chance = random.Random(seed)

    def durations(first: float) -> Iterator[float]:
        """Each at most half longer than the longest before it: the most that the margin promises to absorb."""
        longest = first
        while True:
            now = longest * chance.choice([0.2, 0.5, 1.0, 1.0, 1.49])
            longest = max(longest, now)
            yield min(now, 3.0)

    clock.learns = False
    clock.start = itertools.repeat(chance.uniform(0, 1))
    clock.step, clock.batch, clock.save = durations(0.05), durations(chance.choice([0.001, 0.1])), durations(0.05)
    kind = chance.choice([{"final": True}, {"steps": 150}, {"training_seconds": 9.0}, {"steps": 60, "final": True}])
    seconds = chance.uniform(1.0, 30.0)
    opened = clock.now
    reports = run(small_text, text_data, tmp_path, clock, device_seconds=seconds, **kind)
    assert clock.now - opened <= seconds
    assert sum(sum(report.seconds.values()) for report in reports) == pytest.approx(clock.now - opened)
    assert [report.ended is None for report in reports] == [True] * (len(reports) - 1) + [False]


def test_a_lease_too_short_begins_nothing(
    small_text: Config,
    text_data: TextData,
    tmp_path: Path,
    clock: Any,
    run: Run,
) -> None:
    last = run(small_text, text_data, tmp_path, clock, steps=100, device_seconds=1.01)[-1]
    assert (last.ended, last.steps, last.valid, last.checkpoint) == ("lease", 0, None, None)
    assert last.seconds["start"] == pytest.approx(1.0)


def test_a_final_segment_fills_its_lease_with_a_decay_to_zero(
    small_text: Config,
    text_data: TextData,
    tmp_path: Path,
    clock: Any,
    run: Run,
) -> None:
    clock.learns = False
    reports = run(small_text, text_data, tmp_path, clock, device_seconds=60.0, final=True)
    last = reports[-1]
    rates = [report.learning_rate for report in reports]
    constant = [rate for rate in rates if rate == small_text.learning_rate]
    falling = rates[len(constant) :]
    assert falling == sorted(falling, reverse=True) and falling[-1] < 0.02 * small_text.learning_rate
    share = len(falling) / len(rates)
    assert abs(share - small_text.decay_share) < 0.1
    assert last.ended == "final" and last.whole and last.test is not None
    assert clock.now - 100.0 > 0.95 * 60.0
    assert sum(report.valid is not None for report in reports) in range(8, 13)
    assert 0 < checkpoints.load(tmp_path / checkpoints.BEFORE_DECAY).state["steps"] < last.steps


def test_a_final_segment_of_steps_has_exactly_them(
    small_text: Config,
    text_data: TextData,
    tmp_path: Path,
    clock: Any,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rates = []
    step = Learner.step

    def noted(self: Learner, factor: float) -> learner.Step:
        rates.append(factor)
        return step(self, factor)

    monkeypatch.setattr(Learner, "step", noted)
    last = run(small_text, text_data, tmp_path, clock, steps=50, final=True)[-1]
    assert last.ended == "final" and last.steps == len(rates) == 50
    assert rates[:5] == [warm_up(i, 5) for i in range(5)] and set(rates[5:30]) == {1.0}
    assert np.allclose(rates[30:], np.arange(20, 0, -1) / 20)


def test_an_earlier_segment_keeps_the_rate_and_the_decay_takes_at_most_the_last(
    small_text: Config,
    text_data: TextData,
    tmp_path: Path,
    clock: Any,
    run: Run,
) -> None:
    rung = run(small_text, text_data, tmp_path, clock, steps=100)[-1]
    assert rung.learning_rate == small_text.learning_rate
    final = run(small_text, text_data, tmp_path, clock, Path(str(rung.checkpoint)), steps=110, final=True)[-1]
    assert final.ended == "final"
    before = checkpoints.load(tmp_path / checkpoints.BEFORE_DECAY)
    assert before.state["steps"] == 100
    on = run(small_text, text_data, tmp_path / "on", clock, tmp_path / checkpoints.BEFORE_DECAY, steps=105)[-1]
    assert (on.ended, on.steps, on.learning_rate) == ("rung", 105, small_text.learning_rate)


def test_training_seconds_become_a_fixed_number_of_steps(
    small_text: Config,
    text_data: TextData,
    tmp_path: Path,
    clock: Any,
    run: Run,
) -> None:
    clock.learns = False
    clock.step = itertools.chain([2.0, 2.0, 1.0], itertools.repeat(0.1, 17), itertools.repeat(0.4))
    last = run(small_text, text_data, tmp_path, clock, training_seconds=8.0)[-1]
    assert (last.ended, last.steps) == ("rung", 80)
    assert last.training_seconds == pytest.approx(5 + 1.7 + 60 * 0.4)
    again = run(small_text, text_data, tmp_path, clock, Path(str(last.checkpoint)), training_seconds=10.0)[-1]
    assert again.steps == 100


def test_seconds_count_until_the_step_time_is_settled(
    small_text: Config,
    text_data: TextData,
    tmp_path: Path,
    clock: Any,
    run: Run,
) -> None:
    clock.learns = False
    first = run(small_text, text_data, tmp_path, clock, training_seconds=1.0)[-1]
    assert (first.ended, first.steps) == ("rung", 10) or first.steps == 11
    second = run(small_text, text_data, tmp_path, clock, Path(str(first.checkpoint)), training_seconds=3.0)[-1]
    assert second.steps == 30


def test_pace_ignores_the_first_steps_and_later_noise() -> None:
    pace = Pace()
    for seconds in [9.0] * WARM + [1.0, 2.0, 3.0] * 5 + [7.0] * 50:
        pace.add(seconds)
    assert pace.steps_in(60.0) == 30 and pace.median() == 7.0


def test_it_yields_about_once_a_second(
    small_text: Config,
    text_data: TextData,
    tmp_path: Path,
    clock: Any,
    run: Run,
) -> None:
    clock.learns = False
    reports = run(small_text, text_data, tmp_path, clock, steps=100)
    assert all(sum(report.seconds.values()) < 2.0 for report in reports[1:-1])
    assert len(reports) in range(8, 14)
    steps = [report.steps for report in reports]
    assert steps == sorted(steps)


def test_what_the_consumer_takes_is_charged_too(
    small_text: Config,
    text_data: TextData,
    tmp_path: Path,
    clock: Any,
) -> None:
    clock.learns = False
    charged = 0.0
    opened = clock.now
    segment = Segment(device_seconds=30.0, steps=60)
    for report in train(small_text, text_data, segment, folder=tmp_path, evaluation_tokens=SUBSET, clock=clock):
        charged += sum(report.seconds.values())
        clock.now += 0.25 * (report.ended is None)
    assert charged == pytest.approx(clock.now - opened)
    assert report.training_seconds == pytest.approx(6.0)


def test_the_decay_reaches_zero_and_goes_on_where_it_was() -> None:
    decay = Decay(0.4)
    assert not decay.begins(50, 50) and decay.begins(60, 40)
    decay.begin(40)
    assert [decay.factor(left) for left in (40, 20, 0)] == [1.0, 0.5, 0.0]
    moved = Decay(0.4, **(decay.state(20)))
    assert moved.begins(80, 500)
    moved.begin(500)
    assert [moved.factor(left) for left in (500, 250, 0)] == [0.5, 0.25, 0.0]


def test_a_final_segment_takes_no_training_seconds() -> None:
    with pytest.raises(ValueError, match="training_seconds"):
        Segment(device_seconds=1.0, training_seconds=1.0, final=True)


@pytest.mark.parametrize("resumed_at", range(1, 30))
def test_a_resumed_decay_has_the_same_rates_to_the_last_bit(resumed_at: int) -> None:
    through, resumed = Decay(0.4), Decay(0.4, **_begun(30).state(resumed_at))
    through.begin(30)
    assert resumed.begins(1000, resumed_at)
    resumed.begin(resumed_at)
    assert [resumed.factor(left) for left in range(resumed_at)] == [through.factor(left) for left in range(resumed_at)]


def _begun(length: float) -> Decay:
    decay = Decay(0.4)
    decay.begin(length)
    return decay


def test_one_slow_evaluation_does_not_cost_a_final_segment_its_time(
    small_text: Config,
    text_data: TextData,
    tmp_path: Path,
    clock: Any,
    run: Run,
) -> None:
    clock.learns = False
    clock.batch = itertools.chain([0.15] * 3, itertools.repeat(0.05))
    opened = clock.now
    last = run(small_text, text_data, tmp_path, clock, device_seconds=60.0, final=True)[-1]
    assert last.ended == "final" and last.whole and last.test is not None
    assert 0.97 * 60.0 < clock.now - opened <= 60.0


def test_an_evaluation_that_becomes_slow_is_given_up(
    small_text: Config,
    text_data: TextData,
    tmp_path: Path,
    clock: Any,
    run: Run,
) -> None:
    clock.learns = False
    clock.batch = itertools.chain(itertools.repeat(0.02, 30), (0.02 * 1.4**i for i in itertools.count()))
    opened = clock.now
    last = run(small_text, text_data, tmp_path, clock, device_seconds=20.0, final=True)[-1]
    assert clock.now - opened <= 20.0
    assert last.ended == "final" and last.test is None and last.checkpoint is not None


def test_a_curve_ends_on_the_subset_that_it_began_with_and_the_whole_split_is_beside_it(
    small_text: Config,
    text_data: TextData,
    tmp_path: Path,
    clock: Any,
    run: Run,
) -> None:
    rung = run(small_text, text_data, tmp_path, clock, steps=100)
    checkpoint = Path(str(rung[-1].checkpoint))
    final = run(small_text, text_data, tmp_path, clock, checkpoint, device_seconds=60.0, final=True)
    curve = [report.valid for report in (*rung, *final) if report.valid is not None]
    assert len(curve) > 2 and {point.tokens for point in curve} == {SUBSET}
    last = final[-1]
    assert last.valid is curve[-1] and last.valid_subset == SUBSET and last.whole is not None
    assert last.whole.tokens == len(text_data.valid) - 1 > SUBSET


def test_a_final_segment_closes_with_the_subset_alone_where_it_is_told_to(
    small_text: Config, text_data: TextData, tmp_path: Path, clock: Any, run: Run
) -> None:
    last = run(small_text, text_data, tmp_path, clock, steps=20, final=True, whole=False)[-1]
    assert last.ended == "final" and not last.whole and last.test is None
    assert last.valid is not None and last.valid.tokens <= SUBSET


def test_where_whole_splits_would_take_most_of_a_final_segment_it_trains_and_closes_with_the_subset(
    small_text: Config,
    text_data: TextData,
    tmp_path: Path,
    clock: Any,
    run: Run,
) -> None:
    clock.learns = False
    clock.batch = itertools.repeat(1.0)
    opened = clock.now
    last = run(small_text, text_data, tmp_path, clock, device_seconds=12.0, final=True)[-1]
    assert last.ended == "final" and not last.whole and last.test is None
    assert last.valid is not None and last.valid.tokens == SUBSET
    assert last.steps > 50 and clock.now - opened <= 12.0
