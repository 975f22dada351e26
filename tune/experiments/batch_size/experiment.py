"""Larger and larger batches, until memory ends: seconds of an epoch, and the largest batch that fits."""

from typing import Any

from tune.devices import Devices
from tune.experiments.batch_size.tables import tables
from tune.experiments.batch_size.work import BATCHES, work
from tune.experiments.experiment import Experiment, Point, Row
from tune.experiments.settings import ExperimentSettings
from tune.sizes import bytes_text

CPU_LIMIT = 2_000_000_000
"""Bytes that a batch may take on a CPU where no --memory-limit is given: a machine's memory is not to be filled."""
PROCESS_SECONDS = 15.0
"""In which a process starts and takes its first steps."""
EPOCHS_SECONDS = {"cpu": 300.0, "cuda": 60.0}
"""That two epochs may take; of longer ones a part is timed."""
LARGEST_SECONDS, LEAST_LARGEST_SECONDS = 200.0, 60.0


def points(devices: Devices, settings: ExperimentSettings) -> list[Point]:
    """Each batch, then the largest."""
    limit = CPU_LIMIT if settings.memory_limit is None and devices.kind == "cpu" else settings.memory_limit
    common: dict[str, Any] = {"share": settings.scale} | ({} if limit is None else {"limit": bytes_text(limit)})
    epochs = settings.scale * EPOCHS_SECONDS[devices.kind]
    batches = [
        Point(devices=1, asked={"rows": rows} | common, seconds=PROCESS_SECONDS + epochs, least=PROCESS_SECONDS)
        for rows in BATCHES
    ]
    seconds = LARGEST_SECONDS + epochs
    return [*batches, Point(devices=1, asked={"largest": True} | common, seconds=seconds, least=LEAST_LARGEST_SECONDS)]


def line(row: Row) -> str:
    """What came out, in short."""
    if "largest" in row:
        return f"{row['largest']:,} rows fit" + (f", {row['fails']:,} do not" if row["fails"] else "")
    if "epoch_seconds" not in row:
        return str(row["ended"]) + (f" by {row['why']}" if "why" in row else "")
    return f"{row['epoch_seconds']:.1f} s an epoch ({row['share']:.0%} timed), {bytes_text(row['memory_bytes'])}"


BATCH_SIZE = Experiment(
    name="batch_size", about="larger and larger batches until memory ends: seconds of an epoch, the largest that fits",
    points=points, work=work, line=line, tables=tables,
)  # fmt: skip
