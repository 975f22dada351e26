"""Ways to train on several devices, each against DistributedDataParallel as it comes."""

from typing import Any

from tune.devices import Devices
from tune.experiments.data_parallel.tables import conclusions, tables
from tune.experiments.data_parallel.work import work
from tune.experiments.experiment import Experiment, Point, Row
from tune.experiments.settings import ExperimentSettings
from tune.experiments.tables import with_interval

WAYS: tuple[dict[str, Any], ...] = (
    {"way": "default"}, {"way": "DataParallel"},
    *({"way": "bucket_megabytes", "value": size} for size in (1, 5, 25, 100)),
    {"way": "gradient_as_bucket_view", "value": True}, {"way": "static_graph", "value": True},
    *({"way": "compression", "value": kind} for kind in ("bf16", "fp16")),
)  # fmt: skip
"""The default against itself tells what a difference is that means nothing."""
SECONDS, LEAST = 40.0, 8.0


def points(devices: Devices, settings: ExperimentSettings) -> list[Point]:
    """Each way, on all devices."""
    return [Point(devices=devices.slots, asked=way, seconds=SECONDS, least=LEAST) for way in WAYS]


def line(row: Row) -> str:
    """What came out, in short."""
    return (f"{with_interval(row['times'], '{:.3f}')} times as fast as the default, its gradient "
            f"{row['distance']:.1e} from the default's")  # fmt: skip


DATA_PARALLEL = Experiment(
    name="data_parallel", about="DataParallel and DistributedDataParallel's levers, each against its default",
    points=points, work=work, line=line, tables=tables, conclusions=conclusions,
)  # fmt: skip
