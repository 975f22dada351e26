"""The standings of one family's trials: what each reached, who leads a rung, and what a rung is worth."""

import heapq
import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Literal

TIE = 0.003
"""Losses closer than this, in nats, are the same: the noise of a seed."""
Trial = Hashable
Entry = tuple[bool, float, str, Trial]


@dataclass(kw_only=True)
class Standing:
    """One trial: its loss at each rung it reached, the rung it is on its way to, and what it is doing.

    past_best: the last rung made it worse. lowest: its lowest loss at any rung. telling: its drop over the last rung
    tells how it will go on.
    """

    losses: dict[int, float] = field(default_factory=dict)
    rung: int = -1
    goal: int | None = None
    state: Literal["running", "paused", "finished", "ended"] = "paused"
    past_best: bool = False
    lowest: float = math.inf
    telling: bool = True

    def expected(self, falls: float) -> float:
        """Its loss, extrapolated by so many times its last drop where that is known and tells."""
        loss, before = self.losses[self.rung], self.losses.get(self.rung - 1)
        return loss if before is None or not self.telling else loss - falls * max(0.0, before - loss)


class Standings:
    """All trials of a family, compared by the losses that are expected of them. Each event costs O(log n).

    falls(rung): how many times its drop over a rung a loss is expected to fall from there to the end.
    """

    def __init__(self, falls: Callable[[int], float]) -> None:
        self._falls = falls
        self.trials: dict[Trial, Standing] = {}
        self._flying: dict[int, int] = {}
        self._better: dict[int, int] = {}
        self._worse: dict[int, int] = {}
        self._waiting: dict[int, list[Entry]] = {}
        self._lowest: list[tuple[float, str, int, Trial]] = []

    def depart(self, trial: Trial, goal: int | None) -> bool:
        """A trial is on its way to a rung (None: on its last stretch). False where it already was."""
        standing = self.trials.setdefault(trial, Standing())
        if standing.state == "running" and standing.goal == goal:
            return False
        self._arrive(standing)
        standing.goal, standing.state = goal, "running"
        if goal is not None:
            self._flying[goal] = self._flying.get(goal, 0) + 1
        return True

    def pause(self, trial: Trial) -> None:
        """A trial waits where it was."""
        standing = self.trials[trial]
        self._arrive(standing)
        standing.state = "paused"
        if standing.rung >= 0:
            heapq.heappush(self._waiting.setdefault(standing.rung, []), self._entry(trial))
            heapq.heappush(self._lowest, (standing.lowest, str(trial), standing.rung, trial))

    def record(self, trial: Trial, rung: int, loss: float, *, telling: bool) -> None:
        """A trial's loss at a rung, where it waits. One that is not finite ends it."""
        if not math.isfinite(loss):
            self.close(trial, "ended")
            return
        standing = self.trials[trial]
        standing.losses[rung], standing.rung, standing.telling = loss, rung, telling
        standing.lowest = min(standing.lowest, loss)
        before = standing.losses.get(rung - 1)
        if before is not None:
            standing.past_best = loss > before + TIE
            counts = self._better if loss < before - TIE else self._worse
            counts[rung] = counts.get(rung, 0) + 1
        self.pause(trial)

    def close(self, trial: Trial, state: Literal["finished", "ended"]) -> None:
        """A trial had its last stretch, or is over."""
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

    def first(self, rung: int, *, past_best: bool = False) -> Trial | None:
        """The most promising trial that waits at a rung; one that is past its best only where asked for."""
        waiting = self._waiting.get(rung, [])
        while waiting and not self._waits(waiting[0][-1], rung):
            heapq.heappop(waiting)
        return waiting[0][-1] if waiting and (past_best or not waiting[0][0]) else None

    def leader(self, *, past_best: bool = False) -> Trial | None:
        """The most promising of all trials that wait."""
        firsts = [self.first(rung, past_best=past_best) for rung in self._waiting]
        return min((trial for trial in firsts if trial is not None), key=self._entry, default=None)

    def best(self) -> Trial | None:
        """The trial that had the lowest loss, of those that wait, whether or not it is past its best."""
        while self._lowest and not self._waits(self._lowest[0][-1], self._lowest[0][-2]):
            heapq.heappop(self._lowest)
        return self._lowest[0][-1] if self._lowest else None

    def _waits(self, trial: Trial, rung: int) -> bool:
        standing = self.trials[trial]
        return standing.state == "paused" and standing.rung == rung

    def _entry(self, trial: Trial) -> Entry:
        standing = self.trials[trial]
        return standing.past_best, standing.expected(self._falls(standing.rung)), str(trial), trial

    def _arrive(self, standing: Standing) -> None:
        if standing.state == "running" and standing.goal is not None:
            self._flying[standing.goal] -= 1
        standing.goal = None
