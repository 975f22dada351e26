"""Makes the parts of a search from its search context: engine, families, and the place where its trials run."""

import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from model.config import pad_of
from model.families import FAMILIES
from model.nn.precision import processor_facts
from model.training.time_budget import WHOLE_MARGIN
from tune.backend.leased import TrialEnvironment
from tune.own_loop import make_loop_family
from tune.recipe import StepPrices, evaluation_tokens, first_steps, launches, life_share
from tune.search.confirm import HalvingWithConfirmation
from tune.search.earlier import WarmStart
from tune.search.engine import Engine, Listener
from tune.search.family import CostModel, Family
from tune.search.ladder import Frame, Ladder, Rules
from tune.search.listed import listed_family
from tune.search.outlook import Outlook
from tune.search.resume import agreed_terms, last_moment, spent, spent_beside
from tune.search.suggest import Suggester, prior_of
from tune.search_context import SHORTEST_RUNG_SECONDS, SearchContext, first_configs, wall_clock_limit
from tune.settings import Settings
from tune.store import heartbeat
from tune.store.accounting import Accounting, Ledger
from tune.store.journal import Journal, as_mapping
from tune.winners import decoding_seconds


def make_engine(
    context: SearchContext, journal: Journal, listeners: list[Listener], *,
    slots_there: Callable[[], frozenset[str]] | None = None, now: Callable[[], float] = time.monotonic,
    elapsed: float | None = None,
) -> Engine:  # fmt: skip
    """Return the search engine with its ledger and families, on a clock that goes on where the journal ends.

    slots_there: returns names of the slots that there are just now, where some may be lost; now: the clock in seconds
    that drives the engine's; elapsed: seconds since the study began, whether or not it ran (None: by the real clock).
    """
    charge_probe(journal, context.probed)
    settings, begun, before, terms = context.settings, now(), last_moment(journal), agreed_terms(journal)
    age = age_of(journal, time.monotonic() - context.begun) if elapsed is None else elapsed

    def clock() -> float:
        return before + now() - begun

    def wall_left() -> float:
        return (settings.deadline or math.inf) - age - (now() - begun)

    ledger = Ledger(cap=settings.budget, clock=clock, spent_before=spent(journal), share=context.devices.share)
    accounting = Accounting(journal, ledger, clock)
    engine = Engine(
        accounting=accounting, slots=context.devices.slots, slots_there=slots_there, wall_left=wall_left,
        listeners=listeners, within=math.inf if context.listed else wall_clock_limit(settings, context.devices),
    )  # fmt: skip
    first = terms[0].seconds if terms else settings.budget
    by_now = settings.budget - spent_beside(journal)
    for name in settings.families:
        _, ladder = terms[0].families.get(name, (0.0, None)) if terms else (0.0, None)
        if context.listed is not None:
            seconds, memory = by_now / context.devices.share, context.memories[name]
            engine.families[name] = listed_family(
                context.listed.listed, ladder, seconds, memory, trials=engine.trials, price_to=engine.price_to
            )
            continue
        engine.families[name] = make_family(context, name, first, by_now, engine.price_of(name), ladder)
    if not terms:
        engine.apply_terms(settings.deadline, context.devices.processor, settings.stop_below_gain)
    journal.write_facts(
        rung_seconds={
            name: [family.policy.rung_seconds(rung) for rung in range(12)]
            for name, family in engine.families.items()
            if context.loop is None and context.listed is None  # a loop's first report changes its ladder
        },
    )
    return engine


def charge_probe(journal: Journal, seconds: float) -> None:
    """Charge a new study the seconds of a whole device that measuring took before its first lease."""
    if seconds and not journal.rows("SELECT slot FROM slots"):
        with journal.transaction():
            slot = journal.insert("slots", {"slot": 0, "opened": 0.0, "closed": seconds})
            journal.insert("charges", {"at": seconds, "slot": slot, "what": "start", "seconds": seconds})


def make_family(
    context: SearchContext, name: str, first: float, by_now: float, price_of: Callable[[str | None, int], float],
    ladder: Ladder | None = None,
) -> Family:  # fmt: skip
    """Return one family: its policy, cost model, memory, suggestions, and what it may spend by now.

    first, by_now: device-seconds that the search had of the first cap, and has of the present one; ladder: the one that
    the study began with (None: a new study, for which it is made). A family's seconds and prices are those of a slot.
    """
    if context.loop is not None:
        return make_loop_family(context, first, by_now, price_of, ladder)
    settings, space, recipe = context.settings, context.spaces[name], context.recipes[name]
    learned, whole = context.learned.get(name, WarmStart()), space.unrestricted
    speeds = [(config, at) for config, at in learned.speeds if whole.contains(config)]
    walls = wall_clock_limit(settings, context.devices), settings.deadline or math.inf
    seconds, share = settings.families[name] * first, context.devices.share
    frame = frame_of(
        settings, name, learned, slots=context.devices.slots, share=share, shortest=shortest_rung(context, name)
    )
    policy = HalvingWithConfirmation(
        frame, ladder or frame.fit(seconds / share, *walls), price_of, lambda trial: suggestions.favour(trial)
    )
    policy.standings.learn(learned.trials)
    suggestions = Suggester(
        space, seed=settings.seed, search=settings.search,
        prior=prior_of(recipe, space.default(), name, context.data[name].training_tokens),
        outlook=Outlook(partial(parameters, context, name), policy.outlook, speeds, policy.standings.front_additions),
        first=learned.first, asked=first_configs(settings, space),
        alike=("dropout",) if recipe.dropout_after else (),
    )  # fmt: skip
    return Family(
        seconds=settings.families[name] * by_now / share,
        policy=policy,
        cost_model=CostModel(learned.overhead, learned.start_up),
        memory=context.memories[name],
        equal_tokens=settings.rungs == "tokens",
        warm_up_steps=recipe.warm_up_steps,
        decoding=decoding_seconds if context.devices.kind == "cpu" else lambda step_seconds: 0.0,
        closing=closing_seconds(context, name) if settings.confirm else lambda step_seconds: 0.0,
        seed=settings.seed,
        suggestions=suggestions,
    )


def frame_of(
    settings: Settings, family: str, learned: WarmStart, *, slots: int, share: float, shortest: float
) -> Frame:
    """Return what the ladder of a family of models is fitted to. share: the device-seconds in a second of a slot."""
    suggested = settings.search != "random"
    return Frame(
        slots=slots, shortest=shortest, part=settings.families[family], overhead=learned.overhead,
        start_up=learned.start_up, seeds=settings.confirm,
        rules=Rules(
            last_share=life_share(family, suggested=suggested),
            wall_share=life_share(family, suggested=suggested, side_by_side=True),
            least_gain=(settings.stop_below_gain or 0.0) * share / 3600, front=settings.objective == "front",
        ),
    )  # fmt: skip


def parameters(context: SearchContext, name: str, point: Mapping[str, Any]) -> int:
    """Return the number of parameters of a model at a point of a family's space."""
    data = context.data[name]
    return FAMILIES[name].parameters(context.config(name, point), data.vocabulary, pad_of(data))


def closing_seconds(context: SearchContext, name: str) -> Callable[[float], float]:
    """Return a function from a trial's step seconds to the seconds that evaluating it on all of validation and test
    takes: a target token costs at most half of what it does in training."""
    config, data = context.config(name, context.spaces[name].default()), context.data[name]
    tokens = sum(FAMILIES[name].span(config, data, split, None).tokens for split in ("valid", "test"))
    return lambda step_seconds: WHOLE_MARGIN * tokens / config.batch_tokens * step_seconds / 2


def shortest_rung(context: SearchContext, name: str) -> float:
    """Return the least seconds of training at rung 0 that make sense: those in which the default configuration passes
    its warm-up."""
    recipe = context.recipes[name]
    if not recipe.flops:
        return SHORTEST_RUNG_SECONDS
    prices = context.prices.get(name, StepPrices(flops=recipe.flops))
    default = context.config(name, context.spaces[name].default())
    step = prices.step(launches(name, default.layers), FAMILIES[name].step_flops(default, context.data[name]))
    return max(SHORTEST_RUNG_SECONDS, first_steps(recipe.warm_up_steps) * step)


def make_trial_environment(context: SearchContext, engine: Engine) -> TrialEnvironment:
    """Return where and how the trials run."""
    settings, kind, study = context.settings, context.devices.kind, engine.accounting.journal.folder
    (study / heartbeat.HEARTBEAT_FOLDER).mkdir(exist_ok=True)
    before: dict[str, Any] = {**as_mapping(engine.accounting.journal.facts().get("evaluation_tokens"))}
    tokens = {
        name: before.get(name)
        or (context.listed.evaluation_tokens if context.listed else 0)
        or evaluation_tokens(kind, name, family.policy.rung_seconds(0))
        for name, family in engine.families.items()
        if context.loop is None
    }
    engine.accounting.journal.write_facts(evaluation_tokens=tokens)
    here = kind == "cpu" and settings.address is None and context.loop is None
    return TrialEnvironment(
        folder=study, device=kind, threads=context.devices.threads, seed=settings.seed, evaluation_tokens=tokens,
        recipes={name: each.at for name, each in context.recipes.items()},
        report_every=settings.report_every, driver=heartbeat.Process.this_process(),
        memory_limit=context.trial_memory_limit, deterministic=settings.deterministic,
        listed=context.listed is not None, processor=processor_facts() if here else {},
    )  # fmt: skip


def age_of(journal: Journal, ago: float) -> float:
    """Return the seconds since a study began by the system's clock, whether or not it ran; a new one began `ago`
    seconds ago."""
    created = journal.facts().get("created")
    if isinstance(created, int | float):
        return max(0.0, time.time() - created)
    journal.write_facts(created=time.time() - ago)
    return ago
