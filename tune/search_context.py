"""What a search stands on: what its settings come to on this machine, checked before anything is written."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from model.config import RECIPES, Config, Data
from model.families import BUILT_IN, FAMILIES
from model.training.learner import dry_batch
from model.training.memory import machine_bytes
from tune.corpora import FLAGS, load_corpora, prepare
from tune.devices import Devices
from tune.errors import UserError, told_of
from tune.search.family import FIRST_OVERHEAD_SECONDS, FIRST_START_UP_SECONDS
from tune.search.memory_model import GPU_OVERHEAD_BYTES, OVERHEAD_BYTES, Memory
from tune.search_space import SPACES, Space, freed
from tune.settings import Settings
from tune.units import bytes_text

SHORTEST_RUNG_SECONDS = 4.0
"""Training at rung 0 that tells anything."""


@dataclass(frozen=True, kw_only=True)
class Grounds:
    """What a search stands on; each mapping is by family.

    settings: each corpus is named. devices: shared as the settings ask for. held_to: bytes that a trial is held to.
    notes: lines for the user: which texts serve and why, what the memory limit comes to; begun: when it was
    asked for, on the monotonic clock.
    """

    settings: Settings
    devices: Devices
    spaces: Mapping[str, Space]
    data: Mapping[str, Data]
    memories: Mapping[str, Memory]
    held_to: int | None
    notes: Sequence[str]
    begun: float


def survey(settings: Settings, devices: Devices) -> Grounds:
    """The grounds of a search on these devices. UserError: a setting that cannot serve."""
    begun = time.monotonic()
    spaces = {
        name: Space(
            family=name, precisions=devices.precisions, fix=settings.fix,
            vary=freed(tuple(each for each in settings.vary if each not in SPACES[name]), RECIPES[name]),
        )
        for name in settings.families
    }
    check_cap(settings)
    texts = load_corpora(settings)
    prepared = {kind: prepare(corpus) for kind, corpus in texts.corpora.items()}
    data = {name: prepared[FAMILIES[name].corpus] for name in settings.families}
    for name, each in data.items():
        check_learns(Config.at(spaces[name].default(), family=name, seed=settings.seed), each)
    memories = {name: make_memory(name, each, devices.kind) for name, each in data.items()}
    devices = devices.shared(settings, max(memories[name].predicted(spaces[name].default(), 1) for name in spaces))
    asked, notes = memory_limit(settings, devices)
    limits = [limit for limit in (asked, devices.trial_bytes) if limit is not None]
    for memory in memories.values():
        memory.limit = min(limits, default=math.inf)
    check_memory(settings, spaces, memories)
    return Grounds(
        settings=texts.settings, devices=devices, spaces=spaces, data=data, memories=memories,
        held_to=asked if devices.trials_each == 1 else min(limits), notes=[*texts.notes, *notes],
        begun=begun,
    )  # fmt: skip


def check_learns(config: Config, data: Data) -> None:
    """UserError: two rows of a family of a user's own do not go through it on the CPU. What fails of ours is a bug."""
    doing = ""
    try:
        for step in dry_batch(replace(config, precision="fp32"), data):
            doing = step
    except Exception as error:
        if config.family in BUILT_IN or isinstance(error, UserError):
            raise
        line = f"its {doing} raised {told_of(error)} on two rows on the CPU"
        raise UserError(f"--families: {config.family!r}: {line}: mend it; nothing was spent") from error


def check_cap(settings: Settings) -> None:
    """UserError: a cap that pays for no rung and last stretch of one trial of each family."""
    least = FIRST_START_UP_SECONDS + 2 * (FIRST_OVERHEAD_SECONDS + SHORTEST_RUNG_SECONDS)
    smallest = max(least / share for share in settings.families.values())
    if settings.budget < smallest:
        raise settings.too_small(smallest)


def memory_limit(settings: Settings, devices: Devices) -> tuple[int | None, list[str]]:
    """Bytes that a trial is held to: those asked for, as far as a machine has them; and a line where it has not."""
    asked, there = settings.memory_limit, devices.memory_bytes or (None if settings.address else machine_bytes())
    if asked is None or there is None or asked <= there:
        return asked, []
    return there, [f"--memory-limit: {bytes_text(asked)} is more than a machine has: its {bytes_text(there)} count"]


def make_memory(family: str, data: Data, kind: str) -> Memory:
    """Of one family on this text; it has no limit yet."""

    def paper(config: Mapping[str, Any], micro_batches: int) -> int:
        whole = Config.at(config, family=family)
        return FAMILIES[family].footprint(whole, data, micro_batches=micro_batches, device=torch.device(kind))

    def most(config: Mapping[str, Any]) -> int:
        return FAMILIES[family].most_micro_batches(Config.at(config, family=family), data)

    overhead = GPU_OVERHEAD_BYTES if kind == "cuda" else OVERHEAD_BYTES.get(family, max(OVERHEAD_BYTES.values()))
    return Memory(overhead=overhead, paper=paper, most=most)


def check_memory(settings: Settings, spaces: Mapping[str, Space], memories: Mapping[str, Memory]) -> None:
    """UserError: a limit in which no config of a family fits."""
    for name, memory in memories.items():
        if not any(memory.micro_batches(config) for config in spaces[name].configs()):
            least = min(map(memory.smallest, spaces[name].configs()))
            raise settings.too_little_memory(name, memory.limit, least)


def check_same_text(data: Mapping[str, Data], facts: Mapping[str, Any]) -> None:
    """UserError: a corpus is not the text that the study began with (its `facts`, from the journal)."""
    for family, corpus in data.items():
        before = facts.get("corpora", {}).get(family, {"sha256": corpus.sha256})
        if corpus.sha256 != before["sha256"]:
            rule = "a study goes on with the text that it began with: restore it, or begin a new study"
            raise UserError(f"{FLAGS[FAMILIES[family].corpus]}: {corpus.name!r} has changed since: {rule}")


def check_same_kind(devices: Devices, facts: Mapping[str, Any]) -> None:
    """UserError: a study that ran on GPUs (its `facts`, from the journal) would go on on CPU cores, or the reverse."""
    before, names = facts.get("devices", {}).get("kind", devices.kind), {"cuda": "GPUs", "cpu": "CPU cores"}
    if before != devices.kind:
        rule = f"runs on {names.get(before, before)}, and here are {names[devices.kind]}: their losses do not compare"
        raise UserError(f"--resume: the study {rule}; go on with it where it began, or begin anew")
