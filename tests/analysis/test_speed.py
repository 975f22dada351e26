"""How long it may take at most, in seconds of this process's own work: a busy machine changes nothing.

Ranking took 2.5 s on the slowest machine so far.
"""

import json
import random
import time
from collections.abc import Callable

import pytest

from analysis.plots.budget import burn_down
from analysis.plots.search import curves, front, progress
from analysis.settings import RankSettings
from analysis.study import Results, open_studies
from analysis.style import Picture
from tests.analysis.conftest import Written, do

TRIALS, REPORTS = 10_000, 10
RANKING, READING = 5.0, 5.0


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """10,000 trials with ten reports each; a third of them came to a second rung."""
    study, chance = Written(tmp_path_factory.mktemp("runs") / "large"), random.Random(0)
    with study.journal.transaction():
        for number in range(TRIALS):
            trial, rungs = f"t{number:05d}", {4: 0} | ({9: 1} if number % 3 == 0 else {})
            study.trial(trial, parameters=chance.randrange(10**4, 10**7), d_model=chance.choice([16, 64, 256]))
            study.charge("steps", 1.0, trial=trial)
            for report in range(REPORTS):
                at = 1.0 + report
                study.report(trial, chance.uniform(2, 9), rung=rungs.get(report), at=at, training_seconds=at)
    return study


def test_ten_thousand_trials_are_ranked(large: Written, capsys: pytest.CaptureFixture[str]) -> None:
    began = time.process_time()
    do(RankSettings, [str(large.folder), "--top", "0", "--json"])
    seconds = time.process_time() - began
    assert len(json.loads(capsys.readouterr().out)) == TRIALS
    assert seconds < RANKING


@pytest.mark.parametrize("draw", [front, curves, burn_down, progress])
def test_a_hundred_thousand_reports_are_drawn(large: Written, draw: Callable[..., Picture]) -> None:
    began = time.process_time()
    studies = open_studies([large.folder])
    draw(studies[0]) if draw is burn_down else draw(Results(studies=studies), "nanogpt")
    assert time.process_time() - began < READING
