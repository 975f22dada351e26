"""FLOPs and memory on paper against what torch and the device count, of a published report's word-level model."""

import time
from collections.abc import Iterator, Sequence
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
from tune.experiments.parallel_timing import in_rounds, interval
from tune.experiments.tables import figure, published, with_interval
from tune.experiments.word_model import WordConfig, WordModel, block_training, model_training
from tune.units import bytes_text

REPORTED_PARAMETERS = 13_466_278
REPORTED_SLOPES = "2.84 from two points, 2.67 from five"
HEADS = 2
"""Of the report's block."""
MFLOP, MEGABYTE, TIMES = "{:,.1f}", "{:,.2f}", "{:.3f}"


def tables(rows: Sequence[Row]) -> list[Table]:
    """All that there are rows for."""
    made = [parameters(rows), flops(rows), slopes(rows), memory(rows), heads(rows)]
    return [table for table in made if table.rows]


def of(rows: Sequence[Row], what: str, heads: int = HEADS) -> list[Row]:
    """The rows of the block or of the whole model, by batch; of the block with what Nsight Compute counted, and the
    report's figures, where they are known."""
    measured = [row for row in rows if row["asked"]["measure"] == what and "step_flops" in row]
    found = {row["asked"]["batch"]: dict(row) for row in measured if row["config"]["heads"] == heads}
    if what == "block":
        for batch, flops, traffic in (each for row in rows for each in row.get("nsight", ())):
            found.get(batch, {}).update(nsight_flops=flops, nsight_bytes=traffic)
        for row in published("estimates"):
            traffic = 1e3 * row["measured_dram_kilobytes"]
            found.get(row["batch_size"], {}).update(published_flops=row["measured_flops"], published_bytes=traffic)
    return [found[batch] for batch in sorted(found)]


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


FLOPS = {
    "report's formula": "paper_reported_flops", "forward on paper": "paper_forward_flops", "counted": "forward_flops",
    "step on paper": "paper_step_flops", "step counted": "step_flops", "by profiler": "profiled_flops",
    "by Nsight": "nsight_flops", "published, by Nsight": "published_flops",
}  # fmt: skip


def flops(rows: Sequence[Row]) -> Table:
    """Of a training step of the block."""
    found = [
        [
            str(row["asked"]["batch"]), *(figure(row.get(name), MFLOP, 1e-6) for name in FLOPS.values()),
            figure(row.get("published_flops"), TIMES, 1 / row["paper_step_flops"]),
        ]
        for row in of(rows, "block")
    ]  # fmt: skip
    note = (
        "The report's formula: batch x 7 x 35 x 200 x 200 multiplications. On paper: 8 S D^2 + 4 S^2 D + 4 S D F a row "
        "forward, three times as many a step. Counted: FlopCounterMode, with attention as plain products; the "
        "profiler adds what goes element by element."
    )
    columns = "batch", *FLOPS, "of step on paper"
    return Table(title="FLOPs of the encoder block, in millions", columns=columns, rows=found, note=note)


def slope(estimated: Sequence[float], measured: Sequence[float]) -> float | None:
    """Of the line through the points by least squares; None of one point."""
    return float(np.polyfit(estimated, measured, 1)[0]) if len(estimated) > 1 else None


SERIES = {
    "forward, FlopCounterMode": ("paper_forward_flops", "forward_flops"),
    "step, FlopCounterMode": ("paper_step_flops", "step_flops"),
    "step, profiler": ("paper_step_flops", "profiled_flops"),
    "step, Nsight Compute": ("paper_step_flops", "nsight_flops"),
    "published, Nsight Compute": ("paper_step_flops", "published_flops"),
}
"""What is on paper, and what was measured."""


def slopes_of(rows: Sequence[Row]) -> dict[str, list[list[float]]]:
    """By what was measured: the report's formula, the right one and the measurement over batches."""
    block = of(rows, "block")
    names = {series: ("paper_reported_flops", *pair) for series, pair in SERIES.items()}
    found = {series: [[row[name] for row in block if each[-1] in row] for name in each]
             for series, each in names.items()}  # fmt: skip
    return {series: each for series, each in found.items() if each[-1]}


def slopes(rows: Sequence[Row]) -> Table:
    """Of measured against estimated FLOPs."""
    found = []
    for name, (reported, right, measured) in slopes_of(rows).items():
        each = slope(reported[:2], measured[:2]), slope(reported, measured), slope(right, measured)
        found.append([name, *(figure(value, TIMES) for value in each)])
    whole = of(rows, "model")
    if len(whole) > 1:
        right_slope = slope([row["paper_step_flops"] for row in whole], [row["step_flops"] for row in whole])
        found.append(["step of the whole model, FlopCounterMode", "-", "-", figure(right_slope, TIMES)])
    columns = "measured", "report's formula, two batches", "all batches", "right formula"
    note = f"The report: {REPORTED_SLOPES}. Its first estimate is rounded down: 313 for 313.6 million."
    return Table(title="Slope of measured FLOPs against estimated", columns=columns, rows=found, note=note)


def memory(rows: Sequence[Row]) -> Table:
    """Of the block and of the whole model, and the seconds of a step."""

    def against(row: Row, name: str) -> list[str]:
        paper, measured = row.get(f"paper_{name}"), row[name]
        cells = [figure(each, MEGABYTE, 1e-6) for each in (paper, measured)]
        return [*cells, figure(paper and measured / paper, TIMES)]

    found = [
        [
            what, str(row["asked"]["batch"]), *against(row, "kept_bytes"), *against(row, "step_bytes"),
            with_interval(row["step_seconds"], "{:.1f}", 1e3),
            figure(row["paper_step_flops"] / row["step_seconds"][0], "{:,.0f}", 1e-9),
            *(figure(row.get(name), MEGABYTE, 1e-6) for name in ("nsight_bytes", "published_bytes")),
        ]
        for what in ("block", "model") for row in of(rows, what)
    ]  # fmt: skip
    columns = (
        *("of", "batch", "kept on paper", "kept", "times", "step on paper", "step", "times", "ms a step", "GFLOP/s"),
        *("DRAM by Nsight", "published"),
    )
    note = (
        "Kept: tensors that forward saves for backward. Step: the most that is held at once, of the model with AdamW. "
        "DRAM: what passes to and from memory, which is no size."
    )
    return Table(title="Memory in MB, and time", columns=columns, rows=found, note=note)


def heads(rows: Sequence[Row]) -> Table:
    """The same block with more heads and with fewer."""
    counts = sorted({row["config"]["heads"] for row in rows if "step_flops" in row})
    found = [
        [str(count), figure(row["step_flops"], MFLOP, 1e-6), figure(row["step_flops"] / row["paper_step_flops"], TIMES)]
        for count in counts for row in of(rows, "block", count)[:1]
    ]  # fmt: skip
    columns = "heads", "MFLOP of a step, counted", "of those on paper"
    return Table(title="Heads cancel in the block", columns=columns, rows=found if len(found) > 1 else [])


LEAST_STEPS = 3
"""That are timed, after one that is not."""
ROOM = 1.2
"""Times the memory on paper must be there before a step begins."""


def work(place: Place, asked: dict[str, Any]) -> Iterator[Said]:
    """Do what was asked for and say what came of it."""
    return {"parameters": measure_parameters, "nsight": measure_nsight}.get(asked["measure"], measure_step)(
        place, asked
    )


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
    left_out = [name for name in named if name.rpartition(".")[2] not in ("weight", "bias")]
    whole = sum(named.values())
    yield Said(what="steps", row={
        "parameters": whole, "on_paper": paper.parts(config), "left_out": left_out,
        "layered": whole - sum(named[name] for name in left_out),
    })  # fmt: skip


def measure_step(place: Place, asked: dict[str, Any]) -> Iterator[Said]:
    """A training step of the encoder block alone, or one of the whole model with its optimizer: on paper, what torch
    counts, and the seconds that it takes. UserError: it would not fit."""
    config, batch, device = word_config(place.config), asked["batch"], place.device
    if asked["measure"] == "block":
        build, forward, kept = block_training, paper.block_flops(config, batch), paper.block_kept_bytes(config, batch)
        own = {"paper_reported_flops": paper.reported_flops(config, batch)}
    else:
        build, forward, kept = model_training, paper.model_flops(config, batch), paper.model_kept_bytes(config, batch)
        own = {"paper_step_bytes": paper.step_bytes(config, batch)}
        needed = ROOM * own["paper_step_bytes"]
        room = min(available_bytes(device), asked.get("memory_limit", float("inf")))
        if needed > room:
            rule = f"needs about {bytes_text(needed)}, and there are {bytes_text(room)}"
            raise UserError(f"memory: a step of {batch} rows {rule}")
    prepare("fp32", device)
    training = build(config, batch, device)
    training()
    yield Said(what="start")
    row = own | {
        "paper_forward_flops": forward, "paper_step_flops": TRAINING * forward, "paper_kept_bytes": kept,
        "forward_flops": counted_flops(training.forward), "step_flops": counted_flops(training),
        "profiled_flops": profiled_flops(training), "kept_bytes": kept_bytes(training.model, training.forward),
        "step_bytes": training.held_bytes() + most_bytes(training, device),
    }  # fmt: skip
    yield Said(what="steps")

    def step() -> dict[str, float]:
        began = time.perf_counter()
        training()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return {"step": time.perf_counter() - began}

    rounds = in_rounds({"step": step}, place.left, least=LEAST_STEPS)
    tokens, seconds = batch * config.length, interval(itemgetter("step"), rounds)
    yield Said(what="steps", row={**row, "tokens": tokens, "rounds": rounds["step"], "step_seconds": seconds})


def measure_nsight(place: Place, asked: dict[str, Any]) -> Iterator[Said]:
    """A training step of the block at each batch, by the GPU's own counters. UserError: they cannot be read here."""
    found = []
    for batch in asked["batches"]:
        found.append([batch, *counted_on_gpu(batch, place.device, place.left())])
        yield Said(what="steps")
    yield Said(what="steps", row={"nsight": found})


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
