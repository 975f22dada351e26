"""How long a trial's steps take, and so how many of them its seconds buy."""

import statistics
from collections import deque
from collections.abc import Iterable
from typing import Any

SETTLED, WARM = 20, 5    # after so many steps a trial's rungs are fixed numbers of steps; the first few are slow
SETTLED_SECONDS = 1.0    # of steps at least: a neighbour's burst may last as long as twenty small ones


class Pace:
    """The training seconds of a life, and the step time that its first steps settled for good."""

    def __init__(self, *, training_seconds: float = 0.0, settled: float | None = None, early: Iterable[float] = ()):
        """What `state` gave in the checkpoint that the stretch goes on from."""
        self.training_seconds = training_seconds
        self.settled = settled
        self.early = list(early)
        self.recent: deque[float] = deque(maxlen=101)

    def add(self, seconds: float, steps: int = 1) -> None:
        """Account for `steps` steps that took `seconds` together."""
        self.training_seconds += seconds
        self.recent.append(seconds / steps)
        if self.settled is None:
            self.early += [seconds / steps] * steps
            if len(self.early) >= SETTLED and sum(self.early) >= SETTLED_SECONDS:
                self.settled = statistics.median(self.early[WARM:])

    def median(self) -> float | None:
        """Seconds a step now; None before the first."""
        return statistics.median(self.recent) if self.recent else self.settled

    def steps_in(self, training_seconds: float) -> int | None:
        """The step of a life at which so many seconds are trained; None until the step time is settled."""
        return None if self.settled is None else max(1, round(training_seconds / self.settled))

    def state(self) -> dict[str, Any]:
        early = self.early if self.settled is None else []
        return {"training_seconds": self.training_seconds, "settled": self.settled, "early": early}
