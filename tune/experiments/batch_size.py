"""Larger and larger batches, until memory runs out: seconds of an epoch, and the largest batch that fits, predicted
from what smaller ones took and found by trying."""

import json
import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray.cloudpickle
import torch

from model.config import Config, Data
from model.cost.probe import FIRST_STEPS, FITS, KILLED, RAN_OUT, TOO_LATE, Outcome, Probe, try_batch
from model.families import FAMILIES, registered_families
from model.training.memory import available_bytes
from tune.backend.worker_group import Message, TaskContext
from tune.devices import Devices
from tune.errors import UserError
from tune.experiments.base import Experiment, ExperimentSettings, Point, Row, Table
from tune.experiments.tables import EMPTY_CELL, figure
from tune.experiments.training import of_rows
from tune.machine import write_whole
from tune.published import published
from tune.rows import by_batch
from tune.search.memory_model import MemoryModel, first_overhead
from tune.units import bytes_text, parse_bytes

TIMES = 4
"""Factor from one batch to the next, while they fit."""
RESOLUTION = 0.01
"""Precision with which the largest batch is found, as a share of it."""


def next_rows(fits: int, fails: int | None, most: int, first: int) -> int | None:
    """Return the rows to try after the largest batch that fits (0: none) and the smallest that does not; None: the
    largest is found.

    most: rows that there are; first: rows to begin with.
    """
    if fits >= most:
        return None
    if fails is None:
        return min(most, TIMES * fits or first)
    return None if fails - fits <= max(1, RESOLUTION * fits) else (fits + fails) // 2


def largest_rows(bytes_of: Callable[[int], float], limit: float, most: int) -> int:
    """Return the largest batch of at most `most` rows that takes at most `limit` bytes; 0: none does."""
    return bisect_right(range(1, most + 1), limit, key=bytes_of)


def fitted(measured: Mapping[int, float], estimate: Callable[[int], float]) -> Callable[[int], float]:
    """Return a function that predicts the bytes of a batch from its rows: a line fitted to what batches took, over what
    is estimated of them."""
    x = np.array([estimate(rows) for rows in measured], dtype=float)  # products of bytes would overflow as integers
    y = np.array(list(measured.values()), dtype=float)
    if len(measured) < 2:
        return lambda rows: float(y[0] * estimate(rows) / x[0])
    slope, intercept = np.polyfit(x, y, 1)
    return lambda rows: float(intercept + slope * estimate(rows))


MEMORY = "memory_bytes", "tensor_bytes", "paper_bytes"


def largest_of(rows: Sequence[Row]) -> Row | None:
    """Return the row of the search for the largest batch; None: there is none."""
    return next((row for row in rows if "largest" in row), None)


def batches(rows: Sequence[Row]) -> Table:
    """Return the table of the seconds of an epoch and the memory by batch, beside the published."""
    ours, theirs = by_batch(rows), {int(row["batch_size"]): row["epoch_seconds"] for row in published("batch_size")}
    found = []
    for batch in sorted(ours | theirs) if ours else []:
        row = ours.get(batch, {})
        known = theirs.get(batch)
        memory = [figure(row.get(name), "{:,.0f}", 1e-6) for name in MEMORY]
        found.append([
            f"{batch:,}", figure(row.get("epoch_seconds"), "{:.1f}"), figure(row.get("share"), "{:.0%}"),
            figure(row.get("epoch_steps"), "{:,.0f}"), figure(row.get("step_seconds"), "{:,.0f}", 1e3), *memory,
            row.get("ended", EMPTY_CELL), known if isinstance(known, str) else figure(known, "{:.1f}"),
        ])  # fmt: skip
    columns = (
        *("batch", "epoch s", "of it timed", "steps an epoch", "ms a step", "MB taken", "of tensors", "on paper"),
        *("ended", "published epoch s"),
    )
    note = (
        "A second epoch, without evaluation, each batch in a process of its own. Taken: by the process beyond what it "
        "had before, the heap included; the limit counts what it asks for, which may be some MB less. Published: an "
        "image classifier on a V100 of 16 GB."
    )
    return Table(title="Seconds of an epoch by batch", columns=columns, rows=found, note=note)


def largest(rows: Sequence[Row]) -> Table:
    """Return the table of the largest batch as found, and as predicted from small ones and by the search's rule."""
    row = largest_of(rows)
    if row is None:
        return Table(title="", columns=(), rows=())
    found, fails = row["largest"], row["fails"]
    small = ", ".join(f"{batch:,}" for batch in row.get("foretold_from", ()))
    predicted = f"predicted from {small} rows"
    sizes = {"found": found, predicted: row.get("foretold"), "by the search's rule": row["by_rule"]}
    cells = [
        [what, f"{batch:,}", f"{batch / found - 1:+.1%}" if found and what != "found" else EMPTY_CELL]
        for what, batch in sizes.items() if batch is not None
    ]  # fmt: skip
    if fails is not None:
        note = f"{fails:,} rows do not fit" + ("" if row["resolved"] else "; there was no time to come closer")
        if (again := row.get("timed", {}).get("ended", FITS)) != FITS:
            note += f"; {found:,}, trained on for longer, ended: {again}"
    else:
        ended = "an epoch has no more rows" if found == row["epoch_rows"] else "the time was over"
        note = f"memory did not end: {ended}; give a longer text, a larger --budget or a --memory-limit"
    limit = f" within {bytes_text(row['limit_bytes'])}" if math.isfinite(row["limit_bytes"]) else ""
    return Table(title=f"The largest batch{limit}", columns=("", "rows", "of the found one"), rows=cells, note=note)


def boundary(rows: Sequence[Row]) -> Table:
    """Return the table of all batches that were tried on the way to the largest."""
    row = largest_of(rows)
    tried = row["tried"] if row else []
    found = [[f"{batch:,}", figure(taken, "{:,.0f}", 1e-6), ended] for batch, ended, taken in tried]
    return Table(title="The way to the largest batch", columns=("batch", "MB taken", "ended"), rows=found)


BATCHES = (32, 128, 512, 2048, 8192)
"""Rows of the batches, as in the published report: four times as many each time."""
SAFE = 0.9
"""Largest share of a machine's free memory that a limit may be."""
MARGIN = 1.5
"""No try begins unless this many times what it should take is left."""
END_SECONDS = 2.0
"""Seconds of a task that are kept for the end of its last process."""
STEPS = FIRST_STEPS + 1
"""Steps with which a batch is tried."""
FIRST_SECONDS = 15.0
"""Seconds that trying a batch should take, before one was tried."""
MOST = 2**24
"""Largest number of rows that is predicted for a batch."""
FILE = "batches.json"


def work(context: TaskContext, asked: dict[str, Any]) -> Iterator[Message]:
    """Measure a batch, or find the largest one, as asked."""
    return measure_batch(context, asked) if "rows" in asked else measure_largest(context, asked)


@dataclass(frozen=True)
class BatchProber:
    """Tries batches for a task, each in a process of its own, and keeps what came of each in the task's folder."""

    context: TaskContext
    asked: dict[str, Any]

    @property
    def limit(self) -> int | None:
        """Bytes that a batch may take; None: all that a GPU has."""
        if "limit" not in self.asked:
            return None
        return min(parse_bytes(self.asked["limit"]), int(SAFE * available_bytes(self.context.device)))

    def rows(self) -> dict[int, Outcome]:
        """Return what came of each batch, by its rows."""
        file = self.context.folder / FILE
        return {int(rows): each for rows, each in json.loads(file.read_text()).items()} if file.exists() else {}

    def run(self, rows: int, *, share: float) -> Outcome:
        """Try a batch, and train for a share of two epochs; return what came of it. UserError: it fails whatever memory
        there is."""
        probe = Probe(
            config=of_rows(self.context.config, self.context.data, rows), device=self.context.device, limit=self.limit,
            share=share, seconds=self.context.seconds_left() - END_SECONDS,
            families=ray.cloudpickle.dumps(registered_families()),
        )  # fmt: skip
        found = try_batch(probe, self.context.data)
        if found["ended"] != TOO_LATE and rows not in self.rows():  # near the limit a second try may end otherwise
            self.context.folder.mkdir(parents=True, exist_ok=True)
            write_whole(self.context.folder / FILE, json.dumps(self.rows() | {rows: found}))
        return found

    def seconds(self, rows: int) -> float:
        """Return the seconds that trying a batch should take: as long as one that fitted, and longer by the rows that
        it has more."""
        known = {count: each for count, each in self.rows().items() if each["ended"] == FITS}
        taken = (each["ready_seconds"] + STEPS * each["step_seconds"] * max(0.0, rows / count - 1)
                 for count, each in known.items())  # fmt: skip
        return max(taken, default=FIRST_SECONDS)


def epoch_rows(config: Config, data: Data) -> int:
    """Return the rows of an epoch, which are the most that a batch can have."""
    single = FAMILIES[config.family].training_batches(of_rows(config, data, 1), data, torch.device("cpu"))
    return len(single)


def estimator(context: TaskContext) -> Callable[[int], float]:
    """Return a function that gives the estimated bytes of a step with so many rows."""
    family, data, device = FAMILIES[context.config.family], context.data, context.device
    return lambda rows: family.memory_estimate(
        of_rows(context.config, data, rows), data, micro_batches=1, device=device
    )


def measure_batch(context: TaskContext, asked: dict[str, Any]) -> Iterator[Message]:
    """Time a second epoch, or as much of it as there is time for. UserError: the text or the time is too short."""
    prober, rows, there = BatchProber(context, asked), asked["rows"], epoch_rows(context.config, context.data)
    if rows > there:
        raise UserError(f"batch: {rows} rows are more than the {there} of an epoch: give a longer text")
    found = prober.run(rows, share=asked["share"])
    if found["ended"] == TOO_LATE:
        raise UserError("the time for it was too short: give a larger --budget with --resume")
    yield Message(kind="steps", row=found | {"paper_bytes": estimator(context)(rows), "limit_bytes": prober.limit})


def measure_largest(context: TaskContext, asked: dict[str, Any]) -> Iterator[Message]:
    """Find the largest batch: try four times as many rows as the last that fits until one does not, then bisect."""
    prober, most = BatchProber(context, asked), epoch_rows(context.config, context.data)
    while (rows := next_rows(*bounds(prober.rows()), most, BATCHES[0])) is not None:
        if context.seconds_left() - END_SECONDS < MARGIN * prober.seconds(rows):
            break
        if prober.run(rows, share=0.0)["ended"] == TOO_LATE:
            break
        yield Message(kind="steps")
    fits, fails = bounds(prober.rows())
    row = {"largest": fits, "fails": fails, "epoch_rows": most, "resolved": rows is None} | predict_largest_batch(
        context, prober
    )
    if fits and fits not in BATCHES and context.seconds_left() - END_SECONDS > MARGIN * prober.seconds(fits):
        row["timed"] = prober.run(fits, share=asked["share"]) | {"paper_bytes": estimator(context)(fits)}
    tried = [[count, each["ended"], each.get("memory_bytes")] for count, each in sorted(prober.rows().items())]
    yield Message(kind="steps", row=row | {"tried": tried})


def bounds(known: dict[int, Outcome]) -> tuple[int, int | None]:
    """Return the largest batch that fits, 0 for none, and the smallest beyond it that does not."""
    fits = max((rows for rows, each in known.items() if each["ended"] == FITS), default=0)
    fails = (rows for rows, each in known.items() if each["ended"] in (RAN_OUT, KILLED) and rows > fits)
    return fits, min(fails, default=None)


def predict_largest_batch(context: TaskContext, prober: BatchProber) -> dict[str, Any]:
    """Return the largest batch as predicted by the search's rule for memory, before any run, and by what small batches
    took; and the limit in bytes."""
    known, estimate = prober.rows(), estimator(context)
    small = {rows: known[rows]["memory_bytes"] for rows in BATCHES if known.get(rows, {}).get("ended") == FITS}
    free = [each["free_bytes"] for each in known.values() if each.get("free_bytes")]
    limit = min([*free, *([prober.limit] if prober.limit is not None else [])], default=math.inf)
    rule = MemoryModel(
        overhead=first_overhead(context.config.family, context.device.type),
        estimate=lambda config, parts: estimate(int(config["rows"])),
    )
    found = {"limit_bytes": limit, "by_rule": largest_rows(lambda rows: rule.predicted({"rows": rows}, 1), limit, MOST)}
    if small:
        found["foretold"] = largest_rows(fitted(small, estimate), limit, MOST)
        found["foretold_from"] = list(small)
    return found


CPU_LIMIT = 2_000_000_000
"""Bytes that a batch may take on a CPU where no --memory-limit is given: a machine's memory is not to be filled."""
PROCESS_SECONDS = 15.0
"""Seconds in which a process starts and takes its first steps."""
EPOCHS_SECONDS = {"cpu": 300.0, "cuda": 60.0}
"""Seconds that two epochs may take, by kind of device; of longer ones a part is timed."""
LARGEST_SECONDS, LEAST_LARGEST_SECONDS = 200.0, 60.0


def points(devices: Devices, settings: ExperimentSettings) -> list[Point]:
    """Return a point for each batch, then one for the largest."""
    limit = CPU_LIMIT if settings.memory_limit is None and devices.kind == "cpu" else settings.memory_limit
    common: dict[str, Any] = {"share": settings.scale} | ({} if limit is None else {"limit": bytes_text(limit)})
    epochs = settings.scale * EPOCHS_SECONDS[devices.kind]
    batches = [
        Point(devices=1, asked={"rows": rows} | common, seconds=PROCESS_SECONDS + epochs, least_seconds=PROCESS_SECONDS)
        for rows in BATCHES
    ]
    seconds = LARGEST_SECONDS + epochs
    return [
        *batches,
        Point(devices=1, asked={"largest": True} | common, seconds=seconds, least_seconds=LEAST_LARGEST_SECONDS),
    ]


def line(row: Row) -> str:
    """Return the result of a row in short."""
    if "largest" in row:
        return f"{row['largest']:,} rows fit" + (f", {row['fails']:,} do not" if row["fails"] else "")
    if "epoch_seconds" not in row:
        return str(row["ended"]) + (f" by {row['why']}" if "why" in row else "")
    return f"{row['epoch_seconds']:.1f} s an epoch ({row['share']:.0%} timed), {bytes_text(row['memory_bytes'])}"


BATCH_SIZE = Experiment(
    name="batch_size", about="larger and larger batches until memory ends: seconds of an epoch, the largest that fits",
    points=points, work=work, line=line, tables=lambda rows: [batches(rows), largest(rows), boundary(rows)],
    any_family=True, reads=("scale", "memory_limit"),
)  # fmt: skip
