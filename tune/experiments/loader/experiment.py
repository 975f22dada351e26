"""Batches by torch's DataLoader in 0 to 10 workers: what a running loop waits for, images and text."""

from typing import Any

from tune.devices import Devices
from tune.experiments.experiment import Experiment, Point, Row
from tune.experiments.loader.tables import conclusions, fastest, tables
from tune.experiments.loader.work import PREFETCHES, work
from tune.experiments.settings import ExperimentSettings
from tune.experiments.tables import with_interval

MOST_WORKERS = 10
"""The published report's."""
FEW_WORKERS = 2
"""With so many, where there are as many, the other settings are compared."""
ROUNDS, LEAST_ROUNDS = 20, 7
TURN_SECONDS = {"images": 4.0, "text": 3.0}
"""Of a number of workers, in an empty loop and in a running one."""
RUNNING_SECONDS = 3.0
"""Of that, with images, the running one."""
BEGIN_SECONDS, WORKER_SECONDS = 10.0, 0.5
"""Until the images are there and the first process can be begun, and for each process."""


def points(devices: Devices, settings: ExperimentSettings) -> list[Point]:
    """On CPU cores a point holds those of its workers too."""
    cores = devices.slots if devices.kind == "cpu" else devices.cores
    most = MOST_WORKERS if settings.oversubscribe else min(MOST_WORKERS, cores)
    held = min(devices.slots, 1 + most) if devices.kind == "cpu" else 1
    counts = list(range(most + 1))
    few = min(FEW_WORKERS, most)
    workers = [
        point(held, {"measure": "workers", "of": of, "workers": counts},
              (len(counts) + (of == "text")) * seconds, processes=sum(counts))
        for of, seconds in TURN_SECONDS.items()
    ]  # fmt: skip
    a_round = (len(PREFETCHES) + 1) * RUNNING_SECONDS + few * WORKER_SECONDS
    settings_of = {"measure": "settings", "of": "images", "workers": few}
    return [*workers, point(held, settings_of, a_round, processes=few * len(PREFETCHES))]


def point(devices: int, asked: dict[str, Any], round_seconds: float, *, processes: int) -> Point:
    """processes: that are begun before the first round."""
    begin = BEGIN_SECONDS + processes * WORKER_SECONDS
    return Point(
        devices=devices, asked=asked, seconds=begin + ROUNDS * round_seconds, least=begin + LEAST_ROUNDS * round_seconds
    )


def line(row: Row) -> str:
    """What came out, in short."""
    best = fastest(row, "whole")
    return f"fastest in a running loop: {best['name']}, {with_interval(best['whole'], '{:.2f}', 1e3)} ms a batch, " \
           f"of which {with_interval(best['wait'], '{:.2f}', 1e3)} waited for"  # fmt: skip


LOADER = Experiment(
    name="loader", about="DataLoader workers, their settings, and this project's own batches, in a running loop",
    points=points, work=work, line=line, tables=tables, conclusions=conclusions,
)  # fmt: skip
