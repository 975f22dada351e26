"""Small data and configs, as the tests of models have them, and prices without measuring."""

import pytest

from tests.model.conftest import clock, eager, life, pair_data, run, small, small_pairs, small_text, text_data, warm

__all__ = ["clock", "eager", "life", "pair_data", "run", "small", "small_pairs", "small_text", "text_data", "warm"]


@pytest.fixture
def known_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peak that nothing measures."""
    monkeypatch.setattr("tune.experiments.whole_training.peak", lambda *_: 1e11)
