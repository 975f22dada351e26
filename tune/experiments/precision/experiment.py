"""One configuration in each precision: curves, final quality, seconds, memory and utilisation."""

from typing import Any

from model.config import Config
from model.precision import PRECISIONS
from tune.devices import Devices
from tune.experiments.experiment import Experiment, Point, Row
from tune.experiments.precision.tables import conclusions, tables
from tune.experiments.precision.work import work
from tune.experiments.prices import Prices, at_most
from tune.experiments.settings import ExperimentSettings

FULL_STEPS = 2000
"""Of each training at a scale of 1: as in nanoGPT's recipe for a CPU."""
LEAST_STEPS = 20
REFUSAL_SECONDS = 1.0
"""What it takes to say that a device lacks a precision."""


def points(devices: Devices, settings: ExperimentSettings) -> list[Point]:
    """Each precision once, then again with each further seed; those that the device lacks say why, once."""
    steps, prices, found = max(LEAST_STEPS, round(settings.scale * FULL_STEPS)), Prices(devices), []
    for seed in range(settings.seed, settings.seed + settings.seeds):
        for precision in PRECISIONS:
            config: dict[str, Any] = {"precision": precision, "seed": seed}
            if precision in devices.precisions:
                least = prices.whole(Config(family=settings.family, **{**settings.fix, **config}), steps)
            elif seed == settings.seed:
                least = REFUSAL_SECONDS
            else:
                continue
            found.append(Point(devices=1, asked={"steps": steps}, config=config, seconds=at_most(least), least=least))
    return found


def line(row: Row) -> str:
    """What came out, in short."""
    return (
        f"validation loss {row['valid_loss']:.4f}, accuracy {row['accuracy']:.2%}, {row['training_seconds']:.1f} s in "
        f"steps, {row['memory_bytes'] / 2**20:,.0f} MiB, MFU {row['mfu']:.0%}"
    )


PRECISION = Experiment(
    name="precision", about="fp32, tf32, bf16 and fp16: curves, final quality, seconds, memory, utilisation",
    points=points, work=work, line=line, tables=tables, conclusions=conclusions, sets=("precision",),
)  # fmt: skip
