"""FLOPs and memory on paper against what torch and the device count, of a published report's word-level model."""

from typing import Any

from tune.devices import Devices
from tune.experiments.estimates.conclusions import conclusions
from tune.experiments.estimates.tables import tables
from tune.experiments.estimates.work import work
from tune.experiments.experiment import Experiment, Point, Row
from tune.experiments.settings import ExperimentSettings
from tune.experiments.tables import with_interval

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
    points=points, work=work, line=line, tables=tables, conclusions=conclusions, sets=tuple(SHAPE),
)  # fmt: skip
