"""How long a training loop waits for batches from torch's DataLoader with 0 to 10 workers, of text or of a user's own
family."""

import multiprocessing
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from functools import partial
from itertools import islice, repeat
from operator import itemgetter
from pathlib import Path
from typing import Any, cast

import ray.cloudpickle
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, RandomSampler, Subset

from kernels.timing import interval
from model.data.batches import Batch, EndlessBatches
from model.families import FAMILIES
from model.training.ddp import ranks
from model.training.learner import Learner
from tune.backend.worker_group import Message, TaskContext
from tune.devices import Devices
from tune.errors import UserError
from tune.experiments.base import Experiment, ExperimentSettings, Point, Row, Table
from tune.experiments.parallel_timing import Rounds, in_rounds
from tune.experiments.tables import with_interval
from tune.experiments.training import batch_rows

BATCHES = 16
"""Batches of an epoch."""
PREFETCH, PREFETCHES = 2, (1, 2, 4, 8)
"""Batches that each worker prefetches: torch's default, and the numbers that are compared."""
MOST_WORKERS, FEW_WORKERS = 10, 2
"""Most workers, as in the published report; and the number with which the other settings are compared, where there are
as many."""
OWN = "own"  # this project's batches, which need no loader
SHARED_MEMORY = Path("/dev/shm")
"""Folder where worker processes put batches for the loop."""
ROUNDS, LEAST_ROUNDS, TURN_SECONDS = 20, 8, 4.0
"""Rounds that a point is worth and that it needs at least, and seconds of a turn: of one loader in a round, in an empty
loop and in a running one."""
BEGIN_SECONDS, WORKER_SECONDS = 10.0, 0.5
"""Seconds until the samples are there and the first worker can start, and for each worker to start."""
KINDS = {"empty": "empty whole", "wait": "loop wait", "whole": "loop whole", "first": "loop first"}
"""Figures of a loader, and the reading of a round that each is of; first: of a later epoch."""


def tables(rows: Sequence[Row]) -> list[Table]:
    """Return the tables of the numbers of workers and of the settings."""
    return [table(row) for row in rows if "sources" in row]


def table(row: Row) -> Table:
    """Return the table of what each loader takes."""
    epoch, rounds = row["items"] / row["rows"], len(row["rounds"][f"{row['sources'][0]['name']} loop whole"])
    cells = [
        [
            source["name"], with_interval(source["empty"], "{:.2f}", 1e3), f"{epoch * source['empty'][0]:.1f}",
            with_interval(source["wait"], "{:.2f}", 1e3), with_interval(source["whole"], "{:.2f}", 1e3),
            with_interval(source["gain"], "{:.2f}"), f"{1e3 * source['first'][0]:.1f}",
            f"{source['start_seconds']:.2f}",
        ]
        for source in row["sources"]
    ]  # fmt: skip
    columns = [*("workers", "empty loop, ms", "whole set, s", "running: wait, ms", "running: all, ms"),
               *("times as fast", "first batch, ms", "begin, s")]  # fmt: skip
    note = (
        f"{row['rows']} of {row['items']:,} at a time, {row['batches']} batches an epoch; medians of {rounds} "
        "rounds, in turns; begin: until the very first batch, processes and all; first batch: of a later epoch. "
        "Published, of images: 2 workers are the fastest, 7 and more slower than none"
    )
    title = f"Loading {row['asked']['of']}: {row['asked']['measure']}, a batch"
    return Table(title=title, columns=columns, rows=cells, note=note)


def line(row: Row) -> str:
    """Return the result of a row in short."""
    best = min((each for each in row["sources"] if each["name"] != OWN), key=lambda source: source["whole"][0])
    return f"fastest in a running loop: {best['name']}, {with_interval(best['whole'], '{:.2f}', 1e3)} ms a batch, " \
           f"of which {with_interval(best['wait'], '{:.2f}', 1e3)} waited for"  # fmt: skip


class ByValue(Subset[Batch]):
    """Samples that are pickled by value for a loader's processes, which cannot import a class of a file given to
    --load."""

    def __reduce__(self) -> tuple[Any, ...]:
        return ray.cloudpickle.loads, (ray.cloudpickle.dumps(self.dataset),)


def loader(
    samples: Dataset[Batch], rows: int, seed: int, *, workers: int, prefetch: int = PREFETCH, persistent: bool = True
) -> DataLoader[Batch]:
    """Return a loader of epochs of BATCHES batches of so many samples, drawn anew for each. prefetch: batches ahead,
    for each worker.

    Workers are forked from a server process that was started without threads: a fork of this process would inherit the
    locks of threads that it does not have.
    """
    order, own = (torch.Generator().manual_seed(seed) for _ in range(2))
    each = ByValue(samples, range(len(cast(Sized, samples))))
    sampler = RandomSampler(each, num_samples=rows * BATCHES, generator=order)
    processes: dict[str, Any] = {}
    if workers:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["__main__", __name__])
        processes = {"multiprocessing_context": context, "prefetch_factor": prefetch, "persistent_workers": persistent}
    return DataLoader(
        each, rows, sampler=sampler, num_workers=workers, collate_fn=Batch.concatenate, generator=own, **processes
    )


def check_shared_memory(needed: int) -> None:
    """Check that the batches under way at once, so many bytes, fit in shared memory. UserError: they do not."""
    free = shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.exists() else needed
    if free < needed:
        rule = f"{free:,} bytes are free, and batches under way need {needed:,}"
        raise UserError(f"{SHARED_MEMORY}: {rule}: enlarge it, then --resume")


def step_on(learner: Learner, batch: Batch) -> None:
    """Take a step on a given batch, to its end, at a rate of zero, so that the loop stays the same."""
    learner.batches = cast(EndlessBatches, repeat(batch.to(learner.device)))
    learner.step(0.0)
    learner.synchronize()


def read_through(name: str, epoch: Callable[[], Iterable[Any]], use: Callable[[Any], None]) -> dict[str, float]:
    """Use each batch of an epoch; return the seconds a batch: `NAME wait` for it, and `NAME whole`, its use included;
    `NAME first`: of the first wait."""
    waits = []
    began = asked = time.perf_counter()
    for batch in epoch():
        waits.append(time.perf_counter() - asked)
        use(batch)
        asked = time.perf_counter()
    found = {"first": waits[0], "wait": sum(waits) / len(waits), "whole": (asked - began) / len(waits)}
    return {f"{name} {what}": seconds for what, seconds in found.items()}


def compared(asked: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the options of the loaders by name: numbers of workers, or other settings with one number of them."""
    workers = asked["workers"]
    if asked["measure"] == "workers":
        return {str(each): {"workers": each} for each in workers}
    kept = {f"{workers}, {each} ahead": {"workers": workers, "prefetch": each} for each in PREFETCHES}
    return kept | {f"{workers}, begun anew": {"workers": workers, "persistent": False}}


def work(context: TaskContext, asked: dict[str, Any]) -> Iterator[Message]:
    """Time each loader, and this project's own batches, in turns, in an empty loop and in a running one. UserError: the
    family has no samples, or they do not fit."""
    if ranks() > 1 and dist.get_rank():
        return
    config, data, loaders = context.config, context.data, compared(asked)
    if (samples := FAMILIES[config.family].items(config, data)) is None:
        raise UserError(f"--families: {config.family!r} has nothing for a DataLoader: write its `items`")
    rows = batch_rows(config, data)
    under_way = sum(each["workers"] * each.get("prefetch", PREFETCH) for each in loaders.values())
    check_shared_memory(under_way * rows * samples[0].nbytes)
    learner = Learner(config, data, context.device)
    epochs: dict[str, Any] = {
        name: partial(iter, loader(samples, rows, config.seed, **each)) for name, each in loaders.items()
    }
    epochs[OWN] = partial(islice, learner.batches, BATCHES)
    loops: dict[str, Callable[[Batch], None]] = {"empty": lambda batch: None, "loop": partial(step_on, learner)}
    ways = {name: partial(read_through, name, epoch, use) for source, epoch in epochs.items()
            for loop, use in loops.items() for name in [f"{source} {loop}"]}  # fmt: skip
    yield Message(kind="start")
    begun = {what: seconds for way in ways.values() for what, seconds in way().items()}
    rounds, first = in_rounds(ways, context.seconds_left), next(iter(epochs))
    sources = [figures(rounds, name, first) | {"start_seconds": begun[f"{name} empty first"]} for name in epochs]
    yield Message(kind="steps", row={
        "rows": rows, "batches": BATCHES, "items": len(cast(Sized, samples)), "sources": sources, "rounds": rounds,
    })  # fmt: skip


def figures(rounds: Rounds, name: str, first: str) -> Row:
    """Return the seconds a batch of a source, with their intervals, and `gain`: how many times as fast in a running
    loop as the first source it is."""
    found = {kind: interval(itemgetter(kind), {kind: rounds[f"{name} {key}"]}) for kind, key in KINDS.items()}
    pair = {"first": rounds[f"{first} loop whole"], "own": rounds[f"{name} loop whole"]}
    return {"name": name, **found, "gain": interval(lambda median: median["first"] / median["own"], pair)}


def points(devices: Devices, settings: ExperimentSettings) -> list[Point]:
    """Return a point for the numbers of workers and one for the settings; on CPU cores they hold the workers' cores
    too."""
    cores = devices.slots if devices.kind == "cpu" else devices.cores
    most = MOST_WORKERS if settings.oversubscribe else min(MOST_WORKERS, cores)
    held = min(devices.slots, 1 + most) if devices.kind == "cpu" else 1
    made, of = [], FAMILIES[settings.family].corpus
    for measure, workers in ("workers", list(range(most + 1))), ("settings", min(FEW_WORKERS, most)):
        asked = {"measure": measure, "of": of, "workers": workers}
        loaders = compared(asked).values()
        begin = BEGIN_SECONDS + WORKER_SECONDS * sum(each["workers"] for each in loaders)
        most_seconds, least = (begin + each * (len(loaders) + 1) * TURN_SECONDS for each in (ROUNDS, LEAST_ROUNDS))
        made.append(Point(devices=held, asked=asked, seconds=most_seconds, least_seconds=least))
    return made


LOADER = Experiment(
    name="loader", about="DataLoader workers, their settings, and this project's own batches, in a running loop",
    points=points, work=work, line=line, tables=tables, any_family=True,
)  # fmt: skip
