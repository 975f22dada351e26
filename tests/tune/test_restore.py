"""The laws of going on: a study that was killed stands where its journal says; no device-second is lost or found."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from model.corpus import TextCorpus
from tests.tune.world import World
from tune.assembly import check_same_text
from tune.heartbeats import FOLDER, beat, last_beat, still_there
from tune.restore import close_what_a_kill_left_open


def contest_states(world: World) -> dict[str, Any]:
    return {
        name: {trial: (standing.rung, dict(standing.losses)) for trial, standing in family.contest.trials.items()}
        for name, family in world.families.items()
    }


@pytest.mark.parametrize("seed", range(6))
def test_killed_at_any_moment_it_goes_on_and_the_cap_holds(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    world = World(tmp_path, cap=1200, slots=2, seed=seed)
    for kill in range(3):
        world.run(reports=chance.randrange(1, 15))
        before, held = contest_states(world), world.books.ledger.spent
        world.journal.close()
        world = World(tmp_path, cap=1200, slots=2, seed=seed + 10 * kill)
        assert contest_states(world) == before
        assert world.books.ledger.spent == pytest.approx(held)
    world.run()
    assert world.books.ledger.spent <= 1200
    assert world.total("SELECT TOTAL(seconds) FROM charges") == pytest.approx(
        world.total("SELECT TOTAL(closed - opened) FROM slots")
    )
    repeated = "SELECT trial FROM reports WHERE rung IS NOT NULL GROUP BY trial, rung HAVING COUNT(*) > 1"
    assert world.journal.rows(repeated) == []
    assert world.total("SELECT COUNT(*) FROM reports WHERE final") == 2


def test_a_study_that_was_over_has_nothing_more_to_do(tmp_path: Path) -> None:
    world = World(tmp_path, cap=600, slots=2)
    world.run()
    world.journal.close()
    again = World(tmp_path, cap=600, slots=2)
    again.run()
    assert again.assignments == []


def test_with_a_larger_cap_trials_are_taken_up_and_not_begun_again(tmp_path: Path) -> None:
    world = World(tmp_path, cap=600, slots=2)
    world.run()
    world.journal.close()
    larger = World(tmp_path, cap=1800, slots=2)
    larger.run()
    assert 0.97 * 1800 <= larger.books.ledger.spent <= 1800
    assert larger.total("SELECT MAX(n) FROM (SELECT COUNT(*) AS n FROM leases WHERE rung = 0 GROUP BY trial)") == 1


def test_a_heartbeat_tells_what_was_used_after_the_last_report(tmp_path: Path) -> None:
    """A driver killed 3 s into a lease whose trial lived for 7 s: 7 s are charged, as lost."""
    world = World(tmp_path, cap=600, slots=1, shares={"nanogpt": 1.0})
    assignment = world.planner.next()
    assert assignment is not None
    (tmp_path / FOLDER).mkdir()
    beat(tmp_path, assignment.trial, assignment.lease, assignment.opened + 7)
    (tmp_path / FOLDER / assignment.trial).write_text(
        json.dumps({"lease": assignment.lease, "at": 7.0, "pid": 2**22 + 1, "started": 0})
    )
    close_what_a_kill_left_open(world.journal)
    assert world.total("SELECT TOTAL(seconds) FROM charges WHERE what = 'lost'") == pytest.approx(7)
    assert world.total("SELECT TOTAL(closed - opened) FROM slots") == pytest.approx(7)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"lease": 1}', '{"lease": 1, "at": "x", "pid": 1, "started": 2}'])
def test_a_damaged_heartbeat_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "t001").write_text(text)
    assert last_beat(tmp_path, "t001") is None


def test_only_a_worker_of_rays_is_ever_taken_for_a_trial(tmp_path: Path) -> None:
    """A heartbeat that names another living process must not get it killed."""
    (tmp_path / FOLDER).mkdir()
    beat(tmp_path, "t001", 1, 1.0)
    found = last_beat(tmp_path, "t001")
    assert found is not None and not still_there(found)


def test_a_strangers_journal_cannot_name_a_path(tmp_path: Path) -> None:
    world = World(tmp_path, cap=600, slots=1)
    row = {"trial": "../../t001", "family": "nanogpt", "config": "{}", "state": "paused", "created": 0}
    world.journal.insert("trials", row)
    world.journal.close()
    with pytest.raises(ValueError, match="damaged"):
        World(tmp_path, cap=600, slots=1)


def test_a_text_that_changed_is_refused_by_the_name_of_its_flag(tmp_path: Path) -> None:
    def text(sha256: str) -> TextCorpus:
        return TextCorpus(name="text.txt", sha256=sha256, builtin=False, train="", valid="", test="")

    facts = {"corpora": {"nanogpt": {"sha256": "before"}}}
    check_same_text({"nanogpt": text("before")}, facts)
    with pytest.raises(ValueError, match=r"--text-corpus: 'text\.txt' has changed"):
        check_same_text({"nanogpt": text("after")}, facts)
