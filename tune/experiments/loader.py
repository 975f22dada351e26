"""Batches by torch's DataLoader in 0 to 10 workers: what a running loop waits for; of text, or of a user's images."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import torch.distributed as dist

from model.families import FAMILIES
from model.training.ddp import ranks
from tune.backend.worker_group import Place, Said
from tune.devices import Devices
from tune.experiments.base import Experiment, ExperimentSettings, Point, Row, Table
from tune.experiments.loading import PREFETCH, Rounds, Supply, Ways, check_shared_memory, in_rounds, supply_of
from tune.experiments.parallel_timing import Interval, interval
from tune.experiments.tables import NOTHING, with_interval

FASTEST, SLOWER_FROM = 2, 7
"""Workers, of the published report: the fastest number, and that from which on they are slower than none."""


def tables(rows: Sequence[Row]) -> list[Table]:
    """Workers of each kind of data, then the settings."""
    found = [row for row in rows if "sources" in row]
    return [(workers if row["asked"]["measure"] == "workers" else settings)(row) for row in found]


def workers(row: Row) -> Table:
    """What each number of workers takes."""
    epoch = row["items"] / row["rows"]
    cells = [
        [
            source["name"], with_interval(source["empty"], "{:.2f}", 1e3), f"{epoch * source['empty'][0]:.1f}",
            with_interval(source["wait"], "{:.2f}", 1e3), with_interval(source["whole"], "{:.2f}", 1e3),
            with_interval(source["gain"], "{:.2f}"), f"{1e3 * source['first'][0]:.1f}",
            f"{source['start_seconds']:.2f}", published(source["name"]),
        ]
        for source in row["sources"]
    ]  # fmt: skip
    columns = (
        *("workers", "empty loop, ms", "whole set, s", "running: wait, ms", "running: all, ms"),
        *("times as fast", "first batch, ms", "begin, s", "published"),
    )
    note = (
        f"{row['rows']} of {row['items']:,} at a time; medians of {rounds_of(row)} rounds of {row['batches']} batches, "
        "in turns; begin: until the very first batch, processes and all; first batch: of a later epoch"
    )
    return Table(title=f"Loading {row['asked']['of']}, a batch", columns=columns, rows=cells, note=note)


def settings(row: Row) -> Table:
    """What prefetching and keeping the workers takes."""
    cells = [
        [
            *reversed(source["name"].split()), f"{1e3 * source['first'][0]:.1f}",
            with_interval(source["wait"], "{:.2f}", 1e3), with_interval(source["whole"], "{:.2f}", 1e3),
        ]
        for source in row["sources"]
    ]  # fmt: skip
    columns = "batches ahead", "workers are", "first batch, ms", "running: wait, ms", "running: all, ms"
    count = row["asked"]["workers"]
    title = f"Settings with {count} worker{'s' * (count != 1)}, {row['asked']['of']}, a batch"
    return Table(title=title, columns=columns, rows=cells, note=f"epochs of {row['batches']} batches")


def published(name: str) -> str:
    """What the report tells of a number of workers."""
    if name == OWN:
        return NOTHING
    return "fastest" if int(name) == FASTEST else "slower than 0" if int(name) >= SLOWER_FROM else NOTHING


def rounds_of(row: Row) -> int:
    """How often each was measured."""
    return len(next(iter(row["rounds"].values())))


def loaders(row: Row) -> list[dict[str, Any]]:
    """The sources that are DataLoaders."""
    return [source for source in row["sources"] if source["name"] != OWN]


def fastest(row: Row, kind: str) -> dict[str, Any]:
    """The DataLoader that takes the least of a kind."""
    return min(loaders(row), key=lambda source: source[kind][0])


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
    supply = supply_of(place)
    check_shared_memory(PREFETCH * sum(asked["workers"]) * supply.batch_bytes)
    sources = {str(workers): supply.read(workers=workers) for workers in asked["workers"]}
    sources[OWN] = supply.read_own()
    yield from measured(supply, {f"{name} {kind}": way for name, ways in sources.items() for kind, way in ways.items()},
                        place, partial(figures_of, list(sources)))  # fmt: skip


def measure_settings(place: Place, asked: dict[str, Any]) -> Iterator[Said]:
    """Batches ahead, and workers that are kept from one epoch to the next or begun anew, in a running loop."""
    supply, workers = supply_of(place), asked["workers"]
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

    gain: times as fast in a running loop as the first source; start_seconds: until the first batch of all came,
    processes and all; first: until that of a later epoch.
    """
    found = []
    for name in names:
        kinds = {"empty": f"{name} empty whole"} if f"{name} empty whole" in rounds else {}
        kinds |= {"wait": f"{name} loop wait", "whole": f"{name} loop whole", "first": f"{name} loop first"}
        figures: Row = {kind: interval(itemgetter(key), {key: rounds[key]}) for kind, key in kinds.items()}
        figures["gain"] = over(rounds, names[0], name)
        figures["start_seconds"] = begun[f"{name} {'empty' if 'empty' in kinds else 'loop'} first"][0]
        found.append({"name": name} | figures)
    return found


def over(rounds: Rounds, above: str, below: str) -> Interval:
    """The seconds of a source in a running loop over those of another, of the same rounds."""
    pair = {key: rounds[f"{name} loop whole"] for key, name in (("above", above), ("below", below))}
    return interval(lambda median: median["above"] / median["below"], pair)


MEASURES = {"workers": measure_workers, "settings": measure_settings}


MOST_WORKERS = 10
"""The published report's."""
FEW_WORKERS = 2
"""With so many, where there are as many, the other settings are compared."""
ROUNDS, LEAST_ROUNDS = 20, 7
TURN_SECONDS = 4.0
"""Of a number of workers, in an empty loop and in a running one."""
RUNNING_SECONDS = 3.0
"""Of that, the running one."""
BEGIN_SECONDS, WORKER_SECONDS = 10.0, 0.5
"""Until the rows are there and the first process can be begun, and for each process."""


def points(devices: Devices, settings: ExperimentSettings) -> list[Point]:
    """On CPU cores a point holds those of its workers too."""
    cores = devices.slots if devices.kind == "cpu" else devices.cores
    most = MOST_WORKERS if settings.oversubscribe else min(MOST_WORKERS, cores)
    held = min(devices.slots, 1 + most) if devices.kind == "cpu" else 1
    counts = list(range(most + 1))
    few = min(FEW_WORKERS, most)
    of, a_round = FAMILIES[settings.family].corpus, (len(counts) + 1) * TURN_SECONDS
    workers = point(held, {"measure": "workers", "of": of, "workers": counts}, a_round, processes=sum(counts))
    a_round = (len(PREFETCHES) + 1) * RUNNING_SECONDS + few * WORKER_SECONDS
    settings_of = {"measure": "settings", "of": of, "workers": few}
    return [workers, point(held, settings_of, a_round, processes=few * len(PREFETCHES))]


def point(devices: int, asked: dict[str, Any], round_seconds: float, *, processes: int) -> Point:
    """processes: that are begun before the first round."""
    begin = BEGIN_SECONDS + processes * WORKER_SECONDS
    return Point(
        devices=devices, asked=asked, seconds=begin + ROUNDS * round_seconds, least=begin + LEAST_ROUNDS * round_seconds
    )


def line(row: Row) -> str:
    """What came out, in short."""
    best = fastest(row, "whole")
    return f"fastest in a running loop: {best['name']}, {with_interval(best['whole'], '{:.2f}', 1e3)} ms a batch, " \
           f"of which {with_interval(best['wait'], '{:.2f}', 1e3)} waited for"  # fmt: skip


LOADER = Experiment(
    name="loader", about="DataLoader workers, their settings, and this project's own batches, in a running loop",
    points=points, work=work, line=line, tables=tables, any_family=True,
)  # fmt: skip
