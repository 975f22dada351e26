"""What tests of several folders share."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def repository() -> Path:
    """The folder that holds tune/, model/ and the rest."""
    return Path(__file__).resolve().parents[1]
