"""A study of scaling with real processes: what it writes, what it charges, and what a death costs."""

import dataclasses
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from analysis.experiments.scaling import communication, speed_up
from analysis.study import open_study
from tune.backend.worker_group import Place, Said
from tune.experiments.base import ExperimentSettings, Point
from tune.experiments.conduct import run_experiment
from tune.experiments.scaling import SCALING, work
from tune.store.journal import connect

SMALL = {"d_model": 16, "heads": 4, "layers": 2}
CAP = 900.0


def training(devices: int) -> Point:
    asked = {"measure": "training", "steps": 30, "every": 10}
    return Point(devices=devices, asked=asked, seconds=30.0, least=10.0)


def steps(devices: int, rows: int) -> Point:
    return Point(devices=devices, asked={"measure": "steps", "rows": rows}, seconds=10.0, least=5.0)


def dies_once(place: Place, asked: dict[str, Any]) -> Iterator[Said]:
    """Of two ranks the second is killed after the first checkpoint, in its first life."""
    for said in work(place, asked):
        yield said
        mark = place.folder / "died"
        if dist.get_rank() == 1 and said.what == "steps" and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def settings(out: Path, **more: Any) -> ExperimentSettings:
    asked = {"budget": CAP, "families": "nanogpt", "fix": SMALL, "devices": 2, "oversubscribe": True}
    asked |= {"text_corpus": "builtin", "out": out}
    return ExperimentSettings(**(asked | more))


def rows(study: Path) -> list[dict[str, Any]]:
    return [json.loads(row["value"]) for row in connect(study).execute("SELECT value FROM rows ORDER BY row")]


def charged(study: Path) -> dict[str, float]:
    query = "SELECT what, SUM(seconds) AS seconds FROM charges GROUP BY what"
    return {row["what"]: row["seconds"] for row in connect(study).execute(query)}


def check_the_account(study: Path) -> None:
    """Every device-second is charged once, on every device alike, and inside the cap."""
    slots = connect(study).execute("SELECT closed - opened AS held FROM slots").fetchall()
    held = sum(slot["held"] for slot in slots)
    assert held == pytest.approx(sum(charged(study).values()), abs=0.1) and held <= CAP
    alike = "SELECT COUNT(*) % 2 AS odd FROM charges JOIN trials USING (trial) WHERE config LIKE '%\"devices\": 2%'"
    assert connect(study).execute(alike).fetchone()["odd"] == 0


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One and two devices, measured and trained on."""
    out = tmp_path_factory.mktemp("scaling") / "study"
    points = [steps(1, 16), training(1), steps(2, 16), steps(2, 32), training(2)]
    assert run_experiment(dataclasses.replace(SCALING, points=lambda *_: points), settings(out)) == 0
    return out


def test_a_study_of_scaling(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = rows(study)
    assert not [row for row in found if "skipped" in row] and len(found) == 5
    check_the_account(study)
    one, two = (row for row in found if row["asked"] == training(1).asked)
    assert two["valid_loss"] == pytest.approx(one["valid_loss"], abs=1e-4)
    assert {row["start_up_seconds"] > 0 for row in found} == {True}
    leases = "SELECT COUNT(*) AS count FROM leases"
    assert connect(study).execute(leases).fetchone()["count"] == 1 + 2, "processes came up again between two points"
    assert speed_up(open_study(study)).data["devices"].max() == 2
    assert len(communication(open_study(study)).data) == 2
    points = [*(training(1), training(2), steps(1, 16))]
    again = settings(study, resume=study)
    assert run_experiment(dataclasses.replace(SCALING, points=lambda *_: points), again) == 0
    assert rows(study) == found, "what has a row was measured again"


def test_a_death_is_charged_and_training_goes_on_from_its_checkpoint(study: Path, tmp_path: Path) -> None:
    mortal = dataclasses.replace(SCALING, points=lambda *_: [training(2)], work=dies_once)
    assert run_experiment(mortal, settings(tmp_path / "study")) == 0
    (row,) = rows(tmp_path / "study")
    whole = next(row for row in rows(study) if row["devices"] == 2 and row["asked"] == training(2).asked)
    assert row["valid_loss"] == pytest.approx(whole["valid_loss"], abs=1e-4)
    assert (tmp_path / "study" / "checkpoints" / "t001" / "died").exists()
    assert row["training_seconds"] < 1.0 or row["tokens"] == whole["tokens"]
    check_the_account(tmp_path / "study")
    assert charged(tmp_path / "study")["lost"] > 0
