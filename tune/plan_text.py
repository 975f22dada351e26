"""A plan as lines of text."""

import math
from collections.abc import Iterator
from datetime import datetime, timedelta

from tune.dimensions import label
from tune.duration import duration_text
from tune.forms import counts_text
from tune.plan import FamilyPlan, MemoryPlan, Plan
from tune.prices import FIRST_OVERHEAD_SECONDS, FIRST_START_UP_SECONDS
from tune.sizes import bytes_text


def plan_lines(plan: Plan) -> Iterator[str]:
    """What a user wants to know before they spend: who starts, what it costs, when it ends."""
    settings, spending = plan.settings, plan.spending
    cap, spent = settings.budget, settings.budget - spending["left over"]
    started = sum(family.started for family in plan.families.values())
    end = datetime.now() + timedelta(seconds=plan.wall)
    yield f"A plan of {duration_text(cap)} on {plan.slots} x {plan.device}. Nothing was started or written."
    yield f"started      {started} trials, with seed {settings.seed}"
    yield f"spent        {_whole(spent)} of {duration_text(cap)} ({100 * spent / cap:.1f} %)"
    yield "  of that    " + ", ".join(f"{what} {_whole(seconds)}" for what, seconds in spending.items())
    yield f"wall time    {_whole(plan.wall)}; begun now it ends at {end:%H:%M}"
    if plan.scaling:
        counts, kept = counts_text(settings.scale_winner), _whole(spending["scaling"])
        yield f"scaling      {kept} of it kept for the winner on {counts} devices: its last {_whole(plan.scaling)}"
    for name, family in plan.families.items():
        yield ""
        yield from _family_lines(name, family, by_price=settings.rungs == "tokens")
    yield ""
    beside = f"a stretch costs {FIRST_OVERHEAD_SECONDS:g}s beside its steps, a slot's start {FIRST_START_UP_SECONDS:g}s"
    yield "Steps were measured here, a few of each size; beside other work on the machine they take longer."
    yield f"As a search expects at first, {beside}."


def _family_lines(name: str, family: FamilyPlan, *, by_price: bool) -> Iterator[str]:
    share = family.explore + family.kept + family.start_up + family.beside
    parts = f"{_whole(family.explore)} for rungs, {_whole(family.kept)} kept for the last stretch"
    beside = f", {_whole(family.beside)} beside them by the deadline" if family.beside >= 1 else ""
    yield f"{name}: {_whole(share)} = {parts}, {_whole(family.start_up)} for start-up{beside}; {family.started} trials"
    yield f"  {'rung':<12} {'training':>10} {'price':>10} {'pays for':>10} {'trials':>10} {'in all':>10}"
    for number, rung in enumerate(family.rungs):
        yield (
            f"  {number:<12} {_tenths(rung.training):>10} {_tenths(rung.price):>10} {rung.pays_for:>10.1f} "
            f"{rung.trials:>10} {_whole(rung.seconds):>10}"
        )
    yield f"  {'last stretch':<12} {'':>10} {'':>10} {'':>10} {family.finishers:>10} {_whole(family.finish):>10}"
    what = "price" if by_price else "steps"
    titles = "".join(f"{f'{what} {number}':>10}" for number in range(len(family.rungs)))
    yield f"  {'size':<24} {'parameters':>12} {'a step':>10}{titles}"
    for size in family.sizes:
        values = map(_tenths, size.prices) if by_price else (f"{steps:,}" for steps in size.steps)
        cells = "".join(f"{value:>10}" for value in values)
        yield f"  {label(size.config):<24} {size.parameters:>12,} {1000 * size.step:>7.1f} ms{cells}"
    yield f"  memory: {_memory_text(family.memory)}"


def _memory_text(memory: MemoryPlan) -> str:
    largest = f"the largest of these trials takes about {bytes_text(memory.largest)}"
    if math.isinf(memory.limit):
        return f"{largest}; there is no limit"
    if not memory.unfit:
        return f"{largest}; all {memory.configs:,} configurations fit in {bytes_text(memory.limit)}"
    unfit = f"{len(memory.unfit):,} of {memory.configs:,} configurations do not fit in {bytes_text(memory.limit)}"
    return f"{largest}; {unfit}, such as {label(memory.unfit[0])} and {label(memory.unfit[-1])}"


def _whole(seconds: float) -> str:
    return duration_text(round(seconds))


def _tenths(seconds: float) -> str:
    return duration_text(round(seconds, 1))
