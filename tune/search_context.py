"""What a search stands on: what its settings come to on this machine, checked before anything is written; and what of
the cap is kept aside to measure what more devices would gain for the winner.
"""

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
from tune.experiments.base import FoundTrial, Point, affordable_share, price
from tune.experiments.runner import unmeasured
from tune.experiments.scaling import SCALING, points_of
from tune.flags import counts_text, invalid
from tune.search.cost_model import FIRST_OVERHEAD_SECONDS, FIRST_START_UP_SECONDS
from tune.search.memory_model import GPU_OVERHEAD_BYTES, OVERHEAD_BYTES, Memory
from tune.search_space import SPACES, Space, freed
from tune.settings import Settings
from tune.store.journal import Journal
from tune.units import bytes_text
from tune.winners import Winner, winners

SHARE = 0.1
"""Of a cap: but no less than the points must have, and no more than they are worth."""


@dataclass(frozen=True, kw_only=True)
class Aside:
    """For the points of the scaling experiment on these numbers of devices; nothing for none. All in device-seconds."""

    counts: Sequence[int]

    def of(self, cap: float) -> float:
        """What is kept of a cap."""
        return self._bounded(SHARE * cap)

    def rest(self, cap: float) -> float:
        """What the search has of a new study's cap."""
        return cap - self.of(cap)

    def least_cap(self, search: float) -> float:
        """The least cap that leaves so much to the search."""
        return search + self._bounded(SHARE / (1 - SHARE) * search)

    def points(self, cap: float) -> list[Point]:
        """Each with the seconds that it is given of a cap."""
        share = affordable_share(self._points, self.of(cap))
        return [replace(point, seconds=point.given(share)) for point in self._points]

    def to_come(self, cap: float, journal: Journal, shares: Mapping[str, float]) -> list[Point]:
        """Those points of which the best trial so far has no row."""
        points, best = self.points(cap), best_of_all(journal, shares) if self.counts else None
        return unmeasured(points, journal, SCALING.name, FoundTrial(best.trial)) if best else points

    @property
    def _points(self) -> list[Point]:
        return [point for count in self.counts for point in points_of(count)]

    def _bounded(self, seconds: float) -> float:
        return min(max(price(self._points, 0.0), seconds), price(self._points))


def best_of_all(journal: Journal, shares: Mapping[str, float]) -> Winner | None:
    """The winner of the family with the largest share of the cap, of those that have one; the first of equal ones."""
    found = winners(journal)
    return max((found[name] for name in shares if name in found), key=lambda each: shares[each.family], default=None)


SHORTEST_RUNG_SECONDS = 4.0
"""Training at rung 0 that tells anything."""


@dataclass(frozen=True, kw_only=True)
class Grounds:
    """What a search stands on; each mapping is by family.

    settings: each corpus is named. devices: shared as the settings ask for. held_to: bytes that a trial is held to.
    notes: lines for the user: which texts serve and why, what the memory limit comes to; aside: what of the cap is not
    for the search; begun: when it was asked for, on the monotonic clock.
    """

    settings: Settings
    devices: Devices
    spaces: Mapping[str, Space]
    data: Mapping[str, Data]
    memories: Mapping[str, Memory]
    held_to: int | None
    notes: Sequence[str]
    aside: Aside
    begun: float

    @property
    def cpus(self) -> int:
        """Of Ray: one for each process at a time."""
        return max((self.devices.slots, *self.aside.counts))


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
    check_scaling(settings, devices)
    aside = Aside(counts=settings.scale_winner)
    check_cap(settings, aside)
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
        aside=aside,
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


def check_scaling(settings: Settings, devices: Devices) -> None:
    """UserError: the winner cannot be trained on so many devices."""
    if settings.scale_winner:
        settings.check_there("scale_winner", max(settings.scale_winner), devices.count)
        if settings.address is not None:
            rule = "are devices of one machine, and --address names a cluster: leave one of the two out"
            raise invalid("scale_winner", f"'{counts_text(settings.scale_winner)}' {rule}")


def check_cap(settings: Settings, aside: Aside) -> None:
    """UserError: a cap that pays for no rung and last stretch of one trial of each family beside what is aside."""
    least = FIRST_START_UP_SECONDS + 2 * (FIRST_OVERHEAD_SECONDS + SHORTEST_RUNG_SECONDS)
    smallest = aside.least_cap(max(least / share for share in settings.families.values()))
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
