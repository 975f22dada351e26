"""Real searches, each a process of its own as a person starts it: what a test needs of one is waited for."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.soak.accounts import number
from tests.soak.observer import Observer
from tests.soak.search import Search

PATIENCE_SECONDS = 300.0
"""What comes at all has come within this on the busiest machine."""
LONG = "10m"
"""A cap whose end no test waits for: its leases are long enough for processes that take their time to begin."""
CAP_SECONDS, LARGEST_CAP_SECONDS = 60, 960
FAMILIES = ("translation", "nanogpt")


@dataclass(frozen=True, kw_only=True)
class Searched:
    """A search that is over: its folder, its cap in seconds, and what it printed; driver: its process id."""

    study: Path
    cap: int
    printed: str
    driver: int


def search_until_found(observer: Observer, study: Path) -> Searched:
    """A search to the end of its cap, of twice the cap where the machine was too busy for a winner of each family."""
    cap = CAP_SECONDS
    search = Search(observer, "--budget", f"{cap}s", "--report-every", "1s", "--out", study)
    while (code := search.finish()) or not all((study / f"best-{family}").exists() for family in FAMILIES):
        assert code in (0, 1) and cap < LARGEST_CAP_SECONDS, search.printed
        cap *= 2
        search = Search(observer, "--resume", study, "--budget", f"{cap}s")
    return Searched(study=study, cap=cap, printed=search.printed, driver=search.driver)


def trains(search: Search, study: Path) -> bool:
    """Wait until a trial has reported once more; False where the search ended before."""
    if not search.wait_for(f"{study}: "):
        return False
    before = number(study, "SELECT COUNT(*) FROM reports")
    while not search.ends_within(0.1):
        if number(study, "SELECT COUNT(*) FROM reports") > before:
            return True
    return False


def comes(what: Callable[[], object]) -> bool:
    """Wait for something that must come; False where it does not."""
    ends = time.monotonic() + PATIENCE_SECONDS
    while not (there := bool(what())) and time.monotonic() < ends:
        time.sleep(0.1)
    return there
