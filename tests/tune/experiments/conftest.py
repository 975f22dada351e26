"""Small data and configs, as the tests of models have them."""

from tests.model.conftest import clock, eager, life, pair_data, run, small, small_pairs, small_text, text_data, warm

__all__ = ["clock", "eager", "life", "pair_data", "run", "small", "small_pairs", "small_text", "text_data", "warm"]
