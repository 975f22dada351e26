"""A search whose winner is trained on one device and on two, with real Ray and real processes, inside one cap."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analysis.experiments.scaling import communication, speed_up
from analysis.study import open_study
from tune import search_context, study
from tune.experiments import base as grounds
from tune.experiments.base import Point
from tune.ranking import ranking
from tune.settings import Settings
from tune.store.journal import connect

CAP, ASIDE = 240.0, 0.75
START = 45.0
"""Seconds kept for processes to come up, which takes half a minute on a slow and busy machine."""


def short(devices: int) -> list[Point]:
    """Of the experiment's, one for each number of devices, and short: weakly scaled."""
    least, seconds = {1: (1.0, 4.0), 2: (2.0, 14.0)}[devices]
    return [Point(devices=devices, asked={"measure": "steps", "rows": 16 * devices}, seconds=seconds, least=least)]


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[pd.DataFrame]]:
    """The study, and its ranking before and after the winner was scaled."""
    out = tmp_path_factory.mktemp("scaled") / "study"
    tables: list[pd.DataFrame] = []
    scale_winner = study.scale_winner

    def watched(*arguments: Any) -> None:
        tables.append(ranking(out))
        scale_winner(*arguments)
        tables.append(ranking(out))

    small: dict[str, Any] = {"fix": "d_model=16,layers=2", "families": "nanogpt", "text_corpus": "builtin"}
    asked = Settings(budget=CAP, devices=2, oversubscribe=True, scale_winner="1,2", out=out, **small)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search_context, "points_of", short)
        patch.setattr(search_context, "SHARE", ASIDE)
        patch.setattr(grounds, "START_SECONDS", START)
        patch.setattr(study, "scale_winner", watched)
        assert study.run_study(asked).exit_code == 0
    return out, tables


def number(folder: Path, query: str) -> float:
    return float(connect(folder).execute(query).fetchone()[0])


def test_the_cap_holds_and_every_device_second_is_charged_once(searched):
    folder, _ = searched
    held = number(folder, "SELECT SUM(closed - opened) FROM slots")
    assert held <= CAP
    assert number(folder, "SELECT SUM(seconds) FROM charges") == pytest.approx(held, abs=0.05)
    assert number(folder, "SELECT COUNT(*) FROM slots WHERE closed IS NULL") == 0


def test_each_device_has_one_lease_for_all_points_and_its_start_is_charged_apart(searched):
    folder, _ = searched
    charged = "SELECT COUNT(*) FROM charges JOIN leases USING (lease) WHERE purpose = 'scaling' AND what = "
    assert number(folder, "SELECT COUNT(*) FROM leases WHERE purpose = 'scaling'") == 1 + 2
    assert number(folder, f"{charged} 'start'") >= 1 + 2 and number(folder, f"{charged} 'steps'") == 1 + 2


def test_rows_of_both_can_be_drawn_and_were_told(searched):
    folder, _ = searched
    opened = open_study(folder)
    assert set(speed_up(opened).data["devices"]) == {1, 2}
    assert len(communication(opened).data) == 1
    said = (folder / "log.txt").read_text()
    (winner,) = connect(folder).execute("SELECT DISTINCT trial FROM leases WHERE purpose = 'scaling'").fetchall()
    assert f"scaling: {winner['trial']} nanogpt d16 " in said
    assert "Weak scaling: the batch a device is fixed" in said and "Start-up of the processes" in said
    assert (folder / "tensorboard" / "scaling").is_dir()


def test_the_ranking_is_the_searchs(searched):
    folder, (before, after) = searched
    pd.testing.assert_frame_equal(before, after)
    assert list(before["section"]).count("decayed") == 1
    assert number(folder, "SELECT COUNT(*) FROM trials WHERE state = 'running'") == 0
