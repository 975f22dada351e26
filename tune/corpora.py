"""Loads the texts that families learn from: a file, a dataset of the hub, or builtin; where none is named, the hub is
asked once. What was prepared for an earlier search is used again (model/data/cache.py).
"""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import track

from model.config import Data
from model.data.cache import Corpus, file_stamp, find_content, find_prepared, load_or_prepare
from model.data.corpus import CORPORA, LONGEST_CHARACTERS, PairCorpus, TextCorpus, load_pairs, load_text
from model.data.dataset import OwnData, PairData, TextData
from model.data.hub import (
    HUB,
    PATIENCE_SECONDS,
    HubName,
    cached,
    commit,
    fetch_dataset_infos,
    open_splits,
    pairs_from,
    reason,
    text_from,
    unreachable,
)
from model.families import FAMILIES
from tune.errors import UserError, error_text
from tune.flags import BUILTIN, flag_name
from tune.recipe import small_text_seconds
from tune.search_flags import HUB_LARGE_TEXT, HUB_PAIRS, HUB_TEXT, KINDS, MOST_TOY_SECONDS
from tune.settings import Settings
from tune.store.journal import study_facts
from tune.units import whole_text

ASK_SECONDS = 3.0
SETTINGS = {"pairs": "translation_corpus", "text": "text_corpus", "own": "own_corpus"}
MOST_UNKNOWN = 0.01
"""Share of a validation text in characters unknown from the training text, above which a line says so."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Corpora:
    """The texts that the families learn from, prepared, by kind; the settings with each text named; and lines on the
    choice for the user."""

    settings: Settings
    data: dict[str, Data]
    notes: list[str]


def setting_of(kind: str) -> str:
    """Return the setting that names a corpus of this kind; all kinds of a user's own families share one."""
    return SETTINGS.get(kind, SETTINGS["own"])


def flag_of_corpus(kind: str) -> str:
    """Return the flag that names a corpus of this kind."""
    return flag_name(setting_of(kind))


def load_corpora(settings: Settings, device: str | None = None) -> Corpora:
    """Load what the families learn from. UserError: a corpus that was named cannot be used, or where none was, none can
    be had and the cap is more than a smoke test takes.

    device: the kind of a search's devices: where no text is named, the default one depends on what the cap can train.
    None: an experiment, whose trainings do not depend on the cap.
    """
    learners: dict[str, list[str]] = {}
    for family in settings.families:
        learners.setdefault(FAMILIES[family].corpus, []).append(family)
    named = {kind: getattr(settings, setting_of(kind)) for kind in learners}
    named = {kind: BUILTIN if kind not in CORPORA and value is None else value for kind, value in named.items()}
    unnamed = [kind for kind, value in named.items() if value is None]
    data = {kind: load_corpus(settings, kind, value) for kind, value in named.items() if value is not None}
    from_hub, notes = {"pairs": HUB_PAIRS, "text": HUB_TEXT}, list[str]()
    if device and "text" in unnamed:
        seconds = settings.budget * max(settings.families[name] for name in learners["text"])
        from_hub["text"], line = default_text(device, seconds)
    because = {kind: "no other corpus was named" for kind, value in named.items() if value == BUILTIN}
    if unnamed:
        found, why_not = load_from_hub({kind: from_hub[kind] for kind in unnamed})
        if device and why_not and settings.budget > MOST_TOY_SECONDS:
            raise toy_error(why_not, from_hub)
        data |= found
        because |= why_not
        if device and "text" in found:
            notes.append(f"{' and '.join(learners['text'])}: {line}")
    for kind in unnamed:
        named[kind] = from_hub[kind] if kind in data else BUILTIN
        if kind not in data:
            data[kind] = load_corpus(settings, kind, BUILTIN)
    too_long = f"pairs left out as longer than {LONGEST_CHARACTERS:,} characters on a side"
    notes += [
        f"{' and '.join(learners[kind])}: {what}: {count:,}"
        for kind, each in data.items() if isinstance(each, PairData)
        for what, count in ((too_long, each.too_long), ("bad lines or rows left out", each.bad_lines)) if count
    ]  # fmt: skip
    notes += [
        f"{' and '.join(learners[kind])}: {' and '.join(each.cut)} cut from train: of its own hardly a pair is left"
        for kind, each in data.items() if isinstance(each, PairData) and each.cut
    ]  # fmt: skip
    notes += [
        f"{' and '.join(learners[kind])}: {100 * each.unknown_share:.0f} % of the validation text are characters that "
        f"the text before it has not: all are one to a model"
        for kind, each in data.items() if isinstance(each, TextData) and each.unknown_share > MOST_UNKNOWN
    ]  # fmt: skip
    reasons: dict[str, list[str]] = {}
    for kind, why in because.items():
        reasons.setdefault(why, []).append(kind)
    notes += [
        f"{' and '.join(family for kind in kinds for family in learners[kind])}: {why}: using the builtin toy corpus, "
        f"only a smoke test; name a file with {' and '.join(dict.fromkeys(map(flag_of_corpus, kinds)))}"
        for why, kinds in reasons.items()
    ]
    return Corpora(
        settings=replace(settings, **{setting_of(kind): value for kind, value in named.items()}),
        data=data,
        notes=notes,
    )


def toy_error(why_not: Mapping[str, str], from_hub: Mapping[str, str]) -> UserError:
    """Return the error that says why texts of the hub cannot be had, by kind, that a cap of this size is not searched
    without."""
    why = next(iter(why_not.values()))
    missing = [kind for kind, each in why_not.items() if each == why]
    flags, texts = " and ".join(map(flag_of_corpus, missing)), " and ".join(from_hub[kind] for kind in missing)
    rule = f"the builtin toy corpus, only a smoke test, gets at most {whole_text(MOST_TOY_SECONDS)} unasked"
    remedy = f"name a file, write builtin, or name {texts} in a --plan where the hub can be reached, which keeps it"
    return UserError(f"{flags}: {why.removeprefix(f'{flags}: ')}; {rule}: {remedy}")


def default_text(device: str, seconds: float) -> tuple[str, str]:
    """Return the hub's text that a family with so many device-seconds has where none is named, and a line on it."""
    most = small_text_seconds(device)
    text, side = (HUB_LARGE_TEXT, "above") if seconds > most else (HUB_TEXT, "up to")
    since = f"default {side} {whole_text(most)} of a {KINDS[device]} (here {whole_text(seconds)})"
    return text, f"{text}, {since}; {flag_of_corpus('text')} names another"


def load_from_hub(texts: Mapping[str, str]) -> tuple[dict[str, Data], dict[str, str]]:
    """Load these default texts, as far as the hub, asked once, or this machine has them; by kind, and why not the
    rest."""
    names = {kind: HubName.parse(text, flag_of_corpus(kind)) for kind, text in texts.items()}
    answers = fetch_dataset_infos([name.repository for name in names.values()], ASK_SECONDS)
    out_of_reach, because = [], dict[str, str]()
    for kind, name in names.items():
        if unreachable(answers[name.repository]) and find_prepared(_source(kind, name.text), None) is None:
            try:
                if cached(name) is None:
                    out_of_reach.append(kind)
            except UserError as error:
                because[kind] = str(error)
    if out_of_reach:
        why = reason(answers[names[out_of_reach[0]].repository])
        rule = f"the Hugging Face hub cannot be reached ({why}) and nothing of it is cached"
        because |= dict.fromkeys(out_of_reach, rule)
    data = {}
    for kind in [kind for kind in texts if kind not in because]:
        try:
            data[kind] = _from_hub(kind, names[kind], answers[names[kind].repository])
        except UserError as error:
            because[kind] = str(error)
    return data, because


def load_corpus(settings: Settings, kind: str, value: Path | str) -> Data:
    """Load the text that a setting names, prepared. UserError: it cannot be used."""
    if isinstance(value, str) and value.startswith(HUB):
        name = HubName.parse(value, flag_of_corpus(kind))
        of_study: Any = study_facts(settings.resume).get("corpora") if settings.resume else None
        for each in of_study.values() if isinstance(of_study, dict) else ():
            digest = each.get("sha256", "") if isinstance(each, dict) else ""
            if kept := find_content(PairCorpus if kind == "pairs" else TextCorpus, name.text, digest):
                return kept
        return _from_hub(kind, name, fetch_dataset_infos([name.repository], PATIENCE_SECONDS)[name.repository])
    path, skip = None if value == BUILTIN else Path(value), settings.skip_bad_lines

    def read() -> Corpus:
        if kind == "pairs":
            return load_pairs(path, skip_bad_lines=skip, track=progress_bar)
        return load_text(path, track=progress_bar) if kind == "text" else _own(kind, path, str(value))

    what = f"{value} without bad lines" if kind == "pairs" and skip else str(value)
    return load_or_prepare(
        _source(kind, what), lambda: file_stamp(path) if path and kind in CORPORA else [], read, progress_bar
    )


def progress_bar(items: Iterable[T], about: str, total: int) -> Iterable[T]:
    """Return the items, with a progress bar while they are iterated over, if stderr is a terminal."""
    if not sys.stderr.isatty():
        return items
    return track(items, about, total, console=Console(stderr=True), transient=True)


def _from_hub(kind: str, name: HubName, answer: object) -> Data:
    stamp, answer = commit(name, answer)

    def read() -> Corpus:
        splits = open_splits(name, answer)
        if kind == "pairs":
            return pairs_from(name, splits, track=progress_bar)
        return text_from(name, splits, track=progress_bar) if kind == "text" else _own(kind, splits, name.text)

    return load_or_prepare(_source(kind, name.text), lambda: stamp if kind in CORPORA else [], read, progress_bar)


def _own(kind: str, source: Path | Mapping[str, Any] | None, name: str) -> OwnData:
    """Load a corpus as the first family that learns from it reads it; anew each time, as its code may do anything.
    UserError: it raises an error."""
    family = next(name for name, each in FAMILIES.items() if each.corpus == kind)
    try:
        read = FAMILIES[family].read(source)
        return replace(read, name=name, sha256=read.digest(), builtin=source is None)
    except Exception as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{flag_of_corpus(kind)}: {name!r}: {family} raised {error_text(error)}: correct it") from error


def _source(kind: str, what: str) -> str:
    """Return the name of a source, as a user would type it."""
    return f"{flag_of_corpus(kind)}: {what!r}"
