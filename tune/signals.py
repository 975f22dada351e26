"""Being told to end: SIGINT and SIGTERM."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tune.planner import Planner
from tune.trial import STOP_FILE


@contextmanager
def ended_in_order(planner: Planner, folder: Path) -> Iterator[None]:
    """SIGINT or SIGTERM once: trials close their stretches and keep their checkpoints; a second time: at once."""

    def end(number: int, frame: Any) -> None:
        if planner.stopping:
            raise KeyboardInterrupt
        planner.stopping = signal.Signals(number).name
        (folder / STOP_FILE).touch()

    (folder / STOP_FILE).unlink(missing_ok=True)
    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        (folder / STOP_FILE).unlink(missing_ok=True)
