"""Ways to train nanoGPT, on several shapes: what each takes and what it gains; and shapes of equal cost."""

from collections.abc import Iterator
from typing import Any

from model.config import OF_ARCHITECTURE, RECIPES, Config
from tune.devices import Devices
from tune.experiments.experiment import Experiment, Point, Row
from tune.experiments.methods.runs import ACCUMULATION, BASELINE, EQUAL, FULL, MIXED, SGD, SMALLER
from tune.experiments.methods.shapes import DOUBLED, REPORT, Shape, doubled, equal_shapes
from tune.experiments.methods.tables import tables
from tune.experiments.methods.work import work
from tune.experiments.prices import Prices
from tune.experiments.settings import ExperimentSettings

STEPS = 2_000
BATCH_TOKENS = RECIPES["nanogpt"]["batch_tokens"]
SGD_RATE = 0.3
"""After 500 steps of the report's shape as good as .1 and far better than 1; with 3 it diverges."""
AGAIN = 1.5
"""Times the seconds of a step, where activations are computed again; where gradients are accumulated too."""
MARGIN = 1.3
"""Times what steps take on paper: other work on the machine must not end a training early."""
FIXED_SECONDS = 20.0
"""Of a point: counting allocations, evaluation, checkpoints."""


def methods(devices: Devices) -> dict[str, dict[str, Any]]:
    """What each changes of the configuration; the baseline has the precision that upstream takes on the device."""
    upstream = {"precision": "tf32" if "tf32" in devices.precisions else "fp32"}
    small = next((each for each in ("bf16", "fp16") if each in devices.precisions), "bf16")
    return {
        BASELINE: upstream, SMALLER: {**upstream, "batch_tokens": BATCH_TOKENS // 2}, ACCUMULATION: upstream,
        SGD: {**upstream, "learning_rate": SGD_RATE}, MIXED: {"precision": small}, FULL: {"precision": "fp32"},
    }  # fmt: skip


def points(devices: Devices, settings: ExperimentSettings) -> list[Point]:
    """Every method on every shape; shapes of equal cost; then all again with activations computed again."""
    return [point for number in range(settings.seeds) for point in points_of(devices, settings, number)]


def points_of(devices: Devices, settings: ExperimentSettings, number: int) -> Iterator[Point]:
    """Those of the n-th seed."""
    steps = max(1, round(settings.scale * STEPS))
    shape = {**REPORT, **{name: value for name, value in settings.fix.items() if name in REPORT}}
    rate = OF_ARCHITECTURE["nanogpt"]["learning_rate"]
    recipe = {"learning_rate": rate, "warm_up_steps": max(1, steps // 20)}
    seed, prices = {"seed": settings.seed + number} if number else {}, Prices(devices)

    def point(method: str, what: str, of: Shape, checkpointing: str = "off") -> Point:
        asked = {"method": method, "doubled": what, "checkpointing": checkpointing, "steps": steps}
        config = {**of, **recipe, **methods(devices)[method], **seed}
        again = (checkpointing == "on") + (method == ACCUMULATION)
        step = prices.step(Config(family="nanogpt", **config))
        seconds = FIXED_SECONDS + MARGIN * steps * step * AGAIN**again
        return Point(devices=1, asked=asked, seconds=seconds, least=seconds, config=config)

    for checkpointing in ("off", "on"):
        for what in DOUBLED:
            for method in methods(devices):
                yield point(method, what, doubled(shape, what), checkpointing)
        if checkpointing == "off":
            for equal in equal_shapes(shape):
                yield point(BASELINE, EQUAL, equal)


def line(row: Row) -> str:
    """What came out, in short."""
    return (f"{row['seconds']:.1f} s, at most {row['memory_bytes'] / 1e6:.0f} MB, validation loss "
            f"{row['valid_loss']:.4f} after {row['steps']:,} steps")  # fmt: skip


METHODS = Experiment(
    name="methods", about="ways to train nanoGPT, and shapes of equal cost: seconds, memory, allocations, loss",
    points=points, work=work, line=line, tables=tables, families=("nanogpt",), sets=("precision",),
)  # fmt: skip
