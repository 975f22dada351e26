"""What tests of several folders share."""

import os
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

import tune  # noqa: F401 - it makes Ray's settings, before a test imports Ray

os.environ["HF_HUB_OFFLINE"] = "1"  # no test asks the hub, or takes from a cache of this machine's user
os.environ["HF_HOME"] = "/proc/no/hub"


@pytest.fixture(scope="session")
def repository() -> Path:
    """The folder that holds tune/, model/ and the rest."""
    return Path(__file__).resolve().parents[1]


SEARCHES = {"test_readme", "test_readme_python", "test_cluster", "test_soak"}
"""Files with real searches: each wants two cores, and its seconds are the clock's, not a core's."""
LAST = "test_search"
"""One more, for the worker that is done with all else: the searches take longer."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Searches first."""
    items.sort(key=lambda item: (item.path.stem == LAST, item.path.stem not in SEARCHES))


class Scheduling(LoadScopeScheduling):
    """Of two workers (see the Makefile) one runs the searches, one after the other, and the other all else, by file."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "searches" if Path(file).stem in SEARCHES else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling:
    """In place of xdist's own marks of groups, which pytest 9.2 does not let through."""
    return Scheduling(config, log)
