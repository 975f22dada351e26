"""What tests of several folders share."""

import os
from pathlib import Path

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"  # no test asks the hub, or takes from a cache of this machine's user
os.environ["HF_HOME"] = "/proc/no/hub"


@pytest.fixture(scope="session")
def repository() -> Path:
    """The folder that holds tune/, model/ and the rest."""
    return Path(__file__).resolve().parents[1]
