"""The facts of a study, kept in its study.json and its journal, and checks that a resumed study agrees with them."""

import importlib.metadata
import json
import platform
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from model.config import Data
from model.families import FAMILIES
from tune.corpora import flag_of_corpus
from tune.devices import Devices
from tune.display.tensorboard import TensorBoard
from tune.errors import ROOT, UserError
from tune.machine import write_whole
from tune.settings import Settings
from tune.store.journal import STUDY_FILE, Journal, Stopwatch

PACKAGES = ("ray", "torch", "numpy", "optuna", "tokenizers", "tensorboard")
OF_DEVICES = "kind", "slots", "share", "name", "precisions"
OF_TOKENS = "vocabulary", "training_tokens"
OF_CORPUS = "name", "sha256", "builtin", *OF_TOKENS


def facts_of(settings: Settings, devices: Devices, data: Mapping[str, Data], **more: Any) -> dict[str, Any]:
    """Return the facts of a study: settings, families, cap, versions, devices, texts and commit."""
    return {
        "settings": settings.stored(),
        "families": dict(settings.families),
        "cap_seconds": settings.budget,
        "created": time.time(),
        "versions": {"python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in PACKAGES},
        "devices": {each: getattr(devices, each) for each in OF_DEVICES},
        "corpora": {family: {each: getattr(corpus, each) for each in OF_CORPUS} for family, corpus in data.items()},
        "commit": git_commit(),
    } | more


def write_facts(facts: Mapping[str, Any], folder: Path) -> None:
    """Write study.json, whole or not at all: for people, and for --resume."""
    write_whole(folder / STUDY_FILE, json.dumps(facts, indent=1))


def note_facts(facts: Mapping[str, Any], journal: Journal) -> None:
    """Write the facts to study.json, and to the journal for analysis. A resumed study keeps its time of creation."""
    facts = {**facts, "created": journal.facts().get("created", facts["created"])}
    write_facts(facts, journal.folder)
    journal.write_facts(**facts)


@contextmanager
def record_overhead(journal: Journal, tensorboard: TensorBoard) -> Iterator[None]:
    """Note in the journal how many of the driver's seconds the search that runs inside, its journal and TensorBoard
    took, in all runs of the study."""
    watches = {"search": Stopwatch(), "journal": journal.watch, "tensorboard": tensorboard.watch}
    before = {name: watch.seconds for name, watch in watches.items()}
    with watches["search"]:
        yield
    so_far: Any = journal.facts().get("overhead", {})
    took = {name: watch.seconds - before[name] + so_far.get(name, 0.0) for name, watch in watches.items()}
    journal.write_facts(overhead=took)


def git_commit() -> str | None:
    """Return the commit of this code; None where it is not in a git repository of its own, or git is not installed."""
    words = ["git", "-C", str(ROOT), "rev-parse", "--show-toplevel", "HEAD"]
    try:
        top, commit = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    except (OSError, ValueError, subprocess.CalledProcessError):
        return None
    return commit if Path(top) == ROOT else None


def check_same_text(data: Mapping[str, Data], facts: Mapping[str, Any]) -> None:
    """Check a resumed study's texts against its `facts`, from the journal. UserError: a corpus has changed, or what it
    is tokenized to has."""
    for family, corpus in data.items():
        before = facts.get("corpora", {}).get(family, {"sha256": corpus.sha256})
        if corpus.sha256 != before["sha256"] or any(
            before.get(each, getattr(corpus, each)) != getattr(corpus, each) for each in OF_TOKENS
        ):
            what = f"{flag_of_corpus(FAMILIES[family].corpus)}: {corpus.name!r} has changed since, or its tokens have"
            rule = "a study goes on with the text, Ration and packages that it began with"
            raise UserError(f"{what}: {rule}: restore them, or begin a new study")


def check_same_kind(devices: Devices, facts: Mapping[str, Any]) -> None:
    """Check a resumed study's devices against its `facts`, from the journal. UserError: it would go on from GPUs to CPU
    cores, or the reverse."""
    before, names = facts.get("devices", {}).get("kind", devices.kind), {"cuda": "GPUs", "cpu": "CPU cores"}
    if before != devices.kind:
        rule = f"runs on {names.get(before, before)}, and here are {names[devices.kind]}: their figures do not compare"
        raise UserError(f"--resume: the study {rule}; go on with it where it began, or begin again")
