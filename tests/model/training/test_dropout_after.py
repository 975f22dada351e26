"""Dropout begins where the text is no longer new, and nothing else begins with it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from model.config import Config
from model.data.dataset import TextData
from model.training import train as training
from model.training.learner import Learner
from tests.model.conftest import Script, losses_of
from tune.reports import Report

CPU = torch.device("cpu")
STEPS, BEGINS = 12, 5


@pytest.fixture
def late(small_text: Config, text_data: TextData) -> Config:
    """Without dropout for so many steps."""
    times = BEGINS * small_text.batch_tokens / text_data.training_tokens
    return replace(small_text, dropout=0.5, dropout_after=times)


def test_until_then_it_learns_as_without_and_from_then_on_not(late: Config, text_data: TextData) -> None:
    found, without, with_it = (
        losses_of(Learner(each, text_data, CPU), STEPS)
        for each in (late, replace(late, dropout=0.0), replace(late, dropout_after=0))
    )
    assert found[:BEGINS] == without[:BEGINS]
    assert all(one != other for one, other in zip(found[BEGINS:], without[BEGINS:], strict=True))
    assert with_it[1] != without[1]


def test_what_goes_on_from_a_checkpoint_knows_whether_it_has_begun(
    late: Config, text_data: TextData, tmp_path: Path, run: Callable[..., list[Report]], eager: None
) -> None:
    through = run(late, text_data, tmp_path / "a", steps=STEPS)[-1]
    for first in (BEGINS - 1, BEGINS, BEGINS + 1):
        folder, path = tmp_path / str(first), None
        for goal in (first, STEPS):
            last = run(late, text_data, folder, checkpoint=path, steps=goal)[-1]
            path = Path(str(last.checkpoint))
        assert last.valid is not None and through.valid is not None
        assert last.valid.loss == through.valid.loss


def test_a_dry_step_has_the_dropout_that_begins_later(late: Config, text_data: TextData) -> None:
    rates = list[float]()
    learner = Learner(late, text_data, CPU)
    learner.model.register_forward_hook(lambda *_: rates.append(learner.dropout))
    learner.dry_step()
    learner.step(1.0)
    assert rates == [0.5, 0.0]


def test_a_step_is_compiled_anew_as_what_was_has_the_old_rate_in_it(
    late: Config, text_data: TextData, tmp_path: Path, run: Callable[..., list[Report]], clock: Script,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    compiled = list[float]()
    clock.compiles = True
    monkeypatch.setattr(Learner, "compile", lambda self: compiled.append(self.dropout))
    monkeypatch.setattr(training, "COMPILE_REPAYS", {"cpu": 0.1})
    times = 25 * late.batch_tokens / text_data.training_tokens
    for dropout, seen in ((0.5, [0.0, 0.5]), (0.0, [0.0])):
        run(replace(late, dropout=dropout, dropout_after=times), text_data, tmp_path / str(dropout), clock, steps=50)
        assert compiled == seen
        compiled.clear()
