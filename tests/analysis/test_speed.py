"""How long it may take at most, in seconds of this process's own work: a busy machine changes nothing.

Ranking took 2.5 s on the slowest machine so far.
"""

import json
import time
from collections.abc import Callable
from random import Random

import pytest

from analysis.plots.budget import burn_down
from analysis.plots.search import curves, front, progress
from analysis.settings import RankSettings
from analysis.study import Results, open_studies
from analysis.style import Picture
from tests.analysis.conftest import Printed, Written

TRIALS, REPORTS = 10_000, 4
RANKING, DRAWING = 5.0, 5.0


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Four reports a trial; a third of them came to a second rung."""
    study, chance = Written(tmp_path_factory.mktemp("runs") / "large"), Random(0)
    with study.journal.transaction():
        for number in range(TRIALS):
            trial, rungs = f"t{number:05d}", {1: 0} | ({3: 1} if number % 3 == 0 else {})
            study.trial(trial, parameters=chance.randrange(10**4, 10**7), d_model=chance.choice([16, 64, 256]))
            study.charge("steps", 1.0, trial=trial)
            for report in range(REPORTS):
                at = 1.0 + report
                study.report(trial, chance.uniform(2, 9), rung=rungs.get(report), at=at, training_seconds=at)
    return Results(studies=open_studies([study.folder]))


def test_ten_thousand_trials_are_ranked(large: Results, printed: Printed) -> None:
    began = time.process_time()
    text = printed(RankSettings, large.studies[0].folder, "--top", "0", "--json")
    seconds = time.process_time() - began
    assert len(json.loads(text)) == TRIALS
    assert seconds < RANKING


@pytest.mark.parametrize("draw", [front, curves, burn_down, progress])
def test_ten_thousand_trials_are_drawn(large: Results, draw: Callable[..., Picture]) -> None:
    began = time.process_time()
    draw(large.studies[0]) if draw is burn_down else draw(large, "nanogpt")
    assert time.process_time() - began < DRAWING
