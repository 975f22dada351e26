"""The parts of a search, put together from its settings."""

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from model.config import Data
from model.corpus import PairCorpus, TextCorpus, load_pairs, load_text
from model.prepared import prepare_pairs, prepare_text
from tune import heartbeats
from tune.books import Books
from tune.devices import Devices
from tune.family import Family
from tune.journal import Journal
from tune.ledger import Ledger
from tune.planner import Listener, Planner
from tune.prices import FIRST_OVERHEAD_SECONDS, FIRST_START_UP_SECONDS, Prices
from tune.restore import last_moment, spent
from tune.rungs import Contest
from tune.searcher import Suggester, prior
from tune.settings import Settings
from tune.space import Space
from tune.trial import Place

SHORTEST_RUNG_SECONDS = 4.0
"""Training at rung 0 that tells anything."""
EVALUATION_TOKENS_PER_RUNG_SECOND = {"cpu": 800, "cuda": 50_000}
"""Size of the fixed validation subset: its evaluation takes at most about 2 % of the shortest stretch."""
SMALLEST_EVALUATION_TOKENS = 2_048


def check_cap(settings: Settings) -> None:
    """ValueError: a cap that does not pay for a rung and a last stretch of one trial of each family."""
    least = FIRST_START_UP_SECONDS + 2 * (FIRST_OVERHEAD_SECONDS + SHORTEST_RUNG_SECONDS)
    smallest = max(least / share for share in settings.families.values())
    if settings.budget < smallest:
        raise settings.too_small(smallest)


def load_corpora(settings: Settings) -> dict[str, PairCorpus | TextCorpus]:
    """The text of each family. ValueError: a corpus that cannot be used."""
    load: dict[str, Callable[[], PairCorpus | TextCorpus]] = {
        "translation": lambda: load_pairs(settings.translation_corpus, skip_bad_lines=settings.skip_bad_lines),
        "nanogpt": lambda: load_text(settings.text_corpus),
    }
    return {family: load[family]() for family in settings.families}


def check_same_text(corpora: Mapping[str, PairCorpus | TextCorpus], facts: Mapping[str, Any]) -> None:
    """ValueError: a corpus is not the text that the study began with (its `facts`, from the journal)."""
    for family, corpus in corpora.items():
        before = facts.get("corpora", {}).get(family, {"sha256": corpus.sha256})
        if corpus.sha256 != before["sha256"]:
            flag = {"translation": "--translation-corpus", "nanogpt": "--text-corpus"}[family]
            rule = "a study goes on with the text that it began with"
            raise ValueError(f"{flag}: {corpus.name!r} has changed since: {rule}; restore it, or begin a new study")


def prepare(corpus: PairCorpus | TextCorpus) -> Data:
    """Tokenized once, for all trials."""
    return prepare_pairs(corpus) if isinstance(corpus, PairCorpus) else prepare_text(corpus)


def make_planner(
    settings: Settings, devices: Devices, spaces: dict[str, Space], journal: Journal, listeners: list[Listener]
) -> Planner:
    """The ledger, and each family's contest, prices and suggestions, on a clock that goes on where the journal ends."""
    begun, before = time.monotonic(), last_moment(journal)

    def clock() -> float:
        return before + time.monotonic() - begun

    def wall_left() -> float | None:
        return None if settings.deadline is None else settings.deadline - (time.monotonic() - begun)

    families: dict[str, Family] = {}
    books = Books(journal, Ledger(cap=settings.budget, clock=clock, spent_before=spent(journal)), clock)
    planner = Planner(
        books=books,
        families=families,
        slots=devices.slots,
        wall_left=wall_left,
        listeners=listeners,
        equal_tokens=settings.rungs == "tokens",
    )
    for name, share in settings.families.items():
        seconds = share * settings.budget
        families[name] = Family(
            seconds=seconds,
            contest=Contest(
                seconds=seconds, slots=devices.slots, price=planner.price_of(name), shortest=SHORTEST_RUNG_SECONDS,
                overhead=FIRST_OVERHEAD_SECONDS, start_up=FIRST_START_UP_SECONDS, configs=spaces[name].count,
            ),
            prices=Prices(),
            suggestions=Suggester(
                spaces[name], seed=settings.seed, search=settings.search,
                prior=prior(name, seconds=seconds, kind=devices.kind, fastest=str(spaces[name].default()["precision"])),
            ),
        )  # fmt: skip
    journal.note(
        rung_seconds={
            name: [family.contest.rung_seconds(rung) for rung in range(12)] for name, family in families.items()
        }
    )
    return planner


def make_place(settings: Settings, devices: Devices, planner: Planner) -> Place:
    """Where and how the trials run."""
    (settings.out / heartbeats.FOLDER).mkdir(exist_ok=True)
    per_second = EVALUATION_TOKENS_PER_RUNG_SECOND[devices.kind]
    tokens = {
        name: max(SMALLEST_EVALUATION_TOKENS, int(per_second * family.contest.rung_seconds(0)))
        for name, family in planner.families.items()
    }
    return Place(
        folder=settings.out, device=devices.kind, threads=1, seed=settings.seed, evaluation_tokens=tokens,
        report_every=settings.report_every, driver=os.getpid(),
    )  # fmt: skip
