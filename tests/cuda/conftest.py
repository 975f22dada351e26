"""The texts of model/'s tests, here too, by the family that learns each."""

import pytest

from model.config import Data
from model.data.dataset import PairData, TextData
from tests.model.conftest import pair_data, text_data, warm

__all__ = ["data", "pair_data", "text_data", "warm"]


@pytest.fixture
def data(text_data: TextData, pair_data: PairData) -> dict[str, Data]:
    return {"nanogpt": text_data, "translation": pair_data}
