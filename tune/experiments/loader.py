"""Batches by torch's DataLoader in 0 to 10 workers: what a running loop waits for; of text, or of what a family of a
user's own has, such as images that are decoded and cut on the way.
"""

import multiprocessing
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from functools import partial
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any, cast

import numpy as np
import ray.cloudpickle
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, RandomSampler

from kernels.timing import interval
from model.config import Data
from model.data.batches import Batch, BatchShape, EndlessBatches, ResidentPairs, ResidentText, batch_shape
from model.data.dataset import PairData, TextData
from model.families import BUILT_IN, FAMILIES
from model.training.ddp import ranks
from model.training.learner import Learner
from tune.backend.worker_group import Place, Said
from tune.devices import Devices
from tune.errors import UserError
from tune.experiments.base import Experiment, ExperimentSettings, Point, Row, Table
from tune.experiments.parallel_timing import Rounds, in_rounds
from tune.experiments.tables import NOTHING, with_interval

BATCHES = 16
"""Of an epoch."""
PREFETCH = 2
"""Batches ahead for each worker: torch's own number."""
SHARED_MEMORY = Path("/dev/shm")
"""Where processes lay batches for the loop."""
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


class Items(Dataset[Any]):
    """What a function makes one by one. It goes to a loader's processes by value: they cannot import a class of a file
    that was loaded."""

    def __init__(self, count: int, item: Callable[[int], Any]) -> None:
        self.count, self.item = count, item

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> Any:
        return self.item(number)

    def __reduce__(self) -> tuple[Any, ...]:
        return _items, (ray.cloudpickle.dumps((self.count, self.item)),)


def _items(carried: bytes) -> Items:
    return Items(*ray.cloudpickle.loads(carried))


def rows_of(data: Data, shape: BatchShape) -> Items:
    """The windows of the training text, or the packed rows of the training pairs."""
    if isinstance(data, PairData):
        pairs, rows = ResidentPairs(data, data.train, "cpu"), data.rows
        return Items(len(rows), lambda each: pairs.batch(rows.of(np.array([each])), shape.source, shape.target))
    length, tokens = shape.target, cast(TextData, data).train
    text = ResidentText(tokens, "cpu")
    return Items((len(tokens) - 1) // length, lambda each: text.batch(np.array([each * length]), length))


def together(rows: Sequence[Batch]) -> Batch:
    """Rows as one batch."""
    inputs = zip(*(row.inputs for row in rows), strict=True)
    joined = tuple(None if some[0] is None else torch.cat(some) for some in inputs)
    return Batch(joined, torch.cat([row.targets for row in rows]), sum(row.tokens for row in rows))


@dataclass(frozen=True, kw_only=True)
class Supply:
    """What is loaded, and what a loop does with a batch; own: this project's own batches of the same.

    rows: of a batch; batch_bytes: of one under way from another process.
    """

    items: Items
    rows: int
    batch_bytes: int
    use: Callable[[Batch], None]
    own: Iterator[Batch]
    seed: int

    def loader(self, *, workers: int, prefetch: int = PREFETCH, persistent: bool = True) -> DataLoader[Any]:
        """Epochs of BATCHES batches of items, drawn anew for each; prefetch: batches ahead, for each worker.

        Workers come from a server of processes that was begun without threads: a fork of this process would have locks
        of threads that it does not have.
        """
        order, own = (torch.Generator().manual_seed(self.seed) for _ in range(2))
        sampler = RandomSampler(cast(Sized, self.items), num_samples=self.rows * BATCHES, generator=order)
        processes: dict[str, Any] = {}
        if workers:
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload(["__main__", __name__])
            processes = {"multiprocessing_context": context, "prefetch_factor": prefetch}
            processes |= {"persistent_workers": persistent}
        return DataLoader(
            self.items, self.rows, sampler=sampler, num_workers=workers, collate_fn=together, generator=own, **processes
        )


def supply_of(place: Place) -> Supply:
    """The rows of the study's text, its pairs, or what a family of a user's own has, from which its configuration
    learns. UserError: such a family has none."""
    config, data = place.config, place.data
    shape = batch_shape(data, batch_tokens=config.batch_tokens, context=config.context)
    if config.family in BUILT_IN:
        items = rows_of(data, shape)
    elif (dataset := cast(Any, FAMILIES[config.family].items(config, data))) is not None:
        items = Items(len(dataset), dataset.__getitem__)
    else:
        raise UserError(f"--families: {config.family!r} has nothing for a DataLoader: write its `items`")
    learner, first = Learner(config, data, place.device), items[0]
    own, tensors = learner.batches, [each for each in (*first.inputs, first.targets) if each is not None]
    return Supply(
        items=items, rows=shape.rows, batch_bytes=shape.rows * sum(each.nbytes for each in tensors),
        use=Fed(learner).step, own=own, seed=config.seed,
    )  # fmt: skip


class Fed:
    """A learner whose steps take the batch that they are given, at a rate of zero: the loop stays the same."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        learner.batches = EndlessBatches(self, seed=0)

    def step(self, batch: Batch) -> None:
        """A step on it, to its end."""
        self._batch = batch.to(self._learner.device)
        self._learner.step(0.0)
        self._learner.wait()

    def plan(self, generator: np.random.Generator) -> np.ndarray:
        return np.zeros((1, 1))

    def batch(self, row: np.ndarray, there: Tensor, /) -> Batch:
        return self._batch


def check_shared_memory(needed: int) -> None:
    """UserError: the batches that are under way at once, so many bytes, do not fit where processes lay them."""
    free = shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.exists() else needed
    if free < needed:
        raise UserError(f"{SHARED_MEMORY}: {free:,} bytes are free, and batches under way need {needed:,}; enlarge it")


def read_through(name: str, epoch: Callable[[], Iterable[Any]], use: Callable[[Any], None]) -> dict[str, float]:
    """Use each batch; seconds a batch: `NAME wait` for it, and `NAME whole`, its use included; `NAME first`: of the
    first wait."""
    waits = []
    began = asked = time.perf_counter()
    for batch in epoch():
        waits.append(time.perf_counter() - asked)
        use(batch)
        asked = time.perf_counter()
    means = {"wait": sum(waits) / len(waits), "whole": (asked - began) / len(waits)}
    return {f"{name} {what}": seconds for what, seconds in ({"first": waits[0]} | means).items()}


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
        epochs[OWN] = partial(islice, supply.own, BATCHES)
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
        "rows": supply.rows, "batches": BATCHES, "items": len(supply.items), "sources": sources,
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
