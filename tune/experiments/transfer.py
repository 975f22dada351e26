"""Does one learning rate serve all shapes? Losses over rates by width and depth, with the scaling rules and without."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np

from model.config import Config
from model.nn.mup import BASE_D_MODEL, BASE_LAYERS
from tune.arithmetic import Interval, mean_interval
from tune.devices import Devices
from tune.experiments.base import Experiment, ExperimentSettings, Point, Row, Table
from tune.experiments.lists import trainings
from tune.experiments.tables import NOTHING, signed

BASE = {"d_model": BASE_D_MODEL, "layers": BASE_LAYERS}
AXES = {"d_model": "layers", "layers": "d_model"}
"""What varies, and what is the base's meanwhile."""


@dataclass(frozen=True)
class Valley:
    """Losses by rate, as its logarithm or in steps from some rate; what diverged has an infinite one."""

    losses: Mapping[float, float]

    @property
    def best(self) -> float:
        """The rate with the lowest loss."""
        return min(self.losses, key=self.losses.__getitem__)

    @property
    def loss(self) -> float:
        """That one."""
        return self.losses[self.best]

    @property
    def bracketed(self) -> bool:
        """Whether lower and higher rates than the best one were tried."""
        return min(self.losses) < self.best < max(self.losses)

    @property
    def optimum(self) -> float:
        """Where between the rates the parabola through the best and its neighbours is lowest.

        The best itself where a neighbour is not known, or diverged.
        """
        rates = sorted(self.losses)
        place = rates.index(self.best)
        near = rates[max(0, place - 1) : place + 2]
        found = [self.losses[rate] for rate in near]
        if len(near) < 3 or not all(map(math.isfinite, found)) or found[0] == found[1] == found[2]:
            return self.best
        curvature, slope, _ = np.polyfit(np.array(near) - self.best, found, 2)
        return float(self.best - slope / (2 * curvature))


@dataclass(frozen=True, kw_only=True)
class Descent:
    """Of one shape, its losses by octaves of the learning rate, which is 2 to that power; mean: of the losses of all
    seeds.

    ruled: with the scaling rules, or one rate for all tensors; None: it is the base, of which both are the same.
    """

    shape: dict[str, int]
    ruled: bool | None
    seeds: Mapping[int, Valley]
    mean: Valley

    def drift(self, base: "Descent") -> Interval:
        """Octaves from the base's best rate to this shape's, the mean of the seeds."""
        drifts = [self.seeds[seed].optimum - base.seeds[seed].optimum for seed in self.seeds if seed in base.seeds]
        return of_seeds(drifts or [self.mean.optimum - base.mean.optimum])

    def regret(self, base: "Descent") -> Interval | None:
        """Nats that the base's best rate loses against this shape's, the mean of the seeds.

        None: this shape was not trained with that rate; infinite: it diverged there.
        """
        at, best = base.mean.best, self.mean.best
        if at not in self.mean.losses:
            return None
        if math.isinf(self.mean.losses[at]):
            return math.inf, math.inf, math.inf
        return of_seeds([each.losses[at] - each.losses[best] for each in self.seeds.values()])


def of_seeds(values: Sequence[float]) -> Interval:
    """Their mean, with its 95 % interval; of one seed, which has none, the figure alone."""
    return mean_interval(values) or (values[0], values[0], values[0])


def descents(rows: Sequence[Row]) -> list[Descent]:
    """Of all shapes, the base first. Of a shape those seeds count that were trained with the same rates as the one with
    the most."""
    found: dict[tuple[int, int, bool | None], dict[int, dict[float, float]]] = {}
    for row in rows:
        config, loss = row["config"], row["valid_loss"]
        of = config["d_model"], config["layers"], config.get("scaling_rules")
        losses = found.setdefault(of, {}).setdefault(config["seed"], {})
        losses[math.log2(config["learning_rate"])] = math.inf if loss is None else loss
    made = [descent(*of, seeds) for of, seeds in found.items()]
    return sorted(made, key=lambda each: (each.ruled is not None, *each.shape.values(), not each.ruled))


def descent(d_model: int, layers: int, ruled: bool | None, seeds: Mapping[int, Mapping[float, float]]) -> Descent:
    """One of them, by the losses of each seed."""
    rates = max(seeds.values(), key=len).keys()
    whole = {seed: Valley(losses) for seed, losses in seeds.items() if losses.keys() == rates}
    mean = {rate: statistics.fmean(each.losses[rate] for each in whole.values()) for rate in rates}
    return Descent(shape={"d_model": d_model, "layers": layers}, ruled=ruled, seeds=whole, mean=Valley(mean))


def base_of(found: Sequence[Descent]) -> Descent | None:
    """The base's, where it is there and has a loss."""
    return next((each for each in found if each.ruled is None and math.isfinite(each.mean.loss)), None)


def along(found: Sequence[Descent], axis: str, *, ruled: bool) -> list[Descent]:
    """Of the shapes that differ from the base on one axis, and of the base, in their order there."""
    other = AXES[axis]
    of_axis = (each for each in found if each.ruled in (None, ruled) and each.shape[other] == BASE[other])
    return sorted(of_axis, key=lambda each: each.shape[axis])


RULES = {True: "rules", False: "standard", None: "base"}
NAMES = {"d_model": "width", "layers": "depth"}


def tables(rows: Sequence[Row]) -> list[Table]:
    """Drift and regret by width and by depth, and the losses that they are of."""
    found, steps = descents(rows), max((row["steps"] for row in rows), default=0)
    base = base_of(found)
    made = [compared(found, base, axis, steps) for axis in AXES] if base else []
    return [*made, losses(found)] if found else []


def compared(found: Sequence[Descent], base: Descent, axis: str, steps: int) -> Table:
    """What both parametrizations do along one axis."""
    ways = [{each.shape[axis]: each for each in along(found, axis, ruled=ruled)} for ruled in (True, False)]
    sizes = sorted({size for way in ways for size in way})
    cells = [[str(size), *(cell for way in ways for cell in figures(way.get(size), base))] for size in sizes]
    named = (f"{RULES[ruled]}: best rate" for ruled in (True, False))
    columns = axis, *(each for name in named for each in (name, "loss", "drift", "regret"))
    title = f"One learning rate for all: {NAMES[axis]}"
    return Table(title=title, columns=columns, rows=cells, note=note(found, base, axis, steps))


def figures(of: Descent | None, base: Descent) -> list[str]:
    """A shape's best rate and its loss, how far the rate moved, and what the base's own costs here."""
    if of is None:
        return [NOTHING] * 4
    best = of.mean.best
    if math.isinf(of.mean.loss):
        return [NOTHING, "diverged", NOTHING, NOTHING]
    regret = of.regret(base)
    lost = NOTHING if regret is None else "diverged" if math.isinf(regret[0]) else signed(regret, "{:.3f}")
    if regret is not None and math.isfinite(regret[0]) and not of.mean.bracketed:
        lost = f">= {lost}"
    moved = beyond(of) + signed(of.drift(base), "{:+.2f}")
    return [f"{2**best:.2e}", f"{of.mean.loss:.4f}", moved, lost]


def beyond(of: Descent) -> str:
    """Where the best rate lies at an end of those that were tried, the true one lies beyond."""
    if of.mean.bracketed:
        return ""
    return "> " if of.mean.best == max(of.mean.losses) else "< "


def note(found: Sequence[Descent], base: Descent, axis: str, steps: int) -> str:
    """What the table is of."""
    other, seeds = AXES[axis], sorted({len(each.seeds) for each in found})
    several = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"{seeds[0]}"
    open_end = "" if base.mean.bracketed else " The base's own best is the last one tried: no more."
    return (
        f"{other} {BASE[other]}, {steps:,} steps, rates an octave apart, "
        f"{several} seed{'s' * (several != '1')}; drift: octaves from the best rate of {axis} {BASE[axis]}; "
        "regret: nats that this rate loses against the best one tried; where that is the last one tried, bounds: the "
        "best lies beyond. standard: one rate for all tensors, and no branch or logit is scaled. No report did this."
        + open_end
    )


def losses(found: Sequence[Descent]) -> Table:
    """Mean validation loss of each shape at each rate."""
    rates = sorted({rate for each in found for rate in each.mean.losses})
    cells = [[name(each), *(loss(each, rate) for rate in rates)] for each in found]
    columns = "shape", *(f"{2**rate:.1e}" for rate in rates)
    return Table(title="Validation loss by base learning rate", columns=columns, rows=cells, note="*: the best")


def name(of: Descent) -> str:
    """d64 l4 standard"""
    return f"d{of.shape['d_model']} l{of.shape['layers']} {RULES[of.ruled]}"


def loss(of: Descent, rate: float) -> str:
    """A cell; what was not trained is empty."""
    found = of.mean.losses.get(rate)
    if found is None:
        return NOTHING
    mark = "*" if rate == of.mean.best else ""
    return f"{found:.3f}{mark}" if math.isfinite(found) else "diverged"


SIZES = {"d_model": (32, 64, 256, 512), "layers": (2, 8, 16)}
"""Beside the base's."""
STEPS, LEAST_STEPS = 1000, 20
LARGEST_SCALE = 0.05
"""From this share of the training on the widest and the deepest shapes are there too."""
AROUND = 3
"""Octaves below and above the recipe's rate, and where the best is expected, that are tried."""
DIGITS = 3
"""Of a rate."""
RECIPE = {"optimizer": "adamw"}


def points(devices: Devices, settings: ExperimentSettings) -> list[Point]:
    """Each shape with each rate; of equal costs the rates nearest to where the best are expected first, so that the
    outermost are left out."""
    steps = max(LEAST_STEPS, round(settings.scale * STEPS))
    held = {"dropout": 0.0, "precision": "bf16" if "bf16" in devices.precisions else "fp32"}
    held |= {name: settings.fix[name] for name in held if name in settings.fix}
    recipe: dict[str, Any] = {**settings.set}
    rate, asked = Config(**recipe, family=settings.family).learning_rate, list[tuple[int, dict[str, Any]]]()
    for shape in shapes(settings):
        low, high = sorted((0, expected(shape)))
        for octaves in range(low - AROUND, high + AROUND + 1):
            own = float(f"{rate * 2**octaves:.{DIGITS}g}")
            asked.append((max(low - octaves, octaves - high), {**shape, **held, "learning_rate": own}))
    return trainings(devices, settings, [(config, steps) for _, config in sorted(asked, key=itemgetter(0))])


def shapes(settings: ExperimentSettings) -> Iterator[dict[str, Any]]:
    """The base, which is the same with the rules and without, and says nothing of them; those that differ from it on
    one axis, with them and without."""
    yield dict(BASE)
    most = None if settings.scale >= LARGEST_SCALE else -1
    for axis, sizes in SIZES.items():
        for size in sizes[:most]:
            for ruled in (True, False):
                yield BASE | {axis: size, "scaling_rules": ruled}


def expected(shape: Mapping[str, Any]) -> int:
    """Octaves from the recipe's rate to a shape's best: without the rules one down for each doubling."""
    doublings = sum(math.log2(shape[axis] / BASE[axis]) for axis in BASE)
    return 0 if shape.get("scaling_rules", True) else -round(doublings)


TRANSFER = Experiment(
    name="transfer", about="learning rate x width and x depth, with the scaling rules and without: drift and regret",
    points=points, tables=tables, diverging=True, recipe=RECIPE, sets=tuple(SIZES),
)  # fmt: skip
