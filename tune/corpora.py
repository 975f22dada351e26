"""What families learn from: a file, a dataset of the hub, or builtin; where none is named, the hub is asked once."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import track

from model.config import Data
from model.data.corpus import LONGEST_CHARACTERS, PAIRS_FLAG, TEXT_FLAG, PairCorpus, TextCorpus, load_pairs, load_text
from model.data.dataset import prepare_pairs, prepare_text
from model.data.hub import (
    HUB,
    PATIENCE_SECONDS,
    HubName,
    ask,
    cached,
    open_splits,
    pairs_from,
    reason,
    text_from,
    unreachable,
)
from model.families import FAMILIES
from tune.errors import UserError
from tune.flags import BUILTIN
from tune.settings import HUB_PAIRS, HUB_TEXT, Settings

ASK_SECONDS = 3.0
SETTINGS = {"pairs": "translation_corpus", "text": "text_corpus"}
FLAGS = {"pairs": PAIRS_FLAG, "text": TEXT_FLAG}
FROM_HUB = {"pairs": HUB_PAIRS, "text": HUB_TEXT}
SMOKE_TEST = "so the builtin text serves: a smoke test, not a study"

Corpus = PairCorpus | TextCorpus
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Corpora:
    """The corpora by kind, the settings with each of them named, and what a user should know of the choice."""

    settings: Settings
    corpora: dict[str, Corpus]
    notes: list[str]


def load_corpora(settings: Settings) -> Corpora:
    """What the families learn from. UserError: a corpus that was named cannot be used."""
    learners: dict[str, list[str]] = {}
    for family in settings.families:
        learners.setdefault(FAMILIES[family].corpus, []).append(family)
    named = {kind: getattr(settings, SETTINGS[kind]) for kind in learners}
    unnamed = [kind for kind, value in named.items() if value is None]
    corpora = {kind: load(settings, kind, value) for kind, value in named.items() if value is not None}
    because = {kind: "no other text was named" for kind, value in named.items() if value == BUILTIN}
    if settings.resume:  # a study that names no text is older than this choice, and took the builtin one
        because |= dict.fromkeys(unnamed, "the study began with it")
    elif unnamed:
        found, why_not = load_from_hub(unnamed)
        corpora |= found
        because |= why_not
    for kind in unnamed:
        named[kind] = FROM_HUB[kind] if kind in corpora else BUILTIN
        if kind not in corpora:
            corpora[kind] = load(settings, kind, BUILTIN)
    too_long = f"pairs left out as longer than {LONGEST_CHARACTERS:,} characters on a side"
    notes = [
        f"{' and '.join(learners[kind])}: {too_long}: {corpus.too_long:,}"
        for kind, corpus in corpora.items() if isinstance(corpus, PairCorpus) and corpus.too_long
    ]  # fmt: skip
    reasons: dict[str, list[str]] = {}
    for kind, why in because.items():
        reasons.setdefault(why, []).extend(learners[kind])
    return Corpora(
        settings=replace(settings, **{SETTINGS[kind]: value for kind, value in named.items()}),
        corpora=corpora,
        notes=notes + [f"{' and '.join(families)}: {why}, {SMOKE_TEST}" for why, families in reasons.items()],
    )


def load_from_hub(kinds: list[str]) -> tuple[dict[str, Corpus], dict[str, str]]:
    """What serves where nothing is named, as far as the hub, asked once, or the cache has it; and why not the rest."""
    names = {kind: HubName.parse(FROM_HUB[kind], FLAGS[kind]) for kind in kinds}
    answers = ask([name.repository for name in names.values()], ASK_SECONDS)
    out_of_reach = [
        kind for kind, name in names.items() if unreachable(answers[name.repository]) and cached(name) is None
    ]
    because = {}
    if out_of_reach:
        why = reason(answers[names[out_of_reach[0]].repository])
        rule = f"the Hugging Face hub cannot be reached ({why}) and nothing of it is cached"
        because = dict.fromkeys(out_of_reach, rule)
    corpora = {}
    for kind in [kind for kind in kinds if kind not in because]:
        try:
            corpora[kind] = _from_hub(kind, names[kind], answers[names[kind].repository])
        except UserError as error:
            because[kind] = str(error)
    return corpora, because


def load(settings: Settings, kind: str, value: Path | str) -> Corpus:
    """The corpus that a setting names. UserError: it cannot be used."""
    if isinstance(value, str) and value.startswith(HUB):
        name = HubName.parse(value, FLAGS[kind])
        return _from_hub(kind, name, ask([name.repository], PATIENCE_SECONDS)[name.repository])
    path = None if value == BUILTIN else Path(value)
    return load_pairs(path, skip_bad_lines=settings.skip_bad_lines, track=bar) if kind == "pairs" else load_text(path)


def prepare(corpus: Corpus) -> Data:
    """Tokenized once, for all trials."""
    return prepare_pairs(corpus, bar) if isinstance(corpus, PairCorpus) else prepare_text(corpus, bar)


def bar(items: Iterable[T], about: str, total: int) -> Iterable[T]:
    """The items, with a progress bar while they are gone through, where there is a terminal."""
    if not sys.stderr.isatty():
        return items
    return track(items, about, total, console=Console(stderr=True), transient=True)


def _from_hub(kind: str, name: HubName, answer: object) -> Corpus:
    splits = open_splits(name, answer)
    return (pairs_from if kind == "pairs" else text_from)(name, splits, track=bar)
