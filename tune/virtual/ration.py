"""Our own contest in virtual time."""

import math
from collections.abc import Hashable
from typing import Literal

from tune.rungs import Contest, Finish, HandBack, Left, Promote, Start, Wait
from tune.virtual.curves import Curve
from tune.virtual.world import Stretch, World


class Ration:
    """The contest of the search, told what the curves give; configurations come in the order of the curves.

    All trials are taken to end where the longest curve does: none knows its end before it comes.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self._steps = max(len(curve.losses) * curve.steps_per_report for curve in world.curves)
        unit = max(curve.steps_per_report for curve in world.curves)
        self._mean = sum(self._to_end(curve) for curve in world.curves) / len(world.curves)
        self._ends: dict[int, float] = {}
        self._ends_sum = 0.0
        machine = world.machine
        self.contest = Contest(
            seconds=world.cap, slots=machine.workers, price=self._price, shortest=self._mean * unit / self._steps,
            overhead=machine.thaw, start_up=machine.start_up, horizon=self._horizon, configs=len(world.curves),
            wall=machine.deadline - machine.start_up,
        )  # fmt: skip

    def next(self, world: World) -> Stretch | Literal["hand back", "wait"]:
        """What the contest decides for a free slot."""
        start_up = 0.0 if world.slot_is_open else world.machine.start_up
        reserved = self._ends_sum - len(self._ends) * world.now
        left = Left(
            seconds=world.cap - world.spent - reserved - start_up,
            slots=world.free,
            running=len(self._ends),
            wall=None if math.isinf(world.machine.deadline) else world.machine.deadline - world.now - start_up,
        )
        while True:
            move = self.contest.next(left)
            if isinstance(move, HandBack | Wait):
                return "hand back" if isinstance(move, HandBack) else "wait"
            trial, reports = self._goal(move)
            if reports > world.reports.get(trial, 0):
                break
            self.contest.finished(trial, math.inf)
        self._ends[trial] = world.now + start_up + world.machine.thaw + self._training(trial, reports)
        self._ends_sum += self._ends[trial]
        return Stretch(trial, reports)

    def told(self, trial: int, reports: int, fits: bool) -> None:
        """A stretch ended."""
        self._ends_sum -= self._ends.pop(trial)
        curve, goal = self.world.curve(trial), self.contest.trials[trial].goal
        loss = curve.losses[reports - 1]
        if not fits:
            self.contest.ended(trial, "memory")
        elif not math.isfinite(loss):
            self.contest.ended(trial, "diverged")
        else:
            if goal is not None:
                self.contest.reported(trial, goal, loss)
            if goal is None or reports == len(curve.losses):
                self.contest.finished(trial, loss)

    def _goal(self, move: Start | Promote | Finish) -> tuple[int, int]:
        """The trial, and the reports of its life up to which it trains: to its end or its divergence at most."""
        if isinstance(move, Start):
            drawn = self.world.draw()
            assert drawn is not None
            trial = drawn
            self.contest.started(trial)
        else:
            assert isinstance(move.trial, int)
            trial = move.trial
        curve = self.world.curve(trial)
        if isinstance(move, Finish):
            seconds = move.seconds - self.world.machine.thaw
            reports = self.world.reports.get(trial, 0) + int(seconds / curve.seconds_per_report)
        else:
            reports = self._reports_at(trial, 0 if isinstance(move, Start) else move.rung)
        return trial, min(reports, len(curve.losses), curve.sound + 1)

    def _to_end(self, curve: Curve) -> float:
        return curve.seconds_per_report * self._steps / curve.steps_per_report

    def _horizon(self, trial: Hashable | None) -> float:
        assert trial is None or isinstance(trial, int)
        return self._mean if trial is None else self._to_end(self.world.curve(trial))

    def _reports_at(self, trial: int, rung: int) -> int:
        return _reports(self.contest.rung_seconds(rung, trial), self.world.curve(trial))

    def _price(self, trial: Hashable | None, rung: int) -> float:
        """Of a new trial: that of the next in order, whose size is known."""
        assert trial is None or isinstance(trial, int)
        if trial is not None:
            return self.world.machine.thaw + self._training(trial, self._reports_at(trial, rung))
        curve = self.world.waits_for()
        seconds = self.contest.rung_seconds(rung) * self._to_end(curve) / self._mean
        return self.world.machine.thaw + _reports(seconds, curve) * curve.seconds_per_report

    def _training(self, trial: int, reports: int) -> float:
        return (reports - self.world.reports.get(trial, 0)) * self.world.curve(trial).seconds_per_report


def _reports(seconds: float, curve: Curve) -> int:
    """Reports of at least so many seconds of training."""
    return max(1, math.ceil(seconds / curve.seconds_per_report - 1e-6))
