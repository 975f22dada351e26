"""FLOPs and memory on paper against what torch and the device count, of a published report's word-level model."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from model.cost.memory_estimate import counted_flops, counted_on_gpu, held_bytes, kept_bytes, most_bytes
from model.cost.word_model import WordConfig, WordModel, block_training, model_training, on_paper, parts
from model.nn.precision import prepare
from model.training.memory import available_bytes
from tune.backend.worker_group import Message, TaskContext
from tune.devices import Devices
from tune.errors import UserError
from tune.experiments.base import Experiment, ExperimentSettings, Point, Row, Table
from tune.experiments.tables import figure
from tune.rows import BLOCK_HEADS, estimated_blocks, estimated_steps
from tune.units import bytes_text

MFLOP, MEGABYTE, TIMES = "{:,.1f}", "{:,.2f}", "{:.3f}"
STEP = "of", "batch", "heads"
REPORTED_PARAMETERS = 13_466_278
STEPS = {"step counted": "step_flops", "by Nsight": "nsight_flops", "published, by Nsight": "published_flops"}
FLOPS = {
    "report's formula": "paper_reported_flops", "forward on paper": "paper_forward_flops", "counted": "forward_flops",
    "step on paper": "paper_step_flops", **STEPS,
}  # fmt: skip


def parameters(rows: Sequence[Row]) -> Table:
    """Return the table of the parameters by parts of the model."""
    found = []
    for row in (each for each in rows if "layered" in each):
        whole, left = row["parameters"], row["parameters"] - row["layered"]
        counts = row["on_paper"] | {
            "all, on paper": sum(row["on_paper"].values()), "all, in the model": whole,
            "the report's": REPORTED_PARAMETERS, f"{left:,} fewer, without {', '.join(row['left_out'])}": whole - left,
        }  # fmt: skip
        found = [[name, f"{count:,}"] for name, count in counts.items()]
    return Table(title="Parameters of the word-level model", columns=("part", "parameters"), rows=found)


def flops(rows: Sequence[Row]) -> Table:
    """Return the table of the FLOPs of a training step."""
    found = [
        [
            *map(str, row["step"]), *(figure(row.get(name), MFLOP, 1e-6) for name in FLOPS.values()),
            figure(row.get("published_flops"), TIMES, 1 / row["paper_step_flops"]),
        ]
        for row in estimated_steps(rows)
    ]  # fmt: skip
    note = (
        "The report's formula: batch x 7 x 35 x 200 x 200 multiplications. On paper: 8 S D^2 + 4 S^2 D + 4 S D F a row "
        "of the block forward, three times as many a step. Counted: FlopCounterMode, with attention as plain products."
    )
    columns = *STEP, *FLOPS, "of step on paper"
    return Table(title="FLOPs of a training step, in millions", columns=columns, rows=found, note=note)


def slopes(rows: Sequence[Row]) -> Table:
    """Return the table of the slopes of measured FLOPs of the report's block over estimated ones, by least squares over
    its batches."""
    found, block = [], estimated_blocks(rows)
    for name, counted in STEPS.items():
        if len(known := [row for row in block if counted in row]) > 1:
            ways = (known[:2], "paper_reported_flops"), (known, "paper_reported_flops"), (known, "paper_step_flops")
            points = (([row[way] for row in some], [row[counted] for row in some]) for some, way in ways)
            found.append([name, *(figure(float(np.polyfit(x, y, 1)[0]), TIMES) for x, y in points)])
    columns = "measured", "report's formula, two batches", "all batches", "right formula"
    note = "The report: 2.84 from two points, 2.67 from five; its first estimate is rounded down, 313 for 313.6 million"
    return Table(title="Slope of measured FLOPs against estimated", columns=columns, rows=found, note=note)


def memory(rows: Sequence[Row]) -> Table:
    """Return the table of the memory of the block and of the whole model."""

    def against(row: Row, name: str) -> list[str]:
        paper, measured = row.get(f"paper_{name}"), row[name]
        cells = [figure(each, MEGABYTE, 1e-6) for each in (paper, measured)]
        return [*cells, figure(paper and measured / paper, TIMES)]

    found = [
        [
            *map(str, row["step"]), *against(row, "kept_bytes"), *against(row, "step_bytes"),
            *(figure(row.get(name), MEGABYTE, 1e-6) for name in ("nsight_bytes", "published_bytes")),
        ]
        for row in estimated_steps(rows)
    ]  # fmt: skip
    columns = *STEP, "kept on paper", "kept", "times", "step on paper", "step", "times", "DRAM by Nsight", "published"
    note = "Kept: what forward saves for backward. Step: the most held at once, with AdamW. DRAM: traffic, no size"
    return Table(title="Memory in MB", columns=columns, rows=found, note=note)


def work(context: TaskContext, asked: dict[str, Any]) -> Iterator[Message]:
    """Measure what was asked for: parameters, a step, or what Nsight Compute counts. UserError: it cannot be done
    here."""
    config = WordConfig(heads=context.config.heads)
    if asked["measure"] == "parameters":
        yield Message(kind="steps", row=measure_parameters(config))
    elif asked["measure"] == "nsight":
        found = []
        for batch in asked["batches"]:
            found.append([batch, *counted_on_gpu(PROFILED.format(batch=batch), context.device, context.seconds_left())])
            yield Message(kind="steps")
        yield Message(kind="steps", row={"nsight": found})
    else:
        yield from measure_step(context, asked, config)


def measure_parameters(config: WordConfig) -> Row:
    """Return the parameters of the whole model and of its parts; `layered`: those that a tool finds by asking each
    layer only for its weight and bias."""
    named = {name: weights.numel() for name, weights in WordModel(config).named_parameters()}
    left_out = [name for name in named if not name.endswith((".weight", ".bias"))]
    whole = sum(named.values())
    layered = whole - sum(named[name] for name in left_out)
    return {"parameters": whole, "on_paper": parts(config), "left_out": left_out, "layered": layered}


def measure_step(context: TaskContext, asked: dict[str, Any], config: WordConfig) -> Iterator[Message]:
    """Yield what a training step of the encoder block alone, or of the whole model with its optimizer, takes on paper
    and as torch counts it. UserError: it would not fit."""
    batch, device, paper = asked["batch"], context.device, on_paper(asked["measure"], config, asked["batch"])
    needed = ROOM * paper.get("paper_step_bytes", 0)
    if needed > (room := min(available_bytes(device), asked.get("memory_limit", math.inf))):
        rule = f"needs about {bytes_text(needed)}, and there are {bytes_text(room)}"
        raise UserError(f"memory: a step of {batch} rows {rule}: with more free, --resume")
    prepare("fp32", device)
    training = (block_training if asked["measure"] == "block" else model_training)(config, batch, device)
    training()
    yield Message(kind="start")
    yield Message(kind="steps", row=paper | {
        "forward_flops": counted_flops(training.forward), "step_flops": counted_flops(training),
        "kept_bytes": kept_bytes(training.model, training.forward),
        "step_bytes": held_bytes(training.model, training.optimizer) + most_bytes(training, device),
    })  # fmt: skip


PROFILED = "from model.cost.word_model import profiled_step; profiled_step({batch})"
"""Code that runs under Nsight Compute."""
SHAPE = {"d_model": 200, "heads": BLOCK_HEADS, "layers": 1, "dropout": 0.0, "precision": "fp32"}
BATCHES = (16, 32, 64, 128, 256)
OTHER_HEADS = (1, 8)
"""Other numbers of heads of the block, at the smallest batch: the step must cost the same."""
QUICK_SECONDS = 6.0
ROOM = 1.2
"""How many times its memory on paper must be free before a step begins."""
ROW_SECONDS = 0.16
"""Seconds of a CPU core for each row of the batch of the whole model, beyond QUICK_SECONDS."""
NSIGHT_SECONDS = 180.0


def points(devices: Devices, settings: ExperimentSettings) -> list[Point]:
    """Return points for the parameters, for the block and the whole model at each batch, for a GPU's counters where
    there is one, and for the block with other heads."""
    limit = {} if settings.memory_limit is None else {"memory_limit": settings.memory_limit}

    def point(asked: dict[str, Any], seconds: float = QUICK_SECONDS, least: float = 0.0, **config: Any) -> Point:
        return Point(devices=1, asked=asked, seconds=seconds, least_seconds=least or seconds, config=SHAPE | config)

    each = ROW_SECONDS if devices.kind == "cpu" else 0.0
    counters = [point({"measure": "nsight", "batches": list(BATCHES)}, NSIGHT_SECONDS, QUICK_SECONDS)]
    return [
        point({"measure": "parameters"}),
        *(point({"measure": "block", "batch": batch}) for batch in BATCHES),
        *(point({"measure": "model", "batch": batch} | limit, QUICK_SECONDS + each * batch) for batch in BATCHES),
        *(counters if devices.kind == "cuda" else []),
        *(point({"measure": "block", "batch": BATCHES[0]}, heads=heads) for heads in OTHER_HEADS),
    ]


def line(row: Row) -> str:
    """Return the result of a row in short."""
    if "step_flops" not in row:
        return f"{row['parameters']:,} parameters" if "parameters" in row else f"{len(row['nsight'])} batches"
    times = row["step_flops"] / row["paper_step_flops"]
    return f"{row['step_flops'] / 1e6:,.1f} MFLOP, {times:.4f} of those on paper"


ESTIMATES = Experiment(
    name="estimates", about="parameters, FLOPs and memory on paper against measured, of a word-level model",
    points=points, work=work, line=line, sets=tuple(SHAPE), reads=("memory_limit",),
    tables=lambda rows: [parameters(rows), flops(rows), slopes(rows), memory(rows)],
)  # fmt: skip
