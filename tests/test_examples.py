"""The examples do what they say, with the budget made small."""

import json
import math
import runpy
from pathlib import Path

import pandas as pd
import pytest

from tests.readme import REPOSITORY
from tests.searches import LONG
from tests.soak.observer import Observer
from tests.soak.search import Search
from tune import study
from tune.store.journal import connect

EXAMPLES = REPOSITORY / "examples"


@pytest.fixture(scope="module")
def printed(observer: Observer, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The study of a family of one's own, run as a user's script until Ctrl-C, and what it printed."""
    folder = tmp_path_factory.mktemp("user")
    asked = f'budget="{LONG}", devices=1, out="{folder / "study"}", text_corpus="{folder / "text.txt"}"'
    (folder / "mine.py").write_text((EXAMPLES / "own_family.py").read_text().replace('budget="2h"', asked))
    (folder / "text.txt").write_text("To be, or not to be, that is the question. " * 5000)
    search = Search(observer, script=(folder / "mine.py",))
    assert search.wait_for("at rung 0"), search.printed
    search.interrupt()
    assert search.finish() == 0, search.printed
    return folder / "study", search.printed


def test_a_family_of_ones_own_is_trained_and_the_best_kept(printed: tuple[Path, str]) -> None:
    journal = connect(printed[0])
    trials = journal.execute("SELECT family, config, parameters FROM trials JOIN reports USING (trial)").fetchall()
    assert {trial["family"] for trial in trials} == {"lstm"} and all(trial["parameters"] > 0 for trial in trials)
    assert {frozenset(json.loads(trial["config"])) for trial in trials} == {frozenset(("width", "layers", "dropout"))}
    ((corpora,),) = journal.execute("SELECT value FROM study WHERE key = 'corpora'").fetchall()
    (best,) = journal.execute("SELECT MIN(valid_loss) FROM reports").fetchone()
    assert 0 < best < math.log(json.loads(corpora)["lstm"]["vocabulary"])
    assert {file.name for file in (printed[0] / "best-lstm").iterdir()} >= {"config.json", "model.safetensors"}


def test_a_search_returns_its_ranking(printed: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The search itself is the one above."""
    ended = study.Outcome(folder=printed[0], found=True, interrupted=None)
    monkeypatch.setattr(study, "run_study", lambda settings: ended)
    result = runpy.run_path(str(EXAMPLES / "search_from_python.py"), run_name="__main__")["result"]
    assert isinstance(result, pd.DataFrame) and result.attrs["study"] == str(printed[0])
    assert f"lstm: best {result['trial'].iloc[0]} " in printed[1]
    assert printed[1].endswith(f"{result}\n")
