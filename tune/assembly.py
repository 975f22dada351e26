"""The parts of a search, put together on its grounds."""

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from model.config import RECIPES
from model.kept_peaks import cpu_name, kept
from tune import heartbeats
from tune.books import Books
from tune.experiments.grounds import price, wall
from tune.family import Family
from tune.grounds import SHORTEST_RUNG_SECONDS, Grounds
from tune.journal import Journal
from tune.ledger import Ledger
from tune.listener import Listener
from tune.planner import Planner
from tune.prices import FIRST_OVERHEAD_SECONDS, FIRST_START_UP_SECONDS, Prices
from tune.restore import last_moment, note_cap, spent, spent_beside
from tune.rungs import Contest
from tune.searcher import Suggester, prior
from tune.trial import Place

EVALUATION_TOKENS_PER_RUNG_SECOND = {"cpu": 800, "cuda": 50_000}
"""Size of the fixed validation subset: its evaluation takes at most about 2 % of the shortest stretch."""
SMALLEST_EVALUATION_TOKENS = 2_048
THREADS = 1
"""Of a trial."""


def make_planner(
    grounds: Grounds, journal: Journal, listeners: list[Listener], *, there: Callable[[], int] | None = None,
    now: Callable[[], float] = time.monotonic,
) -> Planner:  # fmt: skip
    """The ledger, and each family's contest, prices and suggestions, on a clock that goes on where the journal ends.

    there: how many devices there are just now, where some may be lost; now: the seconds by which that clock goes on.
    """
    settings, begun, before = grounds.settings, now(), last_moment(journal)

    def clock() -> float:
        return before + now() - begun

    def wall_left() -> float | None:
        return None if settings.deadline is None else settings.deadline - wall(to_come) - (now() - begun)

    families: dict[str, Family] = {}
    ledger = Ledger(cap=settings.budget, clock=clock, spent_before=spent(journal), share=grounds.devices.share)
    books = Books(journal, ledger, clock)
    books.peak_flops |= kept_flops(grounds)
    to_come = grounds.aside.to_come(settings.budget, journal, settings.families)
    books.keep_aside(price(to_come))
    planner = Planner(
        books=books,
        families=families,
        slots=grounds.devices.slots,
        there=there,
        wall_left=wall_left,
        listeners=listeners,
    )
    first = grounds.aside.rest(note_cap(journal, settings.budget))
    by_now = settings.budget - spent_beside(journal) - ledger.aside
    for name in settings.families:
        families[name] = make_family(grounds, name, first, by_now, planner.price_of(name))
    journal.note(
        rung_seconds={
            name: [family.contest.rung_seconds(rung) for rung in range(12)] for name, family in families.items()
        },
        prices={name: asdict(price) for name, price in grounds.prices.items()},
    )
    if books.peak_flops:
        journal.note(peak_flops=books.peak_flops)
    return planner


def make_family(
    grounds: Grounds, name: str, first: float, by_now: float, price_of: Callable[[Any, int], float]
) -> Family:
    """One family: its contest on the ladder of the study's first cap, what it may spend by now, and its suggestions.

    first, by_now: device-seconds that the search had of the first cap, and has of the present one. What a family has is
    in seconds of a slot, as are the prices.
    """
    settings, space, given = grounds.settings, grounds.spaces[name], grounds.prices.get(name)
    seconds, share = settings.families[name] * first, grounds.devices.share
    return Family(
        seconds=settings.families[name] * by_now / share,
        contest=Contest(
            seconds=seconds / share, slots=grounds.devices.slots, price=price_of, shortest=SHORTEST_RUNG_SECONDS,
            overhead=given.overhead_seconds if given else FIRST_OVERHEAD_SECONDS,
            start_up=given.start_up_seconds if given else FIRST_START_UP_SECONDS, configs=space.count,
        ),
        prices=given or Prices(),
        memory=grounds.memories[name],
        equal_tokens=settings.rungs == "tokens",
        step_seconds=given.step_seconds if given else None,
        warm_up_steps=RECIPES[name]["warm_up_steps"],
        suggestions=Suggester(
            space, seed=settings.seed, search=settings.search,
            prior=prior(
                space.default(), family=name, seconds=seconds, kind=grounds.devices.kind,
                tokens=grounds.data[name].training_tokens,
            ),
        ),
    )  # fmt: skip


def kept_flops(grounds: Grounds) -> dict[str, float]:
    """FLOP/s of a slot by precision, as the kernels' benchmark found them on this machine; on a cluster none."""
    devices = grounds.devices
    peaks = kept(devices.model if devices.kind == "cuda" else cpu_name())
    if peaks is None or grounds.settings.address is not None:
        return {}
    return {name: rates[THREADS] for name, rates in peaks.flops_per_second.items() if THREADS in rates}


def make_place(grounds: Grounds, planner: Planner) -> Place:
    """Where and how the trials run."""
    settings, kind, study = grounds.settings, grounds.devices.kind, planner.books.journal.folder
    (study / heartbeats.FOLDER).mkdir(exist_ok=True)
    per_second = EVALUATION_TOKENS_PER_RUNG_SECOND[kind]
    tokens = {
        name: max(SMALLEST_EVALUATION_TOKENS, int(per_second * family.contest.rung_seconds(0)))
        for name, family in planner.families.items()
    }
    return Place(
        folder=study, device=kind, threads=THREADS, seed=settings.seed, evaluation_tokens=tokens,
        report_every=settings.report_every, driver=heartbeats.Driver.here(),
        memory_limit=grounds.held_to,
    )  # fmt: skip
