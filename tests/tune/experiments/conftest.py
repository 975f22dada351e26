"""Small data and configs, as the tests of models have them; prices without measuring, and studies without training."""

from collections.abc import Callable
from pathlib import Path

import pytest

from model.training.checkpoint import model_resume_checkpoint
from tests.conftest import know_step_speed
from tests.model.conftest import clock, eager, pair_data, run, small, small_pairs, small_text, text_data, warm
from tune.assembly import make_engine, make_trial_environment
from tune.display.tensorboard import TensorBoard
from tune.experiments.base import Experiment, Row
from tune.experiments.lists import ended_trial_rows
from tune.search.resume import close_what_a_kill_left_open, restore
from tune.search.simulator import Clock, Costs, PowerLaw, Simulation
from tune.search_context import SearchContext
from tune.store.journal import Journal
from tune.store.queries import ENDED_TRIALS_QUERY
from tune.study import conclude

__all__ = ["clock", "eager", "pair_data", "run", "small", "small_pairs", "small_text", "text_data", "warm"]


@pytest.fixture
def known_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prices that nothing measures."""
    know_step_speed(monkeypatch)


def studied(
    experiment: Experiment, context: SearchContext, folder: Path, course: Callable[..., PowerLaw]
) -> tuple[list[Row], list[str]]:
    """A study of a list begun, or gone on with, with all of a search but Ray and the training: what its trials came to,
    and what is told of it.
    """
    settings, new = context.settings, not (folder / "journal.db").exists()
    with Journal(folder, new=new) as journal:
        clock = Clock()
        if not new:
            close_what_a_kill_left_open(journal)
        tensorboard = TensorBoard(folder / "tensorboard", journal, settings, context.dimensions)
        engine = make_engine(context, journal, [tensorboard], now=clock, elapsed=0.0)
        notes = [] if new else restore(engine, model_resume_checkpoint, settings.deadline, context.devices.processor)
        assert notes == []
        journal.write_facts(**context.facts())
        place = make_trial_environment(context, engine)
        assert place.listed and {recipe({})["average"] for recipe in place.recipes.values()} == {0.0}
        Simulation(engine, clock, Costs(start_up=6.0, overhead=1.0), course).run()
        rows = ended_trial_rows(journal.rows(ENDED_TRIALS_QUERY), journal.facts()["corpora"])
        told = list(conclude(context, engine, tensorboard, [tensorboard]))
        assert engine.accounting.ledger.spent <= settings.budget
    return rows, told
