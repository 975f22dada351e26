"""Contenders take turns, ratios have an interval, and a disturbed run is made again."""

import numpy as np
import pytest

from kernels import timing
from kernels.kernel import Call


def call(function, before=None):
    return Call(function=function, arguments=(), read=lambda result: result, before=before)


@pytest.fixture(autouse=True)
def one_call_a_value(monkeypatch):
    monkeypatch.setattr(timing, "VALUE_SECONDS", 0.0)


def test_every_round_has_all_contenders_and_none_always_follows_the_same_one():
    heard = []
    values = timing.in_turns({name: call(lambda name=name: heard.append(name)) for name in "abc"})
    assert {name: len(found) for name, found in values.items()} == dict.fromkeys("abc", timing.VALUES)
    rounds = ["".join(heard[start : start + 3]) for start in range(3, len(heard), 3)]  # after one to find the speed
    assert {"".join(sorted(each)) for each in rounds} == {"abc"}
    assert {each[each.index("a") - 1] for each in rounds if each[0] != "a"} == {"b", "c"}


def test_a_value_of_many_calls_begins_with_one_that_is_not_timed(monkeypatch):
    heard = []
    monkeypatch.setattr(timing, "calls_a_value", lambda call: 2)
    timing.in_turns({"a": call(lambda: heard.append("run"))})
    assert len(heard) == 3 * timing.VALUES


def test_what_comes_before_a_value_is_not_timed():
    order = []
    timing.in_turns({"a": call(lambda: order.append("run"), before=lambda: order.append("before"))})
    assert order == ["before", "run"] * (timing.VALUES + 1)


def test_of_slow_rounds_there_are_fewer(monkeypatch):
    monkeypatch.setattr(timing, "SLOW_SECONDS", -1.0)
    assert len(timing.in_turns({"a": call(lambda: None)})["a"]) == timing.FEWER_VALUES


def test_the_ratio_is_how_many_times_as_fast_and_what_slows_a_round_as_a_whole_leaves_it_alone():
    random = np.random.default_rng(0)
    fast = list(random.uniform(0.9, 1.1, 20))
    slow = [3 * value for value in random.uniform(0.9, 1.1, 20)]
    middle, low, high = timing.ratio(slow, fast)
    assert low < middle < high and low < 3 < high
    pace = list(np.random.default_rng(0).uniform(1, 2, 20))
    assert timing.ratio([2 * value for value in pace], pace) == pytest.approx((2, 2, 2))


@pytest.mark.parametrize(
    ("taken", "runs", "steady"),
    [([0.0], 1, True), ([1.0, 0.0], 2, True), ([1.0] * timing.TRIES, timing.TRIES, False), ([None], 1, True)],
)
def test_a_disturbed_run_is_made_again_and_then_marked(taken, runs, steady, monkeypatch):
    class Watch:
        def cores_taken(self):
            return taken.pop(0)

    made = []
    monkeypatch.setattr(timing, "Watch", Watch)
    monkeypatch.setattr(timing, "in_turns", lambda calls: made.append(calls) or {"a": [1.0, 1.0]})
    assert timing.time_undisturbed({}) == ({"a": [1.0, 1.0]}, steady)
    assert len(made) == runs


def test_of_runs_that_spread_too_far_the_calmest_counts(monkeypatch):
    class Watch:
        def cores_taken(self):
            return 0.0

    wild, calm = [1.0, 2.0, 3.0], [1.0, 1.0, 1.0]
    runs = [{"a": wild, "b": wild}, {"a": calm, "b": wild}, *[{"a": wild, "b": wild}] * (timing.TRIES - 2)]
    monkeypatch.setattr(timing, "Watch", Watch)
    monkeypatch.setattr(timing, "in_turns", lambda calls: runs.pop(0))
    assert timing.time_undisturbed({}) == ({"a": calm, "b": wild}, True) and not runs
    runs = [{"a": wild}, {"a": calm}, {"a": wild}]
    assert timing.time_undisturbed({}) == ({"a": calm}, True) and len(runs) == 1
