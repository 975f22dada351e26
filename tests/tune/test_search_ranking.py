"""The ranking of a search: every trial once, the winners first, and what analysis/rank.py says of the same journal."""

import json
from pathlib import Path

import pandas as pd
import pytest

from analysis.ranking import ranking as ranked_by_analysis
from analysis.study import Results, open_study
from tests.analysis.conftest import Written
from tests.tune.display.conftest import Sampled
from tests.tune.search.world import World
from tune.ranking import ranking
from tune.winners import winners


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A search with trials that diverged, whose processes died, and that have no rung yet when it is looked at."""
    world = World(tmp_path, cap=900, slots=3, seed=1, suggestions=Sampled)
    world.diverging, world.dying = {2: 0.0, 5: 6.0}, {"t004": 2}
    return world


@pytest.fixture(params=[14, 100_000], ids=["running", "ended"])
def found(request: pytest.FixtureRequest, world: World) -> tuple[World, pd.DataFrame]:
    world.run(reports=request.param)
    return world, ranking(world.journal.folder)


def test_every_trial_has_one_row_with_its_config_and_its_price(found: tuple[World, pd.DataFrame]) -> None:
    world, table = found
    rows = {row["trial"]: row for row in table.to_dict("records")}
    assert len(rows) == len(table) == world.total("SELECT COUNT(*) FROM trials")
    for trial in world.journal.rows("SELECT * FROM trials"):
        config = json.loads(trial["config"])
        assert {name: rows[trial["trial"]][name] for name in config} == config
        paid = world.total(f"SELECT TOTAL(seconds) FROM charges WHERE trial = '{trial['trial']}'")
        assert rows[trial["trial"]]["device_seconds"] == pytest.approx(paid, nan_ok=True) or paid == 0


def test_the_first_of_each_family_is_its_winner(found: tuple[World, pd.DataFrame]) -> None:
    world, table = found
    firsts = table.groupby("family").first()
    assert {name: row["trial"] for name, row in firsts.iterrows()} == {
        name: winner.trial for name, winner in winners(world.journal).items()
    }


def test_it_is_the_ranking_of_the_analysis(found: tuple[World, pd.DataFrame]) -> None:
    world, table = found
    theirs = ranked_by_analysis(Results(studies=[open_study(world.journal.folder)]), by="perplexity")
    assert {"failed", "decayed" if world.engine.done else "rung"} <= set(table["section"])
    for name, family in table.groupby("family"):
        other = theirs[theirs["family"] == name][list(table)].astype(dict(table.dtypes))
        pd.testing.assert_frame_equal(family.reset_index(drop=True), other.reset_index(drop=True))


def test_who_came_further_stands_before_who_is_better_below(tmp_path: Path) -> None:
    study = Written(tmp_path / "study")
    for trial, rung, perplexity in (("t001", 0, 3.0), ("t002", 1, 4.0), ("t003", 0, 2.0)):
        study.trial(trial)
        study.report(trial, perplexity, rung=rung)
    assert ranking(study.folder)["trial"].tolist() == ["t002", "t003", "t001"]
