"""Being told to end: SIGINT and SIGTERM."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tune.planner import Planner
from tune.trial import STOP_FILE


@contextmanager
def ended_in_order(planner: Planner, folder: Path) -> Iterator[None]:
    """SIGINT or SIGTERM once: trials close their stretches and keep their checkpoints; a second time: at once."""

    def end(name: str) -> None:
        if planner.stopping:
            raise KeyboardInterrupt
        planner.stopping = name
        (folder / STOP_FILE).touch()

    (folder / STOP_FILE).unlink(missing_ok=True)
    try:
        with _heard(end):
            yield
    finally:
        (folder / STOP_FILE).unlink(missing_ok=True)


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM is as good as Ctrl-C: KeyboardInterrupt, with the signal's name."""

    def end(name: str) -> None:
        raise KeyboardInterrupt(name)

    with _heard(end):
        yield


@contextmanager
def _heard(end: Callable[[str], None]) -> Iterator[None]:
    """Both signals call `end` with their name."""

    def told(number: int, frame: Any) -> None:
        end(signal.Signals(number).name)

    before = {number: signal.signal(number, told) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
