"""Prices: what the next stretch of a trial will cost, learned from what the stretches before it did cost."""

import statistics

from tune.search.records import Running

FIRST_OVERHEAD_SECONDS = 1.5
"""Of a stretch, until the first one was paid: loading, hand-over, evaluation and checkpoint."""
FIRST_START_UP_SECONDS = 6.0
"""Of a slot, until the first one came up: the process, its imports, its first batch."""


class Prices:
    """What stretches of one family cost, in device-seconds.

    A stretch costs its training (the ladder says how long) and an overhead: loading, evaluation, checkpoint. A trial's
    own last overhead is the best guess of its next; for a new trial it is the median of the others' last ones.
    """

    def __init__(self) -> None:
        self._overheads: dict[str, float] = {}
        self._slowdowns: dict[str, float] = {}
        self._start_ups: list[float] = []

    def learn(self, run: Running, *, slowdown: float) -> None:
        """What a lease was charged; `slowdown`: its seconds a step over those that fixed the trial's rungs."""
        trial, start_up = run.assignment.trial, 0.0
        if run.fresh_slot:
            start_up = run.charged.get("start", 0.0)
            self._start_ups.append(start_up)
        self._overheads[trial] = sum(run.charged.values()) - run.charged.get("steps", 0.0) - start_up
        self._slowdowns[trial] = slowdown

    def forget(self) -> None:
        """What was learned was of another processor."""
        for known in (self._overheads, self._slowdowns, self._start_ups):
            known.clear()

    def state(self) -> list[object]:
        """All that was learned, as plain data."""
        return [self._overheads, self._slowdowns, self._start_ups]

    @property
    def start_up(self) -> float:
        """Device-seconds until a new slot trains."""
        return statistics.median(self._start_ups) if self._start_ups else FIRST_START_UP_SECONDS

    def stretch(self, trial: str | None, training_seconds: float) -> float:
        """Expected device-seconds of a stretch that trains a trial (None: a new one) for `training_seconds` more."""
        return training_seconds * self._slowdowns.get(trial or "", 1.0) + self._overhead(trial)

    def _overhead(self, trial: str | None) -> float:
        if trial in self._overheads:
            return self._overheads[trial]
        return statistics.median(self._overheads.values()) if self._overheads else FIRST_OVERHEAD_SECONDS
