"""Laws of the front of size against loss, and of a search for it."""

import math
import random
from collections.abc import Iterator
from itertools import islice
from statistics import fmean
from typing import Any

import pytest

from tests.tune.search.alone import Alone, Search, bare, reach
from tune.search.forecast import Progress
from tune.search.front import Point, expected_gain, expected_hypervolume_gain, front, hypervolume, reference
from tune.search.ladder import Rules
from tune.search.successive_halving import SuccessiveHalving

seeded = pytest.mark.parametrize("seed", range(5))


def drawn(seed: int, count: int = 12) -> tuple[list[Point], Point]:
    """Points, some alike in one of the two, and their reference."""
    rng = random.Random(seed)
    points = [(float(rng.randint(8, 16)), rng.choice([2.0, rng.uniform(1, 5)])) for _ in range(count)]
    return points, reference(points)


# --- the front, and what a point adds to it


@seeded
def test_on_the_front_are_those_than_which_none_is_both_smaller_and_better(seed: int) -> None:
    points, bound = drawn(seed)
    best = front(points, bound)
    for point in set(points):
        beaten = any(other != point and other[0] <= point[0] and other[1] <= point[1] for other in points)
        assert (point in best) == (not beaten)


@seeded
def test_whatever_their_order_points_of_the_front_alone_make_its_hypervolume(seed: int) -> None:
    points, bound = drawn(seed)
    whole = hypervolume(points, bound)
    assert whole == hypervolume(reversed(points), bound) == hypervolume(front(points, bound), bound) > 0


@seeded
def test_what_is_known_of_a_point_it_adds_and_the_less_is_known_the_more_it_is_expected_to(seed: int) -> None:
    (new, *points), bound = drawn(seed)
    best, (size, loss) = front(points, bound), new
    added, below = expected_hypervolume_gain(size, (loss, 0.0), best, bound)
    assert added == pytest.approx(hypervolume([new, *points], bound) - hypervolume(points, bound))
    assert (added > 0) == (below > 0)
    doubts = [expected_hypervolume_gain(size, (loss, doubt), best, bound)[0] for doubt in (0.0, 0.01, 0.1, 0.5)]
    assert doubts == sorted(doubts) and doubts[-1] > 0


@seeded
def test_what_cannot_lead_is_expected_to_gain_nothing_and_never_less(seed: int) -> None:
    """Less than nothing would be less than the nothing that a search asks for without --stop-below-gain."""
    rng = random.Random(seed)
    losses = [rng.uniform(0.5, 5.0) for _ in range(5000)]
    gains = [expected_gain((loss, 0.1), (loss * (1 + 0.1 * rng.uniform(5, 12)), 0.0)) for loss in losses]
    assert min(gains) >= 0 and max(gains) < 1e-6


# --- a search for it


def climbing(policy: SuccessiveHalving) -> Iterator[None]:
    """Two trials reach rungs, one by one, until a law of losses is known; then one is past its best."""
    for trial, rung, size, loss in (("a", 0, 1e4, 4.0), ("a", 1, 1e4, 3.0), ("b", 0, 1e6, 3.9), ("b", 1, 1e6, 2.0)):
        policy.on_promoted(trial, rung, 1.0)
        at = Progress(size=size, tokens=1e4 * 2**rung, seconds=5.0 * 2**rung)
        policy.on_reported(trial, rung, loss, progress=at)
        yield
    policy.on_finishing("a")
    policy.on_turned("a", 1.0, 20.0)
    yield


def test_what_a_trial_adds_to_the_front_does_not_hang_on_what_was_asked_before() -> None:
    asked = bare(rules=Rules(front=True))
    for count, _ in enumerate(climbing(asked), 1):
        fresh = bare(rules=Rules(front=True))
        assert len([*islice(climbing(fresh), count)]) == count
        one, other = (policy.standings.front_additions([1e3], [(1.5, 0.1)]) for policy in (asked, fresh))
        assert one == other is not None


def ends(search: Alone) -> list[Point]:
    """Of all trials that came to an end."""
    rows = search.rows("SELECT parameters, valid_loss FROM reports JOIN trials USING (trial) WHERE final")
    return [(math.log(row["parameters"]), row["valid_loss"]) for row in rows]


class OneSize(Alone):
    """All of its trials have models of one size."""

    def course(self, *about: Any) -> Any:
        made = super().course(*about)
        object.__setattr__(made, "parameters", 1000)
        return made


@pytest.mark.parametrize("scenario", [{}, {"life": 100.0}, {"seconds": 3000.0, "slots": 4, "life": 200.0}], ids=str)
def test_among_models_of_one_size_it_is_a_search_for_the_lowest_loss(scenario: dict[str, Any]) -> None:
    found = []
    for rules in (Rules(law=False), Rules(law=False, front=True)):
        search = OneSize(rules=rules, **scenario).run()
        found.append([[row[name] for name in ("trial", "action", "rung")] for row in search.on_decision()])
    assert found[0] == found[1]


@pytest.mark.parametrize("scenario", [{}, {"life": 100.0}, {"seconds": 3000.0, "slots": 4, "diverging": 0.3}], ids=str)
def test_where_the_loss_counts_nothing_depends_on_sizes_but_by_the_law(scenario: dict[str, Any]) -> None:
    found = []
    for kind in (Alone, OneSize):
        search = kind(rules=Rules(law=False), **scenario).run()
        found.append([[tuple(row) for row in search.on_decision()], search.spent])
    assert found[0] == found[1]


@pytest.mark.parametrize("slots", [1, 4])
def test_without_ends_of_their_own_several_sizes_are_trained_to_one_and_the_cap_is_used(slots: int) -> None:
    volumes, sizes = dict[bool, list[float]](), list[int]()
    for seed in range(4):
        both = {of: Search(seed=seed, seconds=3000.0, slots=slots, rules=Rules(front=of)).run() for of in (False, True)}
        bound = reference([*ends(both[False]), *ends(both[True])])
        for of, search in both.items():
            assert 0.95 * search.seconds <= search.spent <= search.seconds
            volumes.setdefault(of, []).append(hypervolume(ends(search), bound))
        sizes.append(len(ends(both[True])))
    assert fmean(sizes) > 1.5 and fmean(volumes[True]) > fmean(volumes[False])


@pytest.mark.parametrize("slots", [1, 4])
def test_with_ends_of_their_own_more_of_the_front_is_found(slots: int) -> None:
    volumes = dict[bool, list[float]]()
    for seed in range(6):
        both = {of: Alone(seed=seed, slots=slots, life=150.0, rules=Rules(front=of)).run() for of in (False, True)}
        bound = reference([*ends(both[False]), *ends(both[True])])
        for of, search in both.items():
            assert search.spent <= search.seconds
            volumes.setdefault(of, []).append(hypervolume(ends(search), bound))
    assert fmean(volumes[True]) > fmean(volumes[False])


def test_what_failed_is_no_point_of_the_front_of_a_search() -> None:
    def additions(*, fails: bool) -> list[float] | None:
        policy = bare(rules=Rules(front=True))
        reach(policy, "a", 3.0)
        if fails:
            reach(policy, "b", 1.0)
            policy.on_ended("b", "error: mine")
        return policy.standings.front_additions([0.0], [(2.0, 0.0)])

    assert additions(fails=True) == additions(fails=False) != [0]
