"""The simulator: the search engine itself in virtual time, on any source of curves, its store in memory.

What starts, climbs and ends is decided by the very engine, policies and ledger of a search; only training is made up,
or was recorded.
"""

import heapq
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from model.training.evaluation import Evaluation
from model.training.segment import Progress
from tune.search.engine import Planner
from tune.search.records import Assignment


class Course(Protocol):
    """How one configuration trains.

    step_seconds: of a slot; most: steps of its life (inf: no end), diverges: those before its loss is not finite (inf:
    never); report_every: steps between two of its losses; memory_bytes: what it takes.
    """

    step_seconds: float
    most: float
    diverges: float
    report_every: float
    memory_bytes: float

    def loss(self, steps: float) -> float:
        """Validation loss in nats at a constant rate."""

    def final(self, steps: float) -> float:
        """And of a training of so many steps in all whose last part was a decay."""


@dataclass(frozen=True, kw_only=True)
class PowerLaw:
    """A loss that falls from `floor` + `nats` towards `floor` by a power of the training seconds."""

    step_seconds: float
    floor: float = 1.0
    nats: float = 5.0
    power: float = 0.25
    most: float = math.inf
    diverges: float = math.inf
    report_every: float = 1.0
    memory_bytes: float = 0.0

    def loss(self, steps: float) -> float:
        """A plausible one: it gets better, and by less and less."""
        return self.floor + self.nats * (1.0 + steps * self.step_seconds) ** -self.power

    def final(self, steps: float) -> float:
        """The same: what a decay gives is no part of it."""
        return self.loss(steps)


class Clock:
    """Virtual seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Seconds of a slot: until a new one trains, of a segment beside its steps, and of that where the slot had another
    trial before; memory_limit: bytes of a trial."""

    start_up: float
    overhead: float
    thaw: float = 0.0
    memory_limit: float = math.inf


CourseOf = Callable[[str, str, Mapping[str, Any]], Course]
"""Of a trial, its family and its configuration."""


def play(planner: Planner, clock: Clock, costs: Costs, course_of: CourseOf) -> None:
    """Play a search to its end. Afterwards its store, ledger and policies are as a real one would leave them."""
    ends: list[tuple[float, int, Assignment, Progress]] = []
    on_slot: dict[int, str] = {}
    while True:
        while (assignment := planner.next()) is not None:
            course = course_of(assignment.trial, assignment.family, assignment.config)
            thaw = costs.thaw if on_slot.get(assignment.slot) != assignment.trial else 0.0
            progress = _segment(planner, assignment, course, costs, thaw)
            on_slot[assignment.slot] = assignment.trial
            end = assignment.opened + min(assignment.seconds, sum(progress.seconds.values()))
            heapq.heappush(ends, (end, assignment.lease, assignment, progress))
        if planner.done:
            return
        clock.now, _, assignment, progress = heapq.heappop(ends)
        predicted = planner.families[assignment.family].memory.predicted(assignment.config, assignment.micro_batches)
        planner.report(assignment.trial, asdict(progress) | {"limited_bytes": round(predicted)})


def _segment(planner: Planner, assignment: Assignment, course: Course, costs: Costs, thaw: float) -> Progress:
    """How a lease ends: at its goal, at its own end where that comes first, or, for a last segment, there anyway.

    Nothing is known of a loss before a trial's first report, so no first segment ends before that.
    """
    run, step = planner.running[assignment.trial], course.step_seconds
    start = costs.start_up if run.fresh_slot else 0.0
    room = max(0, int((assignment.seconds - start - thaw - costs.overhead) / step + 1e-9))
    goal: float = math.inf
    if assignment.steps is not None:
        goal = assignment.steps
    elif assignment.training_seconds is not None:
        goal = round(assignment.training_seconds / step)
    goal = max(goal, run.steps_before + 1.0, course.report_every)
    end = min(goal, course.most, course.diverges, run.steps_before + room)
    whole = max(run.steps_before, int(end))
    trained = whole - run.steps_before
    ended = "rung"
    if course.memory_bytes > costs.memory_limit:
        ended = "memory"
    elif whole >= course.diverges:
        ended = "diverged"
    elif whole >= course.most or assignment.rung is None:
        ended = "final"
    elif whole < goal:
        ended = "lease"
    loss = course.final(whole) if ended == "final" else course.loss(whole)
    fills = whole == run.steps_before + room and ended in ("final", "lease")
    rest = assignment.seconds - start - thaw - trained * step if fills else costs.overhead
    used = {"start": start, "steps": trained * step, "evaluation": rest + thaw}
    if ended == "memory":
        used = {"start": start, "evaluation": thaw}
    return Progress(
        steps=whole, tokens=0, train_loss=loss, learning_rate=0.0, gradient_norm=0.0, tokens_per_second=0.0,
        step_seconds=step, training_seconds=whole * step, memory_bytes=round(course.memory_bytes), parameters=0,
        micro_batches=assignment.micro_batches, ran_out=False, ended=ended,
        seconds={what: seconds for what, seconds in used.items() if seconds},
        valid=Evaluation(
            loss=loss, perplexity=math.exp(min(loss, 700.0)), bits_per_character=0.0, nats_per_word=0.0, accuracy=0.0,
            tokens=0, seconds=0.0,
        ) if math.isfinite(loss) and whole >= course.report_every else None,
    )  # fmt: skip
