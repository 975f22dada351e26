"""Small pairs, as the tests of models have them."""

from tests.model.conftest import pair_data

__all__ = ["pair_data"]
