"""Seconds that pass when told."""

import pytest

from tune.search.simulator import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()
