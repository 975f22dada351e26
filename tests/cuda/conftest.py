"""The texts of model/'s tests, here too."""

from tests.model.conftest import pair_data, text_data

__all__ = ["pair_data", "text_data"]
