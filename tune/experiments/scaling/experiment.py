"""One configuration on 1, 2, 4 ... devices: what it gains, what it costs, and where the rest goes."""


from typing import Any

from tune.devices import Devices
from tune.experiments.experiment import Experiment, Point, Row
from tune.experiments.scaling.tables import tables
from tune.experiments.scaling.work import work
from tune.experiments.settings import ExperimentSettings
from tune.experiments.tables import with_interval

BATCHES = (32, 128, 512)
"""Rows, as the published report's."""
SECONDS = {"steps": 100.0, "network": 30.0, "accumulation": 60.0, "training": 60.0}
LEAST = {"steps": 10.0, "network": 15.0, "accumulation": 10.0, "training": 10.0}
TRAINING_STEPS, CHECKPOINT_STEPS = 200, 50


def counts(slots: int) -> list[int]:
    """1, 2, 4 ... and all of them."""
    return [*(2**power for power in range(slots.bit_length()) if 2**power < slots), slots]


def points(devices: Devices, settings: ExperimentSettings) -> list[Point]:
    """Each batch on one device; on more of them both that batch on each, and that batch on all of them together."""
    return [point for count in counts(devices.slots) for point in points_of(count)]


def points_of(count: int) -> list[Point]:
    """Those on so many devices."""
    rows = sorted({batch * each for batch in BATCHES for each in (1, count) if batch >= count})
    steps: list[dict[str, Any]] = [{"measure": "steps", "rows": each} for each in rows]
    training: dict[str, Any] = {"measure": "training", "steps": TRAINING_STEPS, "every": CHECKPOINT_STEPS}
    asked = [*steps, training]
    if count > 1:
        asked = [{"measure": "network"}, *steps, {"measure": "accumulation"}, training]
    return [
        Point(devices=count, asked=each, seconds=SECONDS[each["measure"]], least=LEAST[each["measure"]])
        for each in asked
    ]


def line(row: Row) -> str:
    """What came out, in short."""
    if "step_seconds" in row:
        return f"{with_interval(row['step_seconds'], '{:.1f}', 1e3)} ms a step"
    if "gain" in row:
        return f"4 at a time take a row {with_interval(dict(row['gain'])[4], '{:.2f}')} times as fast as 1"
    if "valid_loss" in row:
        return f"validation loss {row['valid_loss']:.4f} after {row['steps']} steps"
    return "gradients are " + ("bit-equal" if row["bit_equal"] else "NOT equal") + " on all ranks"


SCALING = Experiment(
    name="scaling", about="one configuration on 1, 2, 4 ... devices: speed-up, communication, accumulation",
    points=points, work=work, line=line, tables=tables,
)  # fmt: skip
