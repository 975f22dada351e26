"""The facts of a study: what it was asked for, of which text, with which versions, on what."""

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
from tune.board.tensorboard import TensorBoard
from tune.devices import Devices
from tune.journal import Journal
from tune.settings import Settings
from tune.stopwatch import Stopwatch

PACKAGES = ("ray", "torch", "numpy", "optuna", "tokenizers", "tensorboard")


def facts_of(settings: Settings, devices: Devices, data: Mapping[str, Data], **more: str) -> dict[str, Any]:
    """What the study is."""
    corpora = {
        name: {"name": each.name, "sha256": each.sha256, "builtin": each.builtin, "vocabulary": each.vocabulary}
        for name, each in data.items()
    }
    return {
        "settings": settings.stored(),
        "families": dict(settings.families),
        "cap_seconds": settings.budget,
        "created": time.time(),
        "versions": {"python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in PACKAGES},
        "devices": {"kind": devices.kind, "slots": devices.slots, "name": devices.name},
        "corpora": corpora,
        "commit": git_commit(),
    } | more


def write_facts(facts: Mapping[str, Any], folder: Path) -> None:
    """For people, and for --resume: study.json, whole or not at all."""
    new = folder / "study.json.new"
    new.write_text(json.dumps(facts, indent=1), encoding="utf-8")
    new.replace(folder / "study.json")


def note_facts(facts: Mapping[str, Any], journal: Journal) -> None:
    """For analysis, in the journal too. A study that goes on was created when it was created first."""
    facts = {**facts, "created": journal.facts().get("created", facts["created"])}
    write_facts(facts, journal.folder)
    journal.note(**facts)


def age_of(journal: Journal, ago: float) -> float:
    """Seconds since a study began, whoever ran meanwhile, by the system's clock; a new one began so long `ago`."""
    created = journal.facts().get("created")
    if created is None:
        journal.note(created=time.time() - ago)
        return ago
    return max(0.0, time.time() - float(created))


@contextmanager
def overhead_noted(journal: Journal, tensorboard: TensorBoard) -> Iterator[None]:
    """Write down what the journal and TensorBoard took of the search that runs inside, in seconds of the driver's."""
    watches = {"search": Stopwatch(), "journal": journal.watch, "tensorboard": tensorboard.watch}
    before = {name: watch.seconds for name, watch in watches.items()}
    with watches["search"]:
        yield
    journal.note(overhead={name: watch.seconds - before[name] for name, watch in watches.items()})


def git_commit() -> str | None:
    """The commit of this code, where it lies in a git repository."""
    here = Path(__file__).resolve().parent
    found = subprocess.run(["git", "-C", str(here), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or None
