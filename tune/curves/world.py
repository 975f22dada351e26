"""Virtual time: slots that train recorded curves under a cap that nothing passes; and our own successive halving in
it.
"""

import heapq
import math
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from tune.curves.recorded import Curve
from tune.curves.supply import Supply
from tune.search.successive_halving import Contest, Finish, HandBack, Left, Promote, Start, Wait

TINY = 1e-6
"""Seconds by which sums of seconds may be off."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Where a replay runs: slots, seconds to bring one up and to put another trial on it, the deadline, and memory."""

    workers: int = 1
    start_up: float = 5.0
    thaw: float = 1.0
    deadline: float = math.inf
    memory_limit: float = math.inf


@dataclass(frozen=True)
class Stretch:
    """Train a trial up to a number of reports of its life."""

    trial: int
    reports: int


class Player(Protocol):
    """A scheduler in the replay: asked when a slot is free, told when a stretch has ended."""

    def next(self, world: "World") -> Stretch | Literal["hand back", "wait"]:
        """What the free slot does; to wait keeps it until a stretch elsewhere has ended."""

    def told(self, trial: int, reports: int, fits: bool) -> None:
        """A stretch ended: the trial has that many reports. fits is False where it ran out of memory at once."""


@dataclass(order=True)
class Running:
    """A stretch on a slot: when its training begins and ends."""

    end: float
    order: int
    slot: int = field(compare=False)
    begin: float = field(compare=False)
    stretch: Stretch = field(compare=False)


class World:
    """The clock, the account, and how many reports each trial has given.

    stretches: how many were begun. free, slot_is_open: what a player that is asked should know. spent: device-seconds
    charged; of these after_divergence, and unfit on what ran out of memory.
    """

    def __init__(self, curves: Sequence[Curve], cap: float, machine: Machine, supply: Supply) -> None:
        self.curves, self.cap, self.machine, self.supply = curves, cap, machine, supply
        self.trials: list[int] = []
        self.now = self.spent = self.after_divergence = self.unfit = 0.0
        self.free, self.slot_is_open = machine.workers, False
        self.reports: dict[int, int] = {}
        self._open: set[int] = set()
        self._last: dict[int, int] = {}
        self._running: list[Running] = []
        self.stretches = 0

    def curve(self, trial: int) -> Curve:
        """What a trial trains."""
        return self.curves[self.trials[trial]]

    def draw(self) -> int | None:
        """A new trial, None where each configuration has been handed out."""
        index = self.supply.take()
        if index is None:
            return None
        self.trials.append(index)
        return len(self.trials) - 1

    def waits_for(self) -> Curve:
        """What the next new trial will train."""
        index = self.supply.peek()
        assert index is not None
        return self.curves[index]

    def play(self, player: Player) -> None:
        """Until the cap, the deadline, or until every slot was handed back."""
        waiting = deque(range(self.machine.workers))
        while True:
            while waiting:
                slot = waiting.popleft()
                self.free, self.slot_is_open = len(waiting) + 1, slot in self._open
                move = player.next(self)
                if move == "wait":
                    waiting.appendleft(slot)
                    break
                if move == "hand back":
                    self._hand_back(slot)
                else:
                    self._begin(slot, move)
            if not self._running:
                return
            run = self._running[0]
            stop = min(self.machine.deadline, self.now + (self.cap - self.spent) / len(self._open))
            if run.end > stop + TINY:
                self._cut(stop)
                return
            heapq.heappop(self._running)
            self._pass(run.end)
            self._train(run.stretch, run.stretch.reports)
            player.told(run.stretch.trial, run.stretch.reports, self._fits(run.stretch.trial))
            waiting.appendleft(run.slot)

    def best(self) -> float:
        """The lowest loss reported; inf where there is none."""
        return min(
            (self.curve(trial).best[count - 1] for trial, count in self.reports.items() if count), default=math.inf
        )

    def _begin(self, slot: int, stretch: Stretch) -> None:
        begin = self.now
        if slot not in self._open:
            self._open.add(slot)
            begin += self.machine.start_up
        if self._last.get(slot) != stretch.trial:
            self._last[slot] = stretch.trial
            begin += self.machine.thaw
        reports = stretch.reports - self.reports.get(stretch.trial, 0)
        assert reports > 0, f"a stretch of {reports} reports"
        end = begin + (reports * self.curve(stretch.trial).seconds_per_report if self._fits(stretch.trial) else 0.0)
        self.stretches += 1
        heapq.heappush(self._running, Running(end, self.stretches, slot, begin, stretch))

    def _hand_back(self, slot: int) -> None:
        self._open.discard(slot)

    def _fits(self, trial: int) -> bool:
        return (self.curve(trial).memory_bytes or 0.0) <= self.machine.memory_limit

    def _pass(self, until: float) -> None:
        self.spent += len(self._open) * (until - self.now)
        self.now = until

    def _train(self, stretch: Stretch, reports: int) -> None:
        if not self._fits(stretch.trial):
            self.unfit += self.machine.thaw
            return
        curve, before = self.curve(stretch.trial), self.reports.get(stretch.trial, 0)
        self.reports[stretch.trial] = reports
        self.supply.tell(self.trials[stretch.trial], reports * curve.steps_per_report, curve.losses[reports - 1])
        self.after_divergence += max(0, reports - max(before, curve.sound + 1)) * curve.seconds_per_report

    def _cut(self, stop: float) -> None:
        """The end: what was reported before counts."""
        self._pass(max(stop, self.now))
        for run in self._running:
            before, curve = self.reports.get(run.stretch.trial, 0), self.curve(run.stretch.trial)
            done = int(max(0.0, stop - run.begin) / curve.seconds_per_report + TINY)
            if done:
                self._train(run.stretch, min(run.stretch.reports, before + done))


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
