"""Batches by torch's DataLoader in 0 to 10 workers: what a running loop waits for; of text, or of a user's images."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from operator import itemgetter
from typing import Any

import torch.distributed as dist

from kernels.timing import interval
from model.families import FAMILIES
from model.training.ddp import ranks
from tune.backend.worker_group import Place, Said
from tune.devices import Devices
from tune.experiments import loading
from tune.experiments.base import Experiment, ExperimentSettings, Point, Row, Table
from tune.experiments.loading import PREFETCH, check_shared_memory, read_through, supply_of
from tune.experiments.parallel_timing import Rounds, in_rounds
from tune.experiments.tables import NOTHING, with_interval

FASTEST, SLOWER_FROM = 2, 7
"""Workers, of the published report: the fastest number, and that from which on they are slower than none."""
PREFETCHES = (1, 2, 4, 8)
"""Batches ahead for each worker that are compared."""
OWN = "own"
"""This project's batches, which need no loader."""


def tables(rows: Sequence[Row]) -> list[Table]:
    """Workers of each kind of data, then the settings."""
    found = [row for row in rows if "sources" in row]
    return [(workers if row["asked"]["measure"] == "workers" else settings)(row) for row in found]


def workers(row: Row) -> Table:
    """What each number of workers takes."""
    epoch, rounds = row["items"] / row["rows"], len(row["rounds"]["0 loop whole"])
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
        f"{row['rows']} of {row['items']:,} at a time; medians of {rounds} rounds of {row['batches']} batches, "
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


def work(place: Place, asked: dict[str, Any]) -> Iterator[Said]:
    """Each source of batches in turns, in a running loop; of numbers of workers, and of this project's own batches, in
    an empty loop too."""
    if ranks() > 1 and dist.get_rank():
        return
    supply, workers = supply_of(place), asked["workers"]
    if asked["measure"] == "workers":
        loaders = {str(each): {"workers": each} for each in workers}
    else:
        loaders = {f"kept {each}": {"workers": workers, "prefetch": each} for each in PREFETCHES}
        loaders[f"anew {PREFETCH}"] = {"workers": workers, "persistent": False}
    under_way = sum(each["workers"] * each.get("prefetch", PREFETCH) for each in loaders.values())
    check_shared_memory(under_way * supply.batch_bytes)
    epochs: dict[str, Any] = {name: partial(iter, supply.loader(**each)) for name, each in loaders.items()}
    loops = {"loop": supply.use}
    if asked["measure"] == "workers":
        epochs[OWN] = partial(islice, supply.own, loading.BATCHES)
        loops = {"empty": lambda batch: None} | loops
    ways = {name: partial(read_through, name, epoch, use) for source, epoch in epochs.items()
            for loop, use in loops.items() for name in [f"{source} {loop}"]}  # fmt: skip
    yield Said(what="start")
    begun = {what: seconds for way in ways.values() for what, seconds in way().items()}
    rounds = in_rounds(ways, place.left)
    first, loop = next(iter(epochs)), next(iter(loops))
    sources = [
        {"name": name, "start_seconds": begun[f"{name} {loop} first"]} | figures(rounds, name, first) for name in epochs
    ]
    yield Said(what="steps", row={
        "rows": supply.rows, "batches": loading.BATCHES, "items": len(supply.items), "sources": sources,
        "rounds": rounds,
    })  # fmt: skip


KINDS = {"empty": "empty whole", "wait": "loop wait", "whole": "loop whole", "first": "loop first"}
"""`first`: of a later epoch."""


def figures(rounds: Rounds, name: str, first: str) -> Row:
    """Of a source, seconds a batch with their intervals, and `gain`: times as fast in a running loop as the first."""
    own = {kind: rounds[f"{name} {key}"] for kind, key in KINDS.items() if f"{name} {key}" in rounds}
    found = {kind: interval(itemgetter(kind), {kind: seconds}) for kind, seconds in own.items()}
    pair = {"first": rounds[f"{first} loop whole"], "own": own["whole"]}
    return {**found, "gain": interval(lambda median: median["first"] / median["own"], pair)}


MOST_WORKERS = 10
"""The published report's."""
FEW_WORKERS = 2
"""With so many, where there are as many, the other settings are compared."""
ROUNDS, LEAST_ROUNDS = 20, 8
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
    best = min((each for each in row["sources"] if each["name"] != OWN), key=lambda source: source["whole"][0])
    return f"fastest in a running loop: {best['name']}, {with_interval(best['whole'], '{:.2f}', 1e3)} ms a batch, " \
           f"of which {with_interval(best['wait'], '{:.2f}', 1e3)} waited for"  # fmt: skip


LOADER = Experiment(
    name="loader", about="DataLoader workers, their settings, and this project's own batches, in a running loop",
    points=points, work=work, line=line, tables=tables, any_family=True,
)  # fmt: skip
