"""The simulator: the search engine itself in virtual time, on any source of learning curves, with its store in memory.

What starts, goes on and ends is decided by the very engine, policies and ledger of a search; only training is made up,
or was recorded.
"""

import heapq
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol, Self

from tune.reports import ENDS, TURN_WINDOW, WATCH_POINTS, WATCH_SHARE, Ended, Evaluation, Report
from tune.search.engine import Engine
from tune.search_space import Value
from tune.store.accounting import Assignment

PAST_SHARES = TURN_WINDOW * WATCH_SHARE, TURN_WINDOW / WATCH_POINTS
"""Further training after which a trial is seen to be past its best: as a share of that before, and of its lease, the
lesser of the two."""


class LearningCurve(Protocol):
    """The training of one configuration, made up or recorded.

    step_seconds: seconds of a slot for one step; max_steps: steps of its own life, inf: it has no end; diverges: steps
    after which its loss is no longer finite, inf: it stays finite; turning_steps: steps after which its loss rises,
    inf: it only falls; report_every: steps between two reports of its loss; memory_bytes: that it takes; parameters:
    weights of its model, 0: not known.

    loss: the validation loss in nats at a constant rate; final: the same after a training of so many steps in all whose
    last part was a decay.
    """

    @property
    def step_seconds(self) -> float: ...
    @property
    def max_steps(self) -> float: ...
    @property
    def diverges(self) -> float: ...
    @property
    def turning_steps(self) -> float: ...
    @property
    def report_every(self) -> float: ...
    @property
    def memory_bytes(self) -> float: ...
    @property
    def parameters(self) -> int: ...
    def loss(self, steps: float) -> float: ...
    def final(self, steps: float) -> float: ...


@dataclass(frozen=True, kw_only=True)
class PowerLaw:
    """A loss that falls from `floor` + `nats` towards `floor` by a power of the training seconds until it turns; then
    it rises as it fell, in logs of the steps."""

    step_seconds: float
    floor: float = 1.0
    nats: float = 5.0
    power: float = 0.25
    max_steps: float = math.inf
    diverges: float = math.inf
    turning_steps: float = math.inf
    report_every: float = 1.0
    memory_bytes: float = 0.0
    parameters: int = 0

    def loss(self, steps: float) -> float:
        """Return a plausible loss: it gets better, and by less and less."""
        steps = min(steps, self.turning_steps * self.turning_steps / max(steps, 1.0))
        return self.floor + self.nats * math.pow(1.0 + steps * self.step_seconds, -self.power)

    def final(self, steps: float) -> float:
        """Return the same: what a decay gives is left out."""
        return self.loss(steps)


class Clock:
    """A clock of virtual seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Seconds of a slot: until a new one trains (start_up), of a segment beside its steps (overhead), and more of that
    where the slot had another trial before (thaw). memory_limit: bytes of a trial."""

    start_up: float
    overhead: float
    thaw: float = 0.0
    memory_limit: float = math.inf


LearningCurveOf = Callable[[str, str, Mapping[str, Value]], LearningCurve]
"""Function that returns the course of a trial, from its name, its family and its configuration."""


class Simulation:
    """A search in virtual time. Afterwards its store, ledger and policies are as a real one would leave them.

    assignments: of all leases so far; events: the ends to come of the leases in use, (time, number, assignment). A
    subclass may override what becomes of a lease.
    """

    def __init__(self, engine: Engine, clock: Clock, costs: Costs, course_of: LearningCurveOf) -> None:
        self.engine, self.clock, self.costs, self.course_of = engine, clock, costs, course_of
        self.assignments: list[Assignment] = []
        self.events: list[tuple[float, int, Assignment]] = []
        self._on_slot: dict[int, str] = {}
        self._outcomes: dict[int, Report | None] = {}

    def run(self, reports: float = math.inf) -> Self:
        """Run to the end of the search, or until so many leases ended; called again it goes on. Returns itself."""
        while reports > 0:
            while self.begin():
                pass
            if self.engine.is_done:
                return self
            self.go_on()
            reports -= 1
        return self

    def begin(self) -> bool:
        """Begin what the engine decides for a free slot, if anything."""
        if (assignment := self.engine.next_assignment()) is None:
            return False
        self.assignments.append(assignment)
        end = self.clock.now + self.length(assignment)
        heapq.heappush(self.events, (end, len(self.assignments), assignment))
        return True

    def go_on(self) -> None:
        """Go on to the end of the next lease."""
        self.clock.now, _, assignment = heapq.heappop(self.events)
        self.end(assignment)

    def length(self, assignment: Assignment) -> float:
        """Return the seconds of a slot that a process uses of a lease that begins now."""
        report, costs = self.segment(assignment), self.costs
        self._outcomes[assignment.lease], self._on_slot[assignment.slot] = report, assignment.trial
        if report is None:
            fresh = self.engine.running[assignment.trial].fresh_slot
            return min(assignment.seconds, costs.thaw + (costs.start_up if fresh else 0.0))
        return min(assignment.seconds, sum(report.seconds.values()))

    def end(self, assignment: Assignment) -> None:
        """Tell the engine what the process of a lease says at its end."""
        report, memory = self._outcomes.pop(assignment.lease), self.engine.families[assignment.family].memory
        if report is None:
            self.engine.on_out_of_memory(assignment.trial)
        else:
            predicted = memory.predicted(assignment.config, assignment.micro_batches)
            self.engine.on_report(assignment.trial, replace(report, limited_bytes=round(predicted)))

    def segment(self, assignment: Assignment) -> Report | None:
        """Return the report with which a lease ends: at its goal, or before that where the trial's own life or the
        lease ends; a last segment is final wherever it ends. None: memory ran out.

        Nothing is known of a loss before a trial's first report, so no first segment has an earlier goal.
        """
        course, costs = self.course_of(assignment.trial, assignment.family, assignment.config), self.costs
        if course.memory_bytes > costs.memory_limit:
            return None
        run, step = self.engine.running[assignment.trial], course.step_seconds
        start = costs.start_up if run.fresh_slot else 0.0
        overhead = costs.overhead + (0.0 if self._on_slot.get(assignment.slot) == assignment.trial else costs.thaw)
        room = max(0, int((assignment.seconds - start - overhead) / step + 1e-9))
        goal: float = math.inf
        if assignment.steps is not None:
            goal = assignment.steps
        elif assignment.training_seconds is not None:
            goal = round(assignment.training_seconds / step)
        goal = math.ceil(max(goal, run.steps_before + 1.0, course.report_every) - 1e-9) if math.isfinite(goal) else goal
        past = math.inf
        if math.isfinite(course.turning_steps):
            of_training, of_lease = PAST_SHARES
            more = min(of_training * course.turning_steps, of_lease * assignment.seconds / step)
            past = max(run.steps_before + 1.0, math.ceil(course.turning_steps + more))
        whole = max(run.steps_before, int(min(goal, course.max_steps, course.diverges, run.steps_before + room, past)))
        ended: Ended
        if whole >= course.diverges:
            ended = "diverged"
        elif whole >= past:
            ended = "turned"
        elif whole >= course.max_steps or assignment.rung is None:
            ended = "final"
        else:
            ended = "rung" if whole >= goal else "lease"
        training = (whole - run.steps_before) * step
        if ended in ("final", "lease") and whole == run.steps_before + room:
            overhead = assignment.seconds - start - training
        loss = course.final(whole) if ended == "final" else course.loss(whole)
        if ended in ENDS and whole > course.turning_steps:
            loss = min(loss, course.loss(course.turning_steps))
        return Report(
            steps=whole, tokens=whole, parameters=course.parameters, training_seconds=whole * step, train_loss=loss,
            step_seconds=step,
            memory_bytes=round(course.memory_bytes), micro_batches=assignment.micro_batches, ended=ended,
            seconds={"start": start, "steps": training, "evaluation": overhead},
            valid=Evaluation(loss=loss) if course.report_every <= whole < course.diverges else None,
        )  # fmt: skip
