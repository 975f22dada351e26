"""A search rehearsed: the planner itself, in virtual time, with trials that cost what is expected and learn as most do.

No second formula: what starts, climbs and ends is decided by the very planner, contests and ledger of a search.
"""

import heapq
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from model.training.evaluation import Evaluation
from model.training.segment import Progress
from tune.search.engine import Planner
from tune.search.records import Assignment

FLOOR_NATS, NATS, POWER = 1.0, 5.0, 0.25
"""Losses fall from the sum of the first two towards the first, by a power law of the training seconds."""
LUCK = 0.1
"""Standard deviation of what sets one trial's loss above or below another's, as a share of it."""


class Clock:
    """Virtual seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Moved(Protocol):
    """What the rehearsal moves on from one report to the next: the planner's clock reads it."""

    now: float


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Device-seconds: of a slot until it trains, of a stretch beside its steps, of a step of (family, config)."""

    start_up: float
    overhead: float
    step: Callable[[str, Mapping[str, Any]], float]


def rehearse(planner: Planner, clock: Moved, costs: Costs) -> None:
    """Play a search to its end. Afterwards its journal, ledger and contests are as a real one would leave them."""
    ends: list[tuple[float, int, Assignment, Progress]] = []
    while True:
        while (assignment := planner.next()) is not None:
            progress = _stretch(planner, assignment, costs)
            end = assignment.opened + min(assignment.seconds, sum(progress.seconds.values()))
            heapq.heappush(ends, (end, assignment.lease, assignment, progress))
        if planner.done:
            return
        clock.now, _, assignment, progress = heapq.heappop(ends)
        predicted = planner.families[assignment.family].memory.predicted(assignment.config, assignment.micro_batches)
        planner.report(assignment.trial, asdict(progress) | {"limited_bytes": round(predicted)})


def _stretch(planner: Planner, assignment: Assignment, costs: Costs) -> Progress:
    """How a lease ends: at its goal, at its own end where that comes first, or, for the last stretch, there anyway."""
    run, step = planner.running[assignment.trial], costs.step(assignment.family, assignment.config)
    start = costs.start_up if run.fresh_slot else 0.0
    room = max(0, int((assignment.seconds - start - costs.overhead) / step))
    steps, seconds = assignment.steps, assignment.training_seconds
    if steps is None and seconds is not None:
        steps = round(seconds / step)
    fills = steps is None or steps - run.steps_before > room
    trained = room if steps is None or fills else steps - run.steps_before
    ended = "final" if assignment.rung is None else "lease" if fills else "rung"
    whole = run.steps_before + max(1, trained)
    loss = _loss(assignment.trial, whole * step)
    rest = assignment.seconds - start - trained * step if fills else costs.overhead
    return Progress(
        steps=whole, tokens=0, train_loss=loss, learning_rate=0.0, gradient_norm=0.0, tokens_per_second=0.0,
        step_seconds=step, training_seconds=whole * step, memory_bytes=0, parameters=0,
        micro_batches=assignment.micro_batches, ran_out=False, ended=ended,
        seconds={"start": start, "steps": trained * step, "evaluation": rest},
        valid=Evaluation(
            loss=loss, perplexity=math.exp(loss), bits_per_character=0.0, nats_per_word=0.0, accuracy=0.0, tokens=0,
            seconds=0.0,
        ),
    )  # fmt: skip


def _loss(trial: str, training_seconds: float) -> float:
    """A plausible one: trials differ, each gets better, and by less and less."""
    luck = random.Random(trial).gauss(1.0, LUCK)
    return FLOOR_NATS + NATS * luck * (1.0 + training_seconds) ** -POWER
