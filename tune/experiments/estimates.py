"""FLOPs and memory on paper against what torch and the device count, of a published report's word-level model."""

import time
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import torch

from model.config import Config
from model.cost.estimates import TRAINING
from model.cost.memory_estimate import counted_flops, kept_bytes, most_bytes, profiled_flops
from model.nn.precision import prepare
from model.training.memory import available_bytes
from tune.backend.worker_group import Place, Said
from tune.devices import Devices
from tune.errors import UserError
from tune.experiments import word_model as paper
from tune.experiments.base import Experiment, ExperimentSettings, Point, Row, Table
from tune.experiments.counters import counted_on_gpu
from tune.experiments.parallel_timing import interval
from tune.experiments.tables import figure, published, with_interval
from tune.experiments.word_model import Training, WordConfig, WordModel, block_training, model_training
from tune.units import bytes_text

REPORTED_PARAMETERS = 13_466_278
REPORTED_SLOPES = "2.84 from two points, 2.67 from five"
HEADS = 2
"""Of the report's block."""
MFLOP, MEGABYTE, MILLISECONDS = "{:,.1f}", "{:,.2f}", "{:.1f}"


def tables(rows: Sequence[Row]) -> list[Table]:
    """All that there are rows for."""
    made = [parameters(rows), flops(rows), slopes(rows), memory(rows), heads(rows)]
    return [table for table in made if table.rows]


def of(rows: Sequence[Row], what: str, heads: int = HEADS) -> list[Row]:
    """The rows of the block or of the whole model, by batch."""
    found = [row for row in rows if row["asked"]["measure"] == what and "step_flops" in row]
    return sorted((row for row in found if row["config"]["heads"] == heads), key=lambda row: row["asked"]["batch"])


def nsight(rows: Sequence[Row]) -> dict[int, tuple[int, int]]:
    """FLOPs and bytes of traffic by batch, of a GPU's own counters."""
    return {batch: (flops, traffic) for row in rows for batch, flops, traffic in row.get("nsight", ())}


def theirs() -> dict[int, dict[str, float]]:
    """The report's figures by batch."""
    return {int(row["batch_size"] or 0): {name: each or 0.0 for name, each in row.items()}
            for row in published("estimates")}  # fmt: skip


def parameters(rows: Sequence[Row]) -> Table:
    """By parts."""
    found = []
    for row in rows:
        if "layered" in row:
            found = [[name, f"{count:,}"] for name, count in row["on_paper"].items()]
            left = row["parameters"] - row["layered"]
            found += [["all, on paper", f"{sum(row['on_paper'].values()):,}"], ["all, in the model",
                      f"{row['parameters']:,}"], ["the report's", f"{REPORTED_PARAMETERS:,}"]]  # fmt: skip
            found.append([f"{left:,} fewer, without {', '.join(row['left_out'])}", f"{row['layered']:,}"])
    return Table(title="Parameters of the word-level model", columns=("part", "parameters"), rows=found)


def flops(rows: Sequence[Row]) -> Table:
    """Of a training step of the block."""
    found = []
    for row in of(rows, "block"):
        batch = row["asked"]["batch"]
        known, gpu = theirs().get(batch, {}), nsight(rows).get(batch, (None, None))
        counts = row["paper_reported_flops"], row["paper_forward_flops"], row["forward_flops"], row["paper_step_flops"]
        measured = row["step_flops"], row["profiled_flops"], gpu[0], known.get("measured_flops")
        cells = [figure(each, MFLOP, 1e-6) for each in (*counts, *measured)]
        share = figure(known.get("measured_flops"), "{:.3f}", 1 / row["paper_step_flops"])
        found.append([str(batch), *cells, share])
    columns = (
        *("batch", "report's formula", "forward on paper", "counted", "step on paper", "counted", "by profiler"),
        *("by Nsight", "published, by Nsight", "of step on paper"),
    )
    note = (
        "The report's formula: batch x 7 x 35 x 200 x 200 multiplications. On paper: 8 S D^2 + 4 S^2 D + 4 S D F a row "
        "forward, three times as many a step. Counted: FlopCounterMode, with attention as plain products; the "
        "profiler adds what goes element by element."
    )
    return Table(title="FLOPs of the encoder block, in millions", columns=columns, rows=found, note=note)


def slope(estimated: Sequence[float], measured: Sequence[float]) -> float | None:
    """Of the line through the points by least squares; None of one point."""
    return float(np.polyfit(estimated, measured, 1)[0]) if len(estimated) > 1 else None


def slopes_of(rows: Sequence[Row]) -> dict[str, tuple[list[float], list[float], list[float]]]:
    """By what was measured: the report's formula, the right one and the measurement over batches."""
    block = of(rows, "block")
    by_batch = {row["asked"]["batch"]: row for row in block}

    def against(measured: dict[int, float], paper: str) -> tuple[list[float], list[float], list[float]]:
        both = [batch for batch in by_batch if batch in measured]
        reported, right = ([by_batch[batch][name] for batch in both] for name in ("paper_reported_flops", paper))
        return reported, right, [measured[batch] for batch in both]

    def column(name: str) -> dict[int, float]:
        return {batch: row[name] for batch, row in by_batch.items()}

    gpu = {batch: float(counted) for batch, (counted, _) in nsight(rows).items()}
    reported = {batch: row["measured_flops"] for batch, row in theirs().items()}
    series = {
        "forward, FlopCounterMode": against(column("forward_flops"), "paper_forward_flops"),
        STEP: against(column("step_flops"), "paper_step_flops"),
        "step, profiler": against(column("profiled_flops"), "paper_step_flops"),
        "step, Nsight Compute": against(gpu, "paper_step_flops"),
        PUBLISHED: against(reported, "paper_step_flops"),
    }
    return {name: each for name, each in series.items() if each[2]}


STEP, PUBLISHED = "step, FlopCounterMode", "published, Nsight Compute"


def slopes(rows: Sequence[Row]) -> Table:
    """Of measured against estimated FLOPs."""
    found = [
        [name, *(figure(each, "{:.3f}") for each in (slope(reported[:2], measured[:2]), slope(reported, measured),
                                                    slope(right, measured)))]
        for name, (reported, right, measured) in slopes_of(rows).items()
    ]  # fmt: skip
    whole = of(rows, "model")
    if len(whole) > 1:
        right = slope([row["paper_step_flops"] for row in whole], [row["step_flops"] for row in whole])
        found.append(["step of the whole model, FlopCounterMode", "-", "-", figure(right, "{:.3f}")])
    columns = "measured", "report's formula, two batches", "all batches", "right formula"
    note = f"The report: {REPORTED_SLOPES}. Its first estimate is rounded down: 313 for 313.6 million."
    return Table(title="Slope of measured FLOPs against estimated", columns=columns, rows=found, note=note)


def memory(rows: Sequence[Row]) -> Table:
    """Of the block and of the whole model, and the seconds of a step."""
    found = []
    for what in ("block", "model"):
        for row in of(rows, what):
            batch, most = row["asked"]["batch"], row.get("paper_step_bytes")
            kept = [figure(row[name], MEGABYTE, 1e-6) for name in ("paper_kept_bytes", "kept_bytes")]
            step = [figure(each, MEGABYTE, 1e-6) for each in (most, row["step_bytes"])]
            rate = figure(row["paper_step_flops"] / row["step_seconds"][0], "{:,.0f}", 1e-9)
            traffic = theirs().get(batch, {}).get("measured_dram_kilobytes") if what == "block" else None
            gpu = nsight(rows).get(batch, (None, None))[1] if what == "block" else None
            found.append([
                what, str(batch), *kept, times(row["kept_bytes"], row["paper_kept_bytes"]), *step,
                times(row["step_bytes"], most), with_interval(row["step_seconds"], MILLISECONDS, 1e3), rate,
                figure(gpu, MEGABYTE, 1e-6), figure(traffic, MEGABYTE, 1e-3),
            ])  # fmt: skip
    columns = (
        *("of", "batch", "kept on paper", "kept", "times", "step on paper", "step", "times", "ms a step", "GFLOP/s"),
        *("DRAM by Nsight", "published"),
    )
    note = (
        "Kept: tensors that forward saves for backward. Step: the most that is held at once, of the model with AdamW. "
        "DRAM: what passes to and from memory, which is no size."
    )
    return Table(title="Memory in MB, and time", columns=columns, rows=found, note=note)


def times(measured: float, paper: float | None) -> str:
    return figure(None if paper is None else measured / paper, "{:.3f}")


def heads(rows: Sequence[Row]) -> Table:
    """The same block with more heads and with fewer."""
    blocks = [row for row in rows if row["asked"]["measure"] == "block" and "step_flops" in row]
    counts = sorted({row["config"]["heads"] for row in blocks})
    found = [
        [str(count), figure(row["step_flops"], MFLOP, 1e-6), times(row["step_flops"], row["paper_step_flops"])]
        for count in counts for row in of(rows, "block", count)[:1]
    ]  # fmt: skip
    columns = "heads", "MFLOP of a step, counted", "of those on paper"
    return Table(title="Heads cancel in the block", columns=columns, rows=found if len(found) > 1 else [])


MOST_STEPS, LEAST_STEPS = 20, 3
"""That are timed, after one that is not."""
MARGIN = 1.5
"""No step begins unless so many times the longest is left."""
ROOM = 1.2
"""Times the memory on paper must be there before a step begins."""


def work(place: Place, asked: dict[str, Any]) -> Iterator[Said]:
    """Do what was asked for and say what came of it."""
    return MEASURES[asked["measure"]](place, asked)


def word_config(config: Config) -> WordConfig:
    """The report's model in the shape of a trial."""
    return WordConfig(
        d_model=config.d_model, heads=config.heads, layers=config.layers, feed_forward=config.d_model,
        dropout=config.dropout,
    )  # fmt: skip


def measure_parameters(place: Place, asked: dict[str, Any]) -> Iterator[Said]:
    """Of the whole model by parts; `layered`: those that a tool sees which asks each layer for weight and bias."""
    config = word_config(place.config)
    named = {name: weights.numel() for name, weights in WordModel(config).named_parameters()}
    layered = sum(count for name, count in named.items() if name.rpartition(".")[2] in ("weight", "bias"))
    yield Said(what="steps", row={
        "parameters": sum(named.values()), "on_paper": paper.parts(config), "layered": layered,
        "left_out": [name for name in named if name.rpartition(".")[2] not in ("weight", "bias")],
    })  # fmt: skip


def measure_block(place: Place, asked: dict[str, Any]) -> Iterator[Said]:
    """A training step of the encoder block alone."""
    config, batch = word_config(place.config), asked["batch"]
    on_paper = {
        "reported_flops": paper.reported_flops(config, batch), "forward_flops": paper.block_flops(config, batch),
        "step_flops": TRAINING * paper.block_flops(config, batch), "kept_bytes": paper.block_kept_bytes(config, batch),
    }  # fmt: skip
    return measured(place, asked, lambda: block_training(config, batch, place.device), on_paper)


def measure_model(place: Place, asked: dict[str, Any]) -> Iterator[Said]:
    """An optimizer step of the whole model. UserError: it would not fit."""
    config, batch = word_config(place.config), asked["batch"]
    on_paper = {
        "forward_flops": paper.model_flops(config, batch), "step_flops": TRAINING * paper.model_flops(config, batch),
        "kept_bytes": paper.model_kept_bytes(config, batch), "step_bytes": paper.step_bytes(config, batch),
    }  # fmt: skip
    room = min(available_bytes(place.device), asked.get("memory_limit", float("inf")))
    if ROOM * on_paper["step_bytes"] > room:
        needed = bytes_text(ROOM * on_paper["step_bytes"])
        raise UserError(f"memory: a step of {batch} rows needs about {needed}, and there are {bytes_text(room)}")
    return measured(place, asked, lambda: model_training(config, batch, place.device), on_paper)


def measured(place: Place, asked: dict[str, Any], build: Callable[[], Training], on_paper: Row) -> Iterator[Said]:
    """What torch counts of a step that `build` makes, beside what is on paper, and the seconds that it takes."""
    prepare("fp32", place.device)
    training = build()
    training()
    yield Said(what="start")
    row = {f"paper_{name}": value for name, value in on_paper.items()} | counted(training, place.device)
    yield Said(what="steps")
    seconds = timed(training, place)
    yield Said(what="steps", row=row | {
        "tokens": asked["batch"] * WordConfig().length, "rounds": seconds,
        "step_seconds": interval(itemgetter("step"), {"step": seconds}),
    })  # fmt: skip


def counted(training: Training, device: torch.device) -> Row:
    """Of FLOPs the forward's and the step's; of memory what forward keeps, and the most that a step holds."""
    return {
        "forward_flops": counted_flops(training.forward),
        "step_flops": counted_flops(training),
        "profiled_flops": profiled_flops(training),
        "kept_bytes": kept_bytes(training.model, training.forward),
        "step_bytes": training.held_bytes() + most_bytes(training, device),
    }  # fmt: skip


def timed(training: Training, place: Place) -> list[float]:
    """Seconds of each step, as many as there is time for. UserError: there is time for too few."""
    seconds: list[float] = []
    while len(seconds) < MOST_STEPS and place.left() > MARGIN * max(seconds, default=0.0):
        began = time.perf_counter()
        training()
        if place.device.type == "cuda":
            torch.cuda.synchronize(place.device)
        seconds.append(time.perf_counter() - began)
    if len(seconds) < LEAST_STEPS:
        longest = max(seconds, default=0.0)
        raise UserError(f"{LEAST_STEPS} steps, of {longest:.1f} s each, did not fit: give a larger --budget")
    return seconds


def measure_nsight(place: Place, asked: dict[str, Any]) -> Iterator[Said]:
    """A training step of the block at each batch, by the GPU's own counters. UserError: they cannot be read here."""
    found = []
    for batch in asked["batches"]:
        gpu = counted_on_gpu(batch, place.device, place.left())
        found.append([batch, gpu.flops, gpu.dram_bytes])
        yield Said(what="steps")
    yield Said(what="steps", row={"nsight": found})


MEASURES = {
    "parameters": measure_parameters, "block": measure_block, "model": measure_model, "nsight": measure_nsight,
}  # fmt: skip


SHAPE = {"d_model": 200, "heads": 2, "layers": 1, "dropout": 0.0, "precision": "fp32"}
BATCHES = (16, 32, 64, 128, 256)
OTHER_HEADS = (1, 8)
"""Of the block at the smallest batch, which must cost the same."""
QUICK_SECONDS = 6.0
ROW_SECONDS, LEAST_ROW_SECONDS = 0.3, 0.16
"""Of a CPU core for the whole model, beyond that, for each row of the batch."""
NSIGHT_SECONDS, LEAST_NSIGHT_SECONDS = 180.0, 5.0


def points(devices: Devices, settings: ExperimentSettings) -> list[Point]:
    """Parameters, the block and the whole model at each batch, the GPU's counters, and the block with other heads."""
    limit = {} if settings.memory_limit is None else {"memory_limit": settings.memory_limit}
    nsight = NSIGHT_SECONDS if devices.kind == "cuda" else LEAST_NSIGHT_SECONDS
    return [
        point({"measure": "parameters"}),
        *(point({"measure": "block", "batch": batch}) for batch in BATCHES),
        *(model_point(batch, limit, on_gpu=devices.kind == "cuda") for batch in BATCHES),
        point({"measure": "nsight", "batches": list(BATCHES)}, seconds=nsight, least=LEAST_NSIGHT_SECONDS),
        *(point({"measure": "block", "batch": BATCHES[0]}, heads=heads) for heads in OTHER_HEADS),
    ]


def point(
    asked: dict[str, Any], *, seconds: float = QUICK_SECONDS, least: float = QUICK_SECONDS, **config: Any
) -> Point:
    """On one device, in the report's shape but for `config`."""
    return Point(devices=1, asked=asked, seconds=seconds, least=least, config=SHAPE | config)


def model_point(batch: int, limit: dict[str, int], *, on_gpu: bool) -> Point:
    """An optimizer step of the whole model, of which the head takes nearly all."""
    rows = 0 if on_gpu else batch
    seconds, least = (QUICK_SECONDS + each * rows for each in (ROW_SECONDS, LEAST_ROW_SECONDS))
    return point({"measure": "model", "batch": batch} | limit, seconds=seconds, least=least)


def line(row: Row) -> str:
    """What came out, in short."""
    if "layered" in row:
        return f"{row['parameters']:,} parameters, {row['layered']:,} of them weights and biases of layers"
    if "nsight" in row:
        return f"{row['nsight'][-1][1] / 1e6:,.1f} MFLOP at a batch of {row['nsight'][-1][0]}"
    times, step = row["step_flops"] / row["paper_step_flops"], with_interval(row["step_seconds"], "{:.1f}", 1e3)
    return f"{row['step_flops'] / 1e6:,.1f} MFLOP, {times:.4f} of those on paper; {step} ms a step"


ESTIMATES = Experiment(
    name="estimates", about="parameters, FLOPs and memory on paper against measured, of a word-level model",
    points=points, work=work, line=line, tables=tables, sets=tuple(SHAPE),
)  # fmt: skip
