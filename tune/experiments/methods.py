"""Ways to train nanoGPT on several shapes, batches at equal steps and at equal samples, and shapes of equal cost."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from model.nn.precision import upstreams
from tune.devices import Devices
from tune.experiments.base import Experiment, ExperimentSettings, Point
from tune.experiments.lists import trainings
from tune.experiments.methods_tables import CONTEXT, DOUBLED, REPORT, ROWS, SHAPE, Shape, flops, parameters, tables
from tune.flags import invalid

LAYERS_TIMES = (0.25, 0.5, 2.0)
"""Of shapes that are as large as one or cost as much: as many times its layers."""
STEPS = 2_000
LEAST_STEPS = 20
PARTS = 4
"""Of a batch whose gradients are accumulated."""
BATCHES = (6, 12, 32)
"""Rows, of which the report trains with ROWS, and of smaller batches with the first."""
SGD_RATE = 0.3
"""After 500 steps of the report's shape as good as .1 and far better than 1; with 3 it diverges."""
RECIPE = {"architecture": REPORT["architecture"]}


def doubled(what: str) -> dict[str, Any]:
    """The report's shape with this dimension twice as large."""
    return {**SHAPE, what: 2 * SHAPE[what]} if what in SHAPE else dict(SHAPE)


def alike(size: Callable[[Shape], float]) -> list[dict[str, Any]]:
    """Other shapes of the report's size: fewer layers, and wider; more layers, and narrower."""
    return [of_size(size, max(1, round(times * SHAPE["layers"]))) for times in LAYERS_TIMES]


def of_size(size: Callable[[Shape], float], layers: int) -> dict[str, Any]:
    """With so many layers, and of all widths that its heads divide evenly the one whose size is the closest."""
    widths = range(SHAPE["heads"], 4 * SHAPE["d_model"] + 1, SHAPE["heads"])
    made = ({**SHAPE, "layers": layers, "d_model": width} for width in widths)
    return min(made, key=lambda each: abs(size(each) - size(SHAPE)))


def ways(devices: Devices) -> list[Mapping[str, Any]]:
    """What each method changes of a configuration, the first that all others are held against: it has the precision
    that upstream takes on the device. Of precisions, only what the device has."""
    upstream = {"precision": upstreams(devices.precisions)}
    mixed = next(({"precision": each} for each in ("bf16", "fp16") if each in devices.precisions), upstream)
    found = [
        upstream, {"precision": "fp32"}, mixed, {**upstream, "batch_tokens": BATCHES[0] * CONTEXT},
        {**upstream, "micro_batches": PARTS}, {**upstream, "optimizer": "sgd", "learning_rate": SGD_RATE},
    ]  # fmt: skip
    return [way for place, way in enumerate(found) if way not in found[:place]]


def points(devices: Devices, settings: ExperimentSettings) -> list[Point]:
    """Every method on every shape, with activations kept and computed again; batches of equal steps and of equal
    samples; shapes of equal FLOPs and of equal parameters."""
    for name in {"batch_tokens", "context"} & settings.set.keys():
        raise invalid(
            "set", f"'{name}={settings.set[name]}' is not for methods, which sets {name} itself: leave it out"
        )
    steps = max(LEAST_STEPS, round(settings.scale * STEPS))
    first, *others = ways(devices)
    asked = [
        ({**doubled(what), **way, **again}, steps)
        for again in ({}, {"checkpointing": True})
        for what in DOUBLED
        for way in (first, *others)
    ]
    for rows in BATCHES:
        batch = {"batch_tokens": rows * CONTEXT} if rows != ROWS else {}
        asked += [({**SHAPE, **first, **batch}, count) for count in (steps, round(steps * ROWS / rows))]
    asked += [({**shape, **first}, steps) for size in (flops, parameters) for shape in alike(size)]
    dropout = {"dropout": settings.fix.get("dropout", SHAPE["dropout"])}
    asked = [({**config, **dropout}, count) for config, count in asked]
    once = [each for place, each in enumerate(asked) if each not in asked[:place]]
    return trainings(devices, replace(settings, set={**RECIPE, **settings.set}), once)


METHODS = Experiment(
    name="methods", about="ways to train nanoGPT, batches, shapes of equal cost: seconds, memory, allocations, loss",
    points=points, tables=tables, families=("nanogpt",), recipe=RECIPE,
)  # fmt: skip
