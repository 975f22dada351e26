"""--plan: what a search would start, promote and spend, found by running its engine in virtual time, with a few steps
timed on this device; no device-second is spent on trials.
"""

import math
import random
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import torch

from model.cost.probe import step_seconds
from model.families import FAMILIES
from tune.assembly import make_engine, make_family, parameters
from tune.corpora import flag_of_corpus
from tune.devices import find_devices
from tune.own_space import OwnSpace
from tune.recipe import (
    LEAST_TOKENS_A_WEIGHT,
    MOST_EPOCHS,
    MOST_TOKENS_A_WEIGHT,
    Recipe,
    StepPrices,
    launches,
    unused_settings,
)
from tune.search.earlier import WarmStart
from tune.search.engine import Engine
from tune.search.family import Family, TrialRecord
from tune.search.memory_model import MemoryModel
from tune.search.simulator import Clock, Costs, PowerLaw, Simulation
from tune.search.suggest import Suggester
from tune.search_context import SearchContext, make_search_context
from tune.search_space import PER_LAYER, Space, label, layer_weights
from tune.settings import Settings
from tune.store.journal import Journal
from tune.store.queries import IS_CONFIRM_TRIAL_SQL, best_so_far
from tune.units import bytes_text, counted, duration_text, money_text, whole_text


class Speeds:
    """Step seconds of one family on this text and device; nothing is measured until `measure` is called."""

    def __init__(self, context: SearchContext, family: str) -> None:
        self._context, self._family, self._data = context, family, context.data[family]
        self._measured, self._seen = dict[float, float](), list[tuple[float, float]]()

    def measure(self, config: Mapping[str, Any], micro_batches: int) -> float:
        """Return the seconds of a step in so many micro-batches, from a few real steps."""
        device = torch.device(self._context.devices.kind)
        taken = step_seconds(
            self._context.config(self._family, config), self._data, device, micro_batches=micro_batches
        )
        seconds = self._measured[self.flops(config)] = statistics.median(taken[len(taken) // 2 :])
        if device.type == "cuda":
            launch = seconds / micro_batches / self.launches(config) if self.launches(config) else 0.0
            self._seen.append((launch, self.flops(config) / seconds))
        return seconds

    def prices(self) -> StepPrices | None:
        """Return the prices of a GPU's steps: the least launch and the most FLOP/s that were measured; None for a core,
        which has no launches, and whose FLOP/s depend on the size."""
        if not self._seen:
            return None
        launch, flops = zip(*self._seen, strict=True)
        return StepPrices(flops=max(flops), launch_seconds=min(launch))

    def expected(self, config: Mapping[str, Any]) -> float:
        """Return the seconds of a step by the prices; without prices those of the measured config nearest in FLOPs,
        scaled by the FLOPs."""
        flops, prices = self.flops(config), self.prices()
        if prices is not None:
            return prices.step(self.launches(config), flops)
        nearest = min(self._measured, key=lambda other: abs(math.log(other / flops)))
        return self._measured[nearest] * flops / nearest

    def flops(self, config: Mapping[str, Any]) -> float:
        """Return the estimated FLOPs of a step."""
        return FAMILIES[self._family].step_flops(self._context.config(self._family, config), self._data)

    def launches(self, config: Mapping[str, Any]) -> float:
        """Return the estimated kernel launches of a step in one micro-batch."""
        return launches(self._family, float(config.get("layers", 0)))


RAY_UP_SECONDS = 3.0
"""Wall clock until Ray is up and the first slot is charged."""
DAY = 86_400.0
"""Seconds of wall clock from which on a search's end is shown with its date."""
LUCK = 0.1
"""Standard deviation of the random factor on a simulated trial's loss above its floor."""
SIZED = 12
"""Number of first configurations of a search of which the smallest, the first and the largest are measured."""


@dataclass(frozen=True, kw_only=True)
class RungPlan:
    """A rung: training seconds of a trial's life there, the planned price of a segment to it (device-seconds), how many
    such the rung's quota pays for, and how many trials the simulated search sent there, for how much in all."""

    training: float
    price: float
    pays_for: float
    trials: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class SizePlan:
    """A config that would start early: measured seconds of a step; for each rung its steps and its segment's price."""

    config: Mapping[str, Any]
    parameters: int
    step: float
    steps: tuple[int, ...]
    prices: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Favourite:
    """A config that the prior favours, if trained to its end. fills: share of a step in which a GPU computes, by its
    prices, None on a core; seen: target tokens for each weight of its layers; epochs: how often it would see the text.
    """

    config: Mapping[str, Any]
    fills: float | None
    seen: float
    epochs: float


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """Memory of a family in bytes: the limit of a trial, and what the largest config that would start takes; the number
    of configs, and those that do not fit."""

    limit: float
    largest: float
    configs: int
    unfit: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, kw_only=True)
class FamilyPlan:
    """The plan of one family. Its share of the cap is explore + kept + anew + start_up + beside, in device-seconds:
    explore is for rungs, kept for the leader's last segment, anew for retraining the last two; beside is what the wall
    clock leaves for last segments of others, or unspent. In the simulated search `finishers` last segments took
    `finish`, and `trained_anew` retrainings `anew_seconds`."""

    recipe: Recipe
    started: int
    explore: float
    kept: float
    start_up: float
    beside: float
    anew: float
    trained_anew: int
    anew_seconds: float
    rungs: tuple[RungPlan, ...]
    finish: float
    finishers: int
    sizes: tuple[SizePlan, ...]
    favourites: tuple[Favourite, ...]
    memory: MemoryPlan


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A simulated search. spending: device-seconds by purpose, which add up to the cap; wall: seconds to its end.

    costs: of segments and slots, as the search expects them at first; notes: lines on texts, memory and earlier
    studies. patient: seconds to the end of a patient search, and by how many nats its winners are expected to be
    better, as the mean over families; None: this one is patient, or patience gains nothing.
    """

    settings: Settings
    slots: int
    device: str
    families: Mapping[str, FamilyPlan]
    spending: Mapping[str, float]
    wall: float
    costs: Costs
    notes: Sequence[str]
    patient: tuple[float, float] | None = None


def make_plan(settings: Settings) -> Plan:
    """Simulate the search of these settings, with its journal in memory. UserError: as in the search, or --address.

    Configurations are drawn as the search draws its first ones: what a sampler learns from losses is not foreseen.
    """
    settings.check_planned_here()
    began = time.monotonic()
    drawn = replace(settings, search="prior") if settings.search == "tpe" else settings
    context = make_search_context(drawn, find_devices(settings))
    prepared = time.monotonic() - began
    speeds = {name: Speeds(context, name) for name in settings.families}
    sizes = {name: _measure(context, name, each) for name, each in speeds.items()}
    learned = [context.learned.get(name, WarmStart()) for name in settings.families]
    start_up, overhead = (
        statistics.fmean(getattr(each, what) for each in learned) for what in ("start_up", "overhead")
    )
    costs = Costs(start_up=start_up, overhead=overhead)

    def course(trial: str, name: str, config: Mapping[str, Any]) -> PowerLaw:
        luck = random.Random(trial).gauss(1.0, LUCK)
        return PowerLaw(step_seconds=speeds[name].expected(config), nats=luck * PowerLaw.nats)

    def simulated(journal: Journal, context: SearchContext) -> tuple[Engine, float, float]:
        """Return the engine of a simulated search, the seconds to its end, and the mean loss of its winners."""
        clock = Clock()
        engine = make_engine(context, journal, [], now=clock, elapsed=prepared + RAY_UP_SECONDS)
        Simulation(engine, clock, costs, course).run()
        losses = [row["subset_loss"] for row in best_so_far(journal).values()]
        return engine, prepared + RAY_UP_SECONDS + clock.now, statistics.fmean(losses) if losses else math.inf

    with Journal(None, new=True) as journal:
        engine, wall, loss = simulated(journal, context)
        plan = Plan(
            settings=settings, slots=context.devices.slots, device=context.devices.name,
            families={name: _family(engine, context, speeds[name], name, sizes[name]) for name in settings.families},
            spending=spending(engine), wall=wall, costs=costs, notes=context.notes,
        )  # fmt: skip
    if settings.patient:
        return plan
    with Journal(None, new=True) as journal:
        _, longer, lower = simulated(journal, replace(context, settings=replace(context.settings, patient=True)))
    return replace(plan, patient=(longer, loss - lower)) if longer > wall and lower < loss else plan


def spending(engine: Engine) -> dict[str, float]:
    """Return the device-seconds of a search that has ended by purpose; with those unspent they add up to the cap."""
    rows = engine.accounting.journal.rows(f"""
        SELECT CASE WHEN what IN ('start', 'idle') THEN what
                    ELSE IIF(charges.{IS_CONFIRM_TRIAL_SQL}, 'anew', purpose) END AS what, SUM(seconds) AS seconds
        FROM charges LEFT JOIN leases USING (lease) GROUP BY 1""")
    found = {row["what"]: row["seconds"] for row in rows}
    names = {"rungs": "rung", "last segments": "final", "start-up": "start", "idle": "idle"}
    names |= {"--confirm": "anew"} if "anew" in found else {}
    ledger = engine.accounting.ledger
    spent = {name: found.get(what, 0.0) for name, what in names.items()}
    return spent | {"unspent": ledger.cap - ledger.spent}


def _measure(context: SearchContext, name: str, speeds: Speeds) -> list[tuple[Mapping[str, Any], float]]:
    """Return the smallest, the first and the largest config that a search begins with, each with seconds a step."""
    cap = context.settings.budget
    family = make_family(context, name, cap, cap, lambda trial, rung: 0.0)
    begun = (f"t{number + 1:03d}" for number in range(SIZED))
    suggested = [family.suggestions.suggest(trial) for trial in begun if family.suggestions.has_more]
    configs = [config for config in suggested if family.memory.refusal(config) is None]
    configs = configs or [min(context.spaces[name].configs(), key=family.memory.smallest)]
    chosen = sorted([min(configs, key=speeds.flops), configs[0], max(configs, key=speeds.flops)], key=speeds.flops)
    different = {label(config): config for config in chosen}.values()
    return [(config, speeds.measure(config, family.memory.micro_batches(config) or 1)) for config in different]


def _family(
    engine: Engine, context: SearchContext, speeds: Speeds, name: str, sizes: list[tuple[Mapping[str, Any], float]]
) -> FamilyPlan:
    family = engine.families[name]
    ladder = family.policy.ladder
    rows = engine.accounting.journal.rows(
        f"""
        SELECT IIF(leases.{IS_CONFIRM_TRIAL_SQL}, 'anew', rung) AS rung, COUNT(DISTINCT leases.trial) AS trials,
               SUM(seconds) AS seconds
        FROM charges JOIN leases USING (lease) JOIN trials ON trials.trial = leases.trial
        WHERE family = ? AND what != 'start' GROUP BY 1""",
        name,
    )
    went = {row["rung"]: (row["trials"], row["seconds"]) for row in rows}
    quotas, share = ladder.quotas, engine.accounting.ledger.share
    there = [each for each in engine.trials.values() if each.family == name and each.micro_batches]
    started = [each.config for each in there if each.confirms is None]
    anew = 2 * context.settings.confirm * ladder.confirm
    suggest = family.suggestions
    favourites = suggest.favourites() if name in PER_LAYER and isinstance(suggest, Suggester) else []
    return FamilyPlan(
        recipe=context.recipes[name], started=len(started), explore=share * ladder.explore, kept=share * ladder.kept,
        start_up=share * ladder.start_up,
        beside=share * max(0.0, ladder.seconds - ladder.explore - ladder.kept - anew - ladder.start_up),
        anew=share * anew, trained_anew=went.get("anew", (0, 0.0))[0], anew_seconds=went.get("anew", (0, 0.0))[1],
        rungs=tuple(
            RungPlan(
                training=ladder.rung_seconds(rung), price=share * ladder.cost(rung), pays_for=quota / ladder.cost(rung),
                trials=went.get(rung, (0, 0.0))[0], seconds=went.get(rung, (0, 0.0))[1],
            )
            for rung, quota in enumerate(quotas)
        ),
        finish=went.get(None, (0, 0.0))[1], finishers=went.get(None, (0, 0.0))[0],
        sizes=tuple(_size(family, context, name, config, step) for config, step in sizes),
        favourites=tuple(_favourite(context, speeds, name, config, ladder.end) for config in favourites),
        memory=_memory(family.memory, context.spaces[name], started),
    )  # fmt: skip


def _favourite(
    context: SearchContext, speeds: Speeds, name: str, config: Mapping[str, Any], seconds: float
) -> Favourite:
    """Return what such a config comes to if trained for so many seconds of a slot."""
    prices, step = speeds.prices(), speeds.expected(config)
    tokens = seconds / step * context.config(name, config).batch_tokens
    return Favourite(
        config=config, fills=None if prices is None else speeds.flops(config) / prices.flops / step,
        seen=tokens / layer_weights(name, config), epochs=tokens / context.data[name].training_tokens,
    )  # fmt: skip


def _size(family: Family, context: SearchContext, name: str, config: Mapping[str, Any], step: float) -> SizePlan:
    """Return a config's steps and prices, as the family counts them for a trial whose steps take so many seconds."""
    at = TrialRecord(family=name, config=dict(config), step_seconds=step)
    steps, prices = [], []
    for rung in range(family.policy.ladder.top + 1):
        prices.append(context.devices.share * family.price(None, at, rung))
        at.steps = family.steps_at(at, rung) or 0
        steps.append(at.steps)
    return SizePlan(
        config=config, parameters=parameters(context, name, config), step=step, steps=tuple(steps), prices=tuple(prices)
    )


def _memory(memory: MemoryModel, space: Space | OwnSpace, started: list[dict[str, Any]]) -> MemoryPlan:
    unfit = [] if math.isinf(memory.limit) else [each for each in space.configs() if memory.refusal(each)]
    largest = max((memory.predicted(each, memory.micro_batches(each) or 1) for each in started), default=0.0)
    return MemoryPlan(limit=memory.limit, largest=largest, configs=int(space.count), unfit=tuple(unfit))


def plan_lines(plan: Plan) -> Iterator[str]:
    """Yield the lines of a plan, which a user wants to know before they spend: what starts, what it costs, when it
    ends."""
    settings, spending = plan.settings, plan.spending
    cap, spent = settings.budget, settings.budget - spending["unspent"]
    started = sum(family.started for family in plan.families.values())
    end = datetime.now() + timedelta(seconds=plan.wall)
    yield f"A plan of {duration_text(cap)} on {plan.slots} x {plan.device}. No trial was started, no study written."
    yield f"started      {counted(started, 'trial')}, with seed {settings.seed}"
    money = money_text(spent, settings.price_per_hour)
    yield f"spent        {whole_text(spent)} of {duration_text(cap)} ({100 * spent / cap:.1f} %){money}"
    yield "  of the cap " + ", ".join(f"{what} {whole_text(seconds)}" for what, seconds in spending.items())
    when = f"{end:%H:%M}" if plan.wall < DAY else f"{end:%H:%M on %Y-%m-%d}"
    yield f"wall clock   {whole_text(plan.wall)}; begun now it ends at {when}"
    if plan.patient is not None:
        longer, nats = plan.patient
        yield f"--patient    {whole_text(longer)}, for winners that are expected to be {nats:.3f} nats better"
    yield from plan.notes
    for name, family in plan.families.items():
        yield ""
        yield from _family_lines(name, family, settings)
    yield ""
    costs = plan.costs
    beside = f"a segment costs {costs.overhead:.2g}s beside its steps, a slot's start {costs.start_up:.2g}s"
    yield "Steps were measured here, a few of each size; beside other work on the machine they take longer."
    yield f"As a search expects at first, {beside}."
    if settings.objective == "front":
        yield "--objective front: how many points have a last segment is known once trials of some sizes have trained."
    if settings.stop_below_gain:
        yield "--stop-below-gain is not planned for: gains are known only from trials."


def _family_lines(name: str, family: FamilyPlan, settings: Settings) -> Iterator[str]:
    by_price = settings.rungs == "tokens"
    share = family.explore + family.kept + family.anew + family.start_up + family.beside
    parts = f"{whole_text(family.explore)} for rungs, {whole_text(family.kept)} kept for the last segment"
    parts += f", {whole_text(family.beside)} for others beside it" if family.beside >= 1 else ""
    parts += f", {whole_text(family.anew)} for --confirm" if family.anew else ""
    parts += f", {whole_text(family.start_up)} for start-up"
    yield f"{name}: {whole_text(share)} = {parts}; {counted(family.started, 'trial')}"
    yield f"  {'rung':<12} {'training':>10} {'cost':>10} {'planned':>10} {'trials':>10} {'total':>10}"
    for number, rung in enumerate(family.rungs):
        yield (
            f"  {number:<12} {_tenths(rung.training):>10} {_tenths(rung.price):>10} {rung.pays_for:>10.1f} "
            f"{rung.trials:>10} {whole_text(rung.seconds):>10}"
        )
    yield f"  {'last segment':<12} {'':>10} {'':>10} {'':>10} {family.finishers:>10} {whole_text(family.finish):>10}"
    if family.anew:
        count, seconds = family.trained_anew, whole_text(family.anew_seconds)
        yield f"  {'--confirm':<12} {'':>10} {'':>10} {'':>10} {count:>10} {seconds:>10}"
    what = "cost" if by_price else "steps"
    titles = "".join(f"{f'{what} {number}':>10}" for number in range(len(family.rungs)))
    yield f"  {'size':<24} {'parameters':>12} {'a step':>10}{titles}"
    for size in family.sizes:
        values = map(_tenths, size.prices) if by_price else (f"{steps:,}" for steps in size.steps)
        cells = "".join(f"{value:>10}" for value in values)
        yield f"  {label(size.config):<24} {size.parameters:>12,} {1000 * size.step:>7.1f} ms{cells}"
    yield f"  memory: {_memory_text(family.memory)}"
    yield from _recipe_lines(name, family.recipe)
    yield from _doubts(name, family.favourites, shared=settings.trials_per_gpu != 1)


LEAST_FILLED = 0.2
"""Share of a device that a step fills, below which a line says so; a guess."""


def _doubts(family: str, favourites: Sequence[Favourite], *, shared: bool) -> Iterator[str]:
    """Yield lines on what does not suit the cap: the text, the space, or steps that leave a device idle, where it was
    not asked to be shared."""
    if not favourites:
        return
    often, rare = (end(favourites, key=lambda each: each.seen) for end in (max, min))
    if often.epochs > MOST_EPOCHS:
        flag = flag_of_corpus(FAMILIES[family].corpus)
        seen = f"at its end a trial has seen it {often.epochs:,.0f} times"
        yield f"  The text is small for this cap: {seen}; {flag} names a larger one."
    elif often.seen > MOST_TOKENS_A_WEIGHT * max(1.0, often.epochs):
        seen = f"{label(often.config)} sees {often.seen:,.0f} tokens a weight, over {MOST_TOKENS_A_WEIGHT}"
        yield f"  The space is small: {seen}; --fix, --range or --at-most bound it."
    if rare.seen < LEAST_TOKENS_A_WEIGHT:
        seen = f"{label(rare.config)} sees {rare.seen:.1f} tokens a weight, under {LEAST_TOKENS_A_WEIGHT}"
        yield f"  The cap is small: {seen}; a larger --budget, or --at-most, suits it."
    idle = min(favourites, key=lambda each: 1.0 if each.fills is None else each.fills)
    if not shared and idle.fills is not None and idle.fills < LEAST_FILLED:
        filled = f"an estimated {100 * idle.fills:.0f} % of the GPU"
        yield f"  A step of {label(idle.config)} fills {filled}; with MPS --trials-per-gpu auto shares it."


def _recipe_lines(family: str, recipe: Recipe) -> Iterator[str]:
    """Yield lines on what is not searched, and why it has its value."""
    for name, why in recipe.why.items():
        if name not in unused_settings(family):
            yield f"  {name:<24} {recipe.config[name]:>12}   {why}"
    if recipe.flops:
        about = f"non-embedding parameters, for {recipe.tokens / 1e6:.3g}M tokens at {recipe.flops:.2g} FLOP/s"
        yield f"  {'starting size':<24} {f'{recipe.weights / 1e6:.2g}M':>12}   {about}"


def _memory_text(memory: MemoryPlan) -> str:
    largest = f"the largest of these trials takes about {bytes_text(memory.largest)}"
    if math.isinf(memory.limit):
        return f"{largest}; there is no limit"
    if not memory.unfit:
        return f"{largest}; all {memory.configs:,} configurations fit in {bytes_text(memory.limit)}"
    unfit = f"{len(memory.unfit):,} of {memory.configs:,} configurations do not fit in {bytes_text(memory.limit)}"
    return f"{largest}; {unfit}, such as {label(memory.unfit[0])} and {label(memory.unfit[-1])}"


def _tenths(seconds: float) -> str:
    return duration_text(round(seconds, 1))
