"""The standings of one family's trials: what each reached, who leads a rung, and what a rung is worth."""

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

TIE = 0.003
"""Losses closer than this, in nats, are the same: the noise of a seed."""
Entry = tuple[bool, float, str]


@dataclass(kw_only=True)
class Standing:
    """One trial: its loss at each rung it reached, the rung it is on its way to, and what it is doing.

    price: planned for that segment, in seconds of a slot. past_best: the last rung made it worse. telling: its drop
    over the last rung tells how it will go on.
    """

    losses: dict[int, float] = field(default_factory=dict)
    rung: int = -1
    goal: int | None = None
    price: float = 0.0
    state: Literal["running", "paused", "finished", "ended"] = "paused"
    past_best: bool = False
    telling: bool = True

    def expected(self, falls: float) -> float:
        """Its loss, extrapolated by so many times its last drop where that is known and tells."""
        loss, before = self.losses[self.rung], self.losses.get(self.rung - 1)
        return loss if before is None or not self.telling else loss - falls * max(0.0, before - loss)


class Standings:
    """All trials of a family, compared by the losses that are expected of them. Each event costs O(log n).

    falls(rung): how many times its drop over a rung a loss is expected to fall
    from there to the end; rises: whether a trial that a rung made worse waits behind the others.
    """

    def __init__(self, falls: Callable[[int], float], *, rises: bool = True) -> None:
        self._falls, self._rises = falls, rises
        self.trials: dict[str, Standing] = {}
        self._flying: dict[int, int] = {}
        self._better: dict[int, int] = {}
        self._worse: dict[int, int] = {}
        self._waiting: dict[int, list[Entry]] = {}

    def depart(self, trial: str, goal: int | None) -> bool:
        """A trial is on its way to a rung (None: on its last segment). False where it already was."""
        standing = self.trials.setdefault(trial, Standing())
        if standing.state == "running" and standing.goal == goal:
            return False
        self._arrive(standing)
        standing.goal, standing.state = goal, "running"
        if goal is not None:
            self._flying[goal] = self._flying.get(goal, 0) + 1
        return True

    def pause(self, trial: str) -> None:
        """A trial waits where it was."""
        standing = self.trials[trial]
        self._arrive(standing)
        standing.state = "paused"
        if standing.rung >= 0:
            heapq.heappush(self._waiting.setdefault(standing.rung, []), self._entry(trial))

    def again(self) -> None:
        """What is expected of trials changed: all that wait are put in order anew."""
        self._waiting.clear()
        for trial, standing in self.trials.items():
            if standing.state == "paused":
                self.pause(trial)

    def record(self, trial: str, rung: int, loss: float, *, telling: bool) -> None:
        """A trial's loss at a rung, where it waits. One that is not finite ends it."""
        if not math.isfinite(loss):
            self.close(trial, "ended")
            return
        standing = self.trials[trial]
        standing.losses[rung], standing.rung, standing.telling = loss, rung, telling
        before = standing.losses.get(rung - 1)
        if before is not None:
            standing.past_best = self._rises and loss > before + TIE
            counts = self._better if loss < before - TIE else self._worse
            counts[rung] = counts.get(rung, 0) + 1
        self.pause(trial)

    def close(self, trial: str, state: Literal["finished", "ended"]) -> None:
        """A trial had its last segment, or is over."""
        self._arrive(self.trials[trial])
        self.trials[trial].state = state

    @property
    def climbing(self) -> int:
        """How many trials are on their way to a rung, whichever."""
        return sum(self._flying.values())

    def flying(self, rung: int) -> int:
        """How many trials are on their way to a rung."""
        return self._flying.get(rung, 0)

    def gain(self, rung: int) -> float:
        """The share of trials that got better by going to a rung, one that did counted in advance."""
        better, worse = self._better.get(rung, 0), self._worse.get(rung, 0)
        return (1 + better) / (1 + better + worse)

    def first(self, rung: int, *, past_best: bool = False) -> str | None:
        """The most promising trial that waits at a rung; one that is past its best only where asked for."""
        waiting = self._waiting.get(rung, [])
        while waiting and not self._waits(waiting[0][-1], rung):
            heapq.heappop(waiting)
        return waiting[0][-1] if waiting and (past_best or not waiting[0][0]) else None

    def leader(self, *, past_best: bool = False) -> str | None:
        """The most promising of all trials that wait."""
        firsts = [self.first(rung, past_best=past_best) for rung in self._waiting]
        return min((trial for trial in firsts if trial is not None), key=self._entry, default=None)

    def _waits(self, trial: str, rung: int) -> bool:
        standing = self.trials[trial]
        return standing.state == "paused" and standing.rung == rung

    def _entry(self, trial: str) -> Entry:
        standing = self.trials[trial]
        return standing.past_best, standing.expected(self._falls(standing.rung)), trial

    def _arrive(self, standing: Standing) -> None:
        if standing.state == "running" and standing.goal is not None:
            self._flying[standing.goal] -= 1
        standing.goal = None
