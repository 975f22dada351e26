"""The device-seconds of one stretch: what used them, and whether one thing more still fits."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

PHASES = ("start", "compile", "steps", "evaluation", "checkpoint", "idle")
MARGIN = 1.5    # nothing begins unless this many times its longest duration so far is left


class Lease:
    """Charges the clock to one phase at a time, so that the phases always add up to the clock's difference."""

    def __init__(self, seconds: float, clock: Callable[[], float]):
        self.clock = clock
        self.mark = clock()
        self.ends = self.mark + seconds
        self.phase = PHASES[0]
        self.used = dict.fromkeys(PHASES, 0.0)
        self.hints: dict[str, float] = {}    # longest, on earlier leases: until this one has measured its own
        self.longest: dict[str, float] = {}

    def enter(self, phase: str) -> None:
        """From now on the time is this phase's."""
        now = self.clock()
        self.used[self.phase] += now - self.mark
        self.mark, self.phase = now, phase

    def take(self) -> dict[str, float]:
        """Seconds by phase since they were last taken."""
        self.enter(self.phase)
        taken, self.used = self.used, dict.fromkeys(PHASES, 0.0)
        return taken

    def left(self) -> float:
        return self.ends - self.clock()

    def observe(self, kind: str, seconds: float) -> None:
        self.longest[kind] = max(seconds, self.longest.get(kind, 0.0))

    def expected(self, kind: str, guess: float) -> float:
        """The longest so far on this lease, else on an earlier one, else the guess."""
        return self.longest.get(kind, self.hints.get(kind, guess))

    def measured(self) -> dict[str, float]:
        """The hints for the next lease."""
        return self.hints | self.longest

    @contextmanager
    def spent_on(self, phase: str) -> Iterator[None]:
        """The time inside is `phase`'s; afterwards the phase is what it was."""
        before = self.phase
        self.enter(phase)
        try:
            yield
        finally:
            self.enter(before)
