"""The text of each family: a file, a dataset of the hub, or builtin; where none is named, the hub is asked once."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import track

from model.config import Data
from model.corpus import PAIRS_FLAG, TEXT_FLAG, PairCorpus, TextCorpus, load_pairs, load_text
from model.hub import HUB, PATIENCE_SECONDS, HubName, ask, cached, open_splits, reason, unreachable
from model.hub_corpus import pairs_from, text_from
from model.prepared import prepare_pairs, prepare_text
from tune.settings import BUILTIN, HUB_PAIRS, HUB_TEXT, Settings

ASK_SECONDS = 3.0
SETTINGS = {"translation": "translation_corpus", "nanogpt": "text_corpus"}
FLAGS = {"translation": PAIRS_FLAG, "nanogpt": TEXT_FLAG}
FROM_HUB = {"translation": HUB_PAIRS, "nanogpt": HUB_TEXT}
SMOKE_TEST = "so the builtin text serves: a smoke test, not a study"

Corpus = PairCorpus | TextCorpus
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Corpora:
    """The corpus of each family, the settings with each of them named, and what a user should know of the choice."""

    settings: Settings
    corpora: dict[str, Corpus]
    notes: list[str]


def load_corpora(settings: Settings) -> Corpora:
    """The text of each family. ValueError: a corpus that was named cannot be used."""
    named = {family: getattr(settings, SETTINGS[family]) for family in settings.families}
    unnamed = [family for family, value in named.items() if value is None]
    corpora = {family: load(settings, family, value) for family, value in named.items() if value is not None}
    because = {family: "no other text was named" for family, value in named.items() if value == BUILTIN}
    if settings.resume:  # a study that names no text is older than this choice, and took the builtin one
        because |= dict.fromkeys(unnamed, "the study began with it")
    elif unnamed:
        found, why_not = load_from_hub(unnamed)
        corpora |= found
        because |= why_not
    for family in unnamed:
        named[family] = FROM_HUB[family] if family in corpora else BUILTIN
        if family not in corpora:
            corpora[family] = load(settings, family, BUILTIN)
    reasons = {why: [family for family in because if because[family] == why] for why in because.values()}
    return Corpora(
        settings=replace(settings, **{SETTINGS[family]: value for family, value in named.items()}),
        corpora={family: corpora[family] for family in settings.families},
        notes=[f"{' and '.join(families)}: {why}, {SMOKE_TEST}" for why, families in reasons.items()],
    )


def load_from_hub(families: list[str]) -> tuple[dict[str, Corpus], dict[str, str]]:
    """What serves where nothing is named, as far as the hub, asked once, or the cache has it; and why not the rest."""
    names = {family: HubName.parse(FROM_HUB[family], FLAGS[family]) for family in families}
    answers = ask([name.repository for name in names.values()], ASK_SECONDS)
    out_of_reach = [
        family for family, name in names.items() if unreachable(answers[name.repository]) and cached(name) is None
    ]
    because = {}
    if out_of_reach:
        why = reason(answers[names[out_of_reach[0]].repository])
        rule = f"the Hugging Face hub cannot be reached ({why}) and nothing of it is cached"
        because = dict.fromkeys(out_of_reach, rule)
    corpora = {}
    for family in [family for family in families if family not in because]:
        try:
            corpora[family] = _from_hub(family, names[family], answers[names[family].repository])
        except ValueError as error:
            because[family] = str(error)
    return corpora, because


def load(settings: Settings, family: str, value: Path | str) -> Corpus:
    """The corpus that a setting names. ValueError: it cannot be used."""
    if isinstance(value, str) and value.startswith(HUB):
        name = HubName.parse(value, FLAGS[family])
        return _from_hub(family, name, ask([name.repository], PATIENCE_SECONDS)[name.repository])
    path = None if value == BUILTIN else Path(value)
    return load_pairs(path, skip_bad_lines=settings.skip_bad_lines) if family == "translation" else load_text(path)


def prepare(corpus: Corpus) -> Data:
    """Tokenized once, for all trials."""
    return prepare_pairs(corpus, bar) if isinstance(corpus, PairCorpus) else prepare_text(corpus, bar)


def bar(items: Iterable[T], about: str, total: int) -> Iterable[T]:
    """The items, with a progress bar while they are gone through, where there is a terminal."""
    if not sys.stderr.isatty():
        return items
    return track(items, about, total, console=Console(stderr=True), transient=True)


def _from_hub(family: str, name: HubName, answer: object) -> Corpus:
    splits = open_splits(name, answer)
    return (pairs_from if family == "translation" else text_from)(name, splits, track=bar)
