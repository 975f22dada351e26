"""Small data and configs, as the tests of models have them."""

from tests.model.conftest import pair_data, run, small_pairs, small_text, text_data

__all__ = ["pair_data", "run", "small_pairs", "small_text", "text_data"]
