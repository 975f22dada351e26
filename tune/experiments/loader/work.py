"""What the first rank does for the loader experiment; the cores of the others are its processes'."""

import statistics
from collections.abc import Callable, Iterator
from functools import partial
from operator import itemgetter
from typing import Any

import torch.distributed as dist

from model.experiments.intervals import Interval, interval
from model.experiments.loading import Rounds, check_shared_memory, in_rounds
from model.parallel import ranks
from tune.distributed import Place, Said
from tune.experiments.experiment import Row
from tune.experiments.loader.supply import PREFETCH, Supply, Ways, supply_of

PREFETCHES = (1, 2, 4, 8)
"""Batches ahead for each worker that are compared."""
OWN = "own"
"""This project's batches, which need no loader."""


def work(place: Place, asked: dict[str, Any]) -> Iterator[Said]:
    """Do what was asked for and say what came of it."""
    if ranks() == 1 or dist.get_rank() == 0:
        yield from MEASURES[asked["measure"]](place, asked)


def measure_workers(place: Place, asked: dict[str, Any]) -> Iterator[Said]:
    """Each number of workers, and this project's own batches, in an empty loop and in a running one."""
    supply = supply_of(place, asked["of"])
    check_shared_memory(PREFETCH * sum(asked["workers"]) * supply.batch_bytes)
    sources = {str(workers): supply.read(workers=workers) for workers in asked["workers"]}
    if supply.own is not None:
        sources[OWN] = supply.read_own()
    yield from measured(supply, {f"{name} {kind}": way for name, ways in sources.items() for kind, way in ways.items()},
                        place, partial(figures_of, list(sources)))  # fmt: skip


def measure_settings(place: Place, asked: dict[str, Any]) -> Iterator[Said]:
    """Batches ahead, and workers that are kept from one epoch to the next or begun anew, in a running loop."""
    supply, workers = supply_of(place, asked["of"]), asked["workers"]
    check_shared_memory(sum(PREFETCHES) * workers * supply.batch_bytes)
    ways = {f"kept {each}": supply.read(workers=workers, prefetch=each) for each in PREFETCHES}
    ways[f"anew {PREFETCH}"] = supply.read(workers=workers, persistent=False)
    yield from measured(supply, {f"{name} loop": each["loop"] for name, each in ways.items()},
                        place, partial(figures_of, list(ways)))  # fmt: skip


def measured(
    supply: Supply, ways: Ways, place: Place, figures: Callable[[Rounds, Rounds], list[Row]]
) -> Iterator[Said]:
    """The ways in turns; the row."""
    yield Said(what="start")
    begun, rounds = in_rounds(ways, place.left)
    yield Said(what="steps", row={
        "rows": supply.rows, "batches": supply.batches, "items": supply.items, "sources": figures(begun, rounds),
        "rounds": rounds,
    })  # fmt: skip


def figures_of(names: list[str], begun: Rounds, rounds: Rounds) -> list[Row]:
    """Of each source, seconds a batch with their intervals.

    gain: times as fast in a running loop as the first source; of_best: its seconds there over those of the fastest
    DataLoader; start_seconds: until the first batch of all came, processes and all; first: until that of a later epoch.
    """
    found = []
    medians = {name: statistics.median(rounds[f"{name} loop whole"]) for name in names if name != OWN}
    best = min(medians, key=medians.__getitem__)
    for name in names:
        kinds = {"empty": f"{name} empty whole"} if f"{name} empty whole" in rounds else {}
        kinds |= {"wait": f"{name} loop wait", "whole": f"{name} loop whole", "first": f"{name} loop first"}
        figures: Row = {kind: interval(itemgetter(key), {key: rounds[key]}) for kind, key in kinds.items()}
        figures["gain"] = over(rounds, names[0], name)
        figures["of_best"] = over(rounds, name, best)
        figures["start_seconds"] = begun[f"{name} {'empty' if 'empty' in kinds else 'loop'} first"][0]
        found.append({"name": name} | figures)
    return found


def over(rounds: Rounds, above: str, below: str) -> Interval:
    """The seconds of a source in a running loop over those of another, of the same rounds."""
    pair = {key: rounds[f"{name} loop whole"] for key, name in (("above", above), ("below", below))}
    return interval(lambda median: median["above"] / median["below"], pair)


MEASURES = {"workers": measure_workers, "settings": measure_settings}
