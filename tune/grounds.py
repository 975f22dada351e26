"""The grounds of a search: what its settings come to on this machine, checked before anything is written."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from model.config import Config, Data
from model.footprint import footprint, most_micro_batches
from tune.corpora import FLAGS, load_corpora, prepare
from tune.devices import Devices
from tune.memory import GPU_OVERHEAD_BYTES, OVERHEAD_BYTES, Memory
from tune.prices import FIRST_OVERHEAD_SECONDS, FIRST_START_UP_SECONDS, FixedPrices, load_prices
from tune.settings import Settings
from tune.space import Space

SHORTEST_RUNG_SECONDS = 4.0
"""Training at rung 0 that tells anything."""


@dataclass(frozen=True, kw_only=True)
class Grounds:
    """What a search stands on; each mapping is by family. prices: only those that are fixed.

    settings: each corpus is named. notes: lines for the user on which texts serve, and why.
    """

    settings: Settings
    devices: Devices
    spaces: Mapping[str, Space]
    data: Mapping[str, Data]
    memories: Mapping[str, Memory]
    prices: Mapping[str, FixedPrices]
    notes: Sequence[str]


def survey(settings: Settings, devices: Devices) -> Grounds:
    """The grounds of a search on these devices. ValueError: a setting that cannot serve."""
    spaces = {name: Space(family=name, precisions=devices.precisions, fix=settings.fix) for name in settings.families}
    check_cap(settings)
    prices = {} if settings.prices is None else load_prices(settings.prices, settings.families)
    texts = load_corpora(settings)
    data = {name: prepare(corpus) for name, corpus in texts.corpora.items()}
    limit = settings.memory_limit or devices.memory_bytes or math.inf
    memories = {name: make_memory(name, each, limit, devices.kind) for name, each in data.items()}
    check_memory(settings, spaces, memories)
    return Grounds(
        settings=texts.settings, devices=devices, spaces=spaces, data=data, memories=memories, prices=prices,
        notes=texts.notes,
    )  # fmt: skip


def check_cap(settings: Settings) -> None:
    """ValueError: a cap that does not pay for a rung and a last stretch of one trial of each family."""
    least = FIRST_START_UP_SECONDS + 2 * (FIRST_OVERHEAD_SECONDS + SHORTEST_RUNG_SECONDS)
    smallest = max(least / share for share in settings.families.values())
    if settings.budget < smallest:
        raise settings.too_small(smallest)


def make_memory(family: str, data: Data, limit: float, kind: str) -> Memory:
    """Of one family on this text."""

    def paper(config: Mapping[str, Any], micro_batches: int) -> int:
        whole = Config(family=family, **config)
        return footprint(whole, data, micro_batches=micro_batches, device=torch.device(kind))

    def most(config: Mapping[str, Any]) -> int:
        return most_micro_batches(Config(family=family, **config), data)

    overhead = GPU_OVERHEAD_BYTES if kind == "cuda" else OVERHEAD_BYTES[family]
    return Memory(limit=limit, overhead=overhead, paper=paper, most=most)


def check_memory(settings: Settings, spaces: Mapping[str, Space], memories: Mapping[str, Memory]) -> None:
    """ValueError: a limit in which no config of a family fits."""
    for name, memory in memories.items():
        if not any(memory.micro_batches(config) for config in spaces[name].configs()):
            raise settings.too_little_memory(name, min(map(memory.smallest, spaces[name].configs())))


def check_same_text(data: Mapping[str, Data], facts: Mapping[str, Any]) -> None:
    """ValueError: a corpus is not the text that the study began with (its `facts`, from the journal)."""
    for family, corpus in data.items():
        before = facts.get("corpora", {}).get(family, {"sha256": corpus.sha256})
        if corpus.sha256 != before["sha256"]:
            rule = "a study goes on with the text that it began with: restore it, or begin a new study"
            raise ValueError(f"{FLAGS[family]}: {corpus.name!r} has changed since: {rule}")


def check_same_prices(prices: Mapping[str, FixedPrices], facts: Mapping[str, Any]) -> None:
    """ValueError: fixed prices are not those that the study began with (its `facts`, from the journal)."""
    now = {name: asdict(price) for name, price in prices.items()}
    if facts.get("prices", now) != now:
        raise ValueError("--prices: the file has changed since: a study keeps its prices; restore it, or begin anew")
