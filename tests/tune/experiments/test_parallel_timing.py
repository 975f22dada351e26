"""Turns: all ways alike often, and none is begun that there is no time for. Intervals: what was measured together
moves together.
"""

import random
import statistics
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernels.timing import interval
from model.training.learner import Learner
from tune.arithmetic import mean_interval, ratio
from tune.experiments import parallel_timing
from tune.experiments.parallel_timing import LEAST_ROUNDS, MOST_ROUNDS, in_rounds, in_turns, undisturbed

LEARNER: Any = SimpleNamespace(device=torch.device("cpu"), synchronize=lambda: None)


class Clock:
    """In place of the module time: it moves when a way is taken."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(parallel_timing, "time", made)
    return made


class Way:
    """Takes so many seconds, tells the number of the call before, and keeps count of who was called when."""

    def __init__(self, name: str, seconds: float, clock: Clock, order: list[str]) -> None:
        self.name, self.seconds, self.clock, self.order = name, seconds, clock, order
        self.calls = 0

    def __call__(self) -> dict[str, float]:
        self.clock.now += self.seconds
        self.order.append(self.name)
        self.calls += 1
        return {"of call": float(self.calls - 1)}


def test_each_round_has_a_turn_of_each_way_another_one_first(clock):
    order: list[str] = []
    rounds = in_turns({name: Way(name, 0.125, clock, order) for name in "ab"}, LEARNER, left=lambda: 1e9)
    assert rounds["a"] == rounds["b"] == [0.125] * MOST_ROUNDS
    assert "".join(order[-4 * MOST_ROUNDS :][:12]) == "aabb" + "bbaa" + "aabb"


def test_a_reading_is_of_a_call_in_its_own_turn(clock):
    way = Way("a", 0.125, clock, [])
    rounds = in_turns({"a": way, "b": Way("b", 0.125, clock, [])}, LEARNER, left=lambda: 1e9)
    calls = way.calls - 2 * MOST_ROUNDS
    assert rounds["a of call"][0] == calls + 1 and rounds["a of call"][-1] == way.calls - 1


def test_no_round_begins_that_there_is_no_time_for(clock):
    rounds = in_turns({"a": Way("a", 0.2, clock, [])}, LEARNER, left=lambda: 5.0 - clock.now)
    assert LEAST_ROUNDS <= len(rounds["a"]) < MOST_ROUNDS and clock.now <= 5.0


@pytest.mark.parametrize("own", [-1e9, 1e9])
def test_the_seconds_that_ranks_agree_on_alone_end_the_rounds(clock, own):
    way = Way("a", 0.125, clock, [])
    rounds = in_rounds({"a": way}, lambda: own, agreed=lambda _: 1.0 if way.calls < LEAST_ROUNDS + 3 else -1.0)
    assert len(rounds["of call"]) == LEAST_ROUNDS + 3


class Busy:
    """In place of a watch: others take so many cores, another number each time."""

    def __init__(self, taken: list[float]) -> None:
        self.taken, self.seen = taken, 0

    def __call__(self) -> Any:
        self.seen += 1
        return SimpleNamespace(cores=lambda cores=self.taken[self.seen - 1]: (1.0 + cores, 1.0))


def test_what_nobody_disturbed_is_measured_once(clock):
    watch = Busy([0.0])
    rounds, others = undisturbed({"a": Way("a", 0.125, clock, [])}, LEARNER, lambda: 1e9, watch)
    assert (watch.seen, len(rounds["a"]), others) == (1, MOST_ROUNDS, {"others_cores": 0.0, "disturbed": False})


@pytest.mark.parametrize(("taken", "kept"), [([0.9, 0.0], 0.0), ([0.9, 0.5], 0.5), ([0.5, 0.9], 0.5)])
def test_what_was_disturbed_is_measured_again_once_and_the_quieter_time_counts(clock, taken, kept):
    watch, way = Busy(taken), Way("a", 0.125, clock, [])
    rounds, others = undisturbed({"a": way}, LEARNER, lambda: 1e9, watch)
    assert watch.seen == 2 and len(rounds["a"]) == MOST_ROUNDS
    assert others == {"others_cores": pytest.approx(kept), "disturbed": kept > 0}


def test_time_is_kept_to_measure_again_and_where_there_is_none_the_first_counts(clock):
    for seconds, tries in ((20.0, 2), (4.0, 1)):
        clock.now, watch = 0.0, Busy([0.9, 0.0])
        rounds, others = undisturbed(
            {"a": Way("a", 0.2, clock, [])}, LEARNER, lambda until=seconds: until - clock.now, watch
        )
        assert len(rounds["a"]) >= LEAST_ROUNDS and clock.now <= seconds
        assert others["disturbed"] == (tries == 1)


def test_too_little_time_is_said_at_once(clock):
    with pytest.raises(ValueError, match=r"^5 rounds of 1 way need about 60 s: give more --budget with --resume$"):
        in_turns({"a": Way("a", 4.0, clock, [])}, LEARNER, left=lambda: 70.0 - clock.now)
    assert clock.now == 28.0, "after the first round"


def test_steps_that_are_timed_leave_the_weights_alone(small_text, text_data):
    learner = Learner(small_text, text_data, torch.device("cpu"))
    before = {name: parameter.detach().clone() for parameter, name in learner.parameter_names.items()}
    for way in (*parallel_timing.steps(learner).values(), *parallel_timing.accumulations(learner, (2,)).values()):
        way()
    assert all(torch.equal(before[name], parameter) for parameter, name in learner.parameter_names.items())
    assert learner.micro_batches == 1


def test_the_ratio_of_series_that_were_measured_apart_is_as_uncertain_as_both_are():
    fast = [1 + random.Random(seed).random() for seed in range(15)]
    times, low, high = ratio([3 * each for each in fast], fast)
    assert times == pytest.approx(3) and low < 2.9 < 3.1 < high


def test_the_interval_holds_the_figure_and_narrows_with_rounds():
    chance = random.Random(0)
    values = [chance.gauss(10, 1) for _ in range(400)]
    few, many = (interval(lambda median: median["x"], {"x": values[:count]}) for count in (8, 400))
    for figure, low, high in (few, many):
        assert low <= figure <= high
    assert many[2] - many[1] < (few[2] - few[1]) / 3


def test_the_interval_of_a_few_means_holds_the_truth_as_often_as_it_says():
    chance = random.Random(0)
    for count in (2, 3, 5):
        drawn = [[chance.gauss(10, 1) for _ in range(count)] for _ in range(2000)]
        held = [low <= 10 <= high for _, low, high in map(mean_interval, drawn)]
        assert 0.93 < statistics.fmean(held) < 0.97


def test_one_value_has_no_interval():
    assert mean_interval([3.0]) is None and mean_interval([]) is None
    assert mean_interval([1.0] * 40) == (1.0, 1.0, 1.0)
