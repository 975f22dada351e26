"""The examples do what they say, with the budget made small."""

import json
import math
import runpy
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from tests.readme import REPOSITORY
from tune import study
from tune.store.journal import connect

CAP = 30.0
EXAMPLES = REPOSITORY / "examples"


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The study of a family of one's own, run as a user's script, and what it printed."""
    folder = tmp_path_factory.mktemp("user")
    asked = f'budget="{CAP:.0f}s", out="study", text_corpus="text.txt"'
    (folder / "mine.py").write_text((EXAMPLES / "own_family.py").read_text().replace('budget="2h"', asked))
    (folder / "text.txt").write_text("To be, or not to be, that is the question. " * 5000)
    ran = subprocess.run(
        [sys.executable, "mine.py"], cwd=folder, capture_output=True, text=True, timeout=200, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return folder / "study", ran.stdout


def test_a_family_of_ones_own_is_trained_under_the_cap(printed: tuple[Path, str]) -> None:
    journal = connect(printed[0])
    (spent,) = journal.execute("SELECT SUM(closed - opened) FROM slots").fetchone()
    assert 0.7 * CAP < spent <= CAP
    trials = journal.execute("SELECT family, config, parameters FROM trials JOIN reports USING (trial)").fetchall()
    assert {trial["family"] for trial in trials} == {"lstm"} and all(trial["parameters"] > 0 for trial in trials)
    assert {frozenset(json.loads(trial["config"])) for trial in trials} == {frozenset(("width", "layers", "dropout"))}
    ((corpora,),) = journal.execute("SELECT value FROM study WHERE key = 'corpora'").fetchall()
    (best,) = journal.execute("SELECT MIN(valid_loss) FROM reports WHERE final").fetchone()
    assert 0 < best < 0.5 * math.log(json.loads(corpora)["lstm"]["vocabulary"])
    assert {file.name for file in (printed[0] / "best-lstm").iterdir()} >= {"config.json", "model.safetensors"}


def test_a_search_returns_its_ranking(printed: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The search itself is the one above."""
    ended = study.Outcome(folder=printed[0], found=True, interrupted=None)
    monkeypatch.setattr(study, "run_study", lambda settings: ended)
    result = runpy.run_path(str(EXAMPLES / "search_from_python.py"), run_name="__main__")["result"]
    assert isinstance(result, pd.DataFrame) and result.attrs["study"] == str(printed[0])
    assert f"lstm: best {result['trial'].iloc[0]} " in printed[1]
    assert printed[1].endswith(f"{result}\n")
