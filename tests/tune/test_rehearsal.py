"""A rehearsal is a search as the planner plays it: held against the tests' own world, and against real costs."""

from pathlib import Path

import pytest

from tests.tune.world import OVERHEAD_SECONDS, START_UP_SECONDS, STEP_SECONDS, Numbered, World
from tune.search.simulator import Costs, rehearse

COSTS = Costs(start_up=START_UP_SECONDS, overhead=OVERHEAD_SECONDS, step=lambda family, config: STEP_SECONDS)
CASES = pytest.mark.parametrize(("cap", "slots"), [(60, 1), (240, 2), (1200, 2), (1200, 4), (7200, 8)])


def world(folder: Path, cap: float, slots: int) -> World:
    folder.mkdir()
    return World(folder, cap=cap, slots=slots, seed=7)


@CASES
def test_a_noisy_world_whose_prices_are_learned_comes_within_a_fifth(tmp_path: Path, cap: float, slots: int) -> None:
    played, rehearsed = world(tmp_path / "a", cap, slots), world(tmp_path / "b", cap, slots)
    played.run()
    rehearse(rehearsed.planner, rehearsed, COSTS)
    assert len(rehearsed.planner.trials) == pytest.approx(len(played.planner.trials), rel=0.2)
    assert rehearsed.books.ledger.spent == pytest.approx(played.books.ledger.spent, rel=0.2)


@CASES
def test_the_cap_holds_and_every_trial_is_settled(tmp_path: Path, cap: float, slots: int) -> None:
    rehearsed = world(tmp_path / "a", cap, slots)
    rehearse(rehearsed.planner, rehearsed, COSTS)
    assert 0.85 * cap < rehearsed.books.ledger.spent <= cap
    assert rehearsed.total("SELECT COUNT(*) FROM trials WHERE state IN ('running', 'failed')") == 0
    assert rehearsed.total("SELECT SUM(seconds) FROM charges") == pytest.approx(rehearsed.books.ledger.spent)


def test_where_there_are_no_more_configurations_it_ends(tmp_path: Path) -> None:
    rehearsed = World(tmp_path, cap=1200, slots=2, suggestions=lambda: Numbered(most=3))
    rehearse(rehearsed.planner, rehearsed, COSTS)
    assert len(rehearsed.planner.trials) == 6
