"""Small pairs, as the tests of models have them, and the worker of a user's loop."""

from tests.model.conftest import pair_data
from tests.tune.backend.worker import worker

__all__ = ["pair_data", "worker"]
