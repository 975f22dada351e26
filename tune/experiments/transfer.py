"""Does one learning rate serve all shapes? Losses over rates by width and depth, with muP and without."""

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
from tune.experiments.lists import training_points
from tune.experiments.tables import EMPTY_CELL, signed

BASE = {"d_model": BASE_D_MODEL, "layers": BASE_LAYERS}
AXES = {"d_model": "layers", "layers": "d_model"}
"""The dimension that varies, and the one that stays the base's meanwhile."""


@dataclass(frozen=True)
class LossesByRate:
    """Losses by learning rate, given as its logarithm or in steps from some rate; the loss of what diverged is
    infinite."""

    losses: Mapping[float, float]

    @property
    def best(self) -> float:
        """The rate with the lowest loss."""
        return min(self.losses, key=self.losses.__getitem__)

    @property
    def loss(self) -> float:
        """The lowest loss."""
        return self.losses[self.best]

    @property
    def is_bracketed(self) -> bool:
        """Whether rates both lower and higher than the best one were tried."""
        return min(self.losses) < self.best < max(self.losses)

    @property
    def optimum(self) -> float:
        """The rate, between those tried, at which the parabola through the best and its neighbours is lowest.

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
class RateSweep:
    """Losses of one shape by octaves of the learning rate, which is 2 to that power. seeds: of each seed; mean: the
    means over all seeds.

    mup: whether with muP, else with one rate for all tensors; None: it is the base, where both are the same.
    """

    shape: dict[str, int]
    mup: bool | None
    seeds: Mapping[int, LossesByRate]
    mean: LossesByRate

    def drift(self, base: "RateSweep") -> Interval:
        """Return the octaves from the base's best rate to this shape's, the mean over the seeds."""
        drifts = [self.seeds[seed].optimum - base.seeds[seed].optimum for seed in self.seeds if seed in base.seeds]
        return of_seeds(drifts or [self.mean.optimum - base.mean.optimum])

    def regret(self, base: "RateSweep") -> Interval | None:
        """Return the nats that the base's best rate loses against this shape's, the mean over the seeds.

        None: this shape was not trained with that rate; infinite: it diverged there.
        """
        at, best = base.mean.best, self.mean.best
        if at not in self.mean.losses:
            return None
        if math.isinf(self.mean.losses[at]):
            return math.inf, math.inf, math.inf
        return of_seeds([each.losses[at] - each.losses[best] for each in self.seeds.values()])


def of_seeds(values: Sequence[float]) -> Interval:
    """Return the mean of the values with its 95 % interval; of one seed, which has no interval, the value three
    times."""
    return mean_interval(values) or (values[0], values[0], values[0])


def sweeps(rows: Sequence[Row]) -> list[RateSweep]:
    """Return the sweeps of all shapes, the base first. Of a shape, only seeds count that were trained with the same
    rates as the one with the most."""
    found: dict[tuple[int, int, bool | None], dict[int, dict[float, float]]] = {}
    for row in rows:
        config, loss = row["config"], row["valid_loss"]
        of = config["d_model"], config["layers"], config.get("scaling_rules")
        losses = found.setdefault(of, {}).setdefault(config["seed"], {})
        losses[math.log2(config["learning_rate"])] = math.inf if loss is None else loss
    made = [sweep(*of, seeds) for of, seeds in found.items()]
    return sorted(made, key=lambda each: (each.mup is not None, *each.shape.values(), not each.mup))


def sweep(d_model: int, layers: int, mup: bool | None, seeds: Mapping[int, Mapping[float, float]]) -> RateSweep:
    """Return the sweep of one shape, from the losses of each seed by octave."""
    rates = max(seeds.values(), key=len).keys()
    whole = {seed: LossesByRate(losses) for seed, losses in seeds.items() if losses.keys() == rates}
    mean = {rate: statistics.fmean(each.losses[rate] for each in whole.values()) for rate in rates}
    return RateSweep(shape={"d_model": d_model, "layers": layers}, mup=mup, seeds=whole, mean=LossesByRate(mean))


def base_of(found: Sequence[RateSweep]) -> RateSweep | None:
    """Return the base's sweep; None: there is none, or it has no finite loss."""
    return next((each for each in found if each.mup is None and math.isfinite(each.mean.loss)), None)


def along(found: Sequence[RateSweep], axis: str, *, mup: bool) -> list[RateSweep]:
    """Return the sweeps of the base and of the shapes that differ from it on one axis, in their order there."""
    other = AXES[axis]
    of_axis = (each for each in found if each.mup in (None, mup) and each.shape[other] == BASE[other])
    return sorted(of_axis, key=lambda each: each.shape[axis])


PARAMETRIZATIONS = {True: "muP", False: "standard", None: "base"}
NAMES = {"d_model": "width", "layers": "depth"}


def tables(rows: Sequence[Row]) -> list[Table]:
    """Return the tables of drift and regret by width and by depth, and of the losses behind them."""
    found, steps = sweeps(rows), max((row["steps"] for row in rows), default=0)
    base = base_of(found)
    made = [compared(found, base, axis, steps) for axis in AXES] if base else []
    return [*made, losses(found)] if found else []


def compared(found: Sequence[RateSweep], base: RateSweep, axis: str, steps: int) -> Table:
    """Return the table of both parametrizations along one axis."""
    ways = [{each.shape[axis]: each for each in along(found, axis, mup=mup)} for mup in (True, False)]
    sizes = sorted({size for way in ways for size in way})
    cells = [[str(size), *(cell for way in ways for cell in figures(way.get(size), base))] for size in sizes]
    named = (f"{PARAMETRIZATIONS[mup]}: best rate" for mup in (True, False))
    columns = axis, *(each for name in named for each in (name, "loss", "drift", "regret"))
    title = f"One learning rate for all: {NAMES[axis]}"
    return Table(title=title, columns=columns, rows=cells, note=note(found, base, axis, steps))


def figures(of: RateSweep | None, base: RateSweep) -> list[str]:
    """Return the cells of a shape: its best rate and the loss there, how far the rate moved, and what the base's own
    costs here."""
    if of is None:
        return [EMPTY_CELL] * 4
    best = of.mean.best
    if math.isinf(of.mean.loss):
        return [EMPTY_CELL, "diverged", EMPTY_CELL, EMPTY_CELL]
    if len(of.mean.losses) == 1:  # the best may lie on either side
        return [f"{2**best:.2e}", f"{of.mean.loss:.4f}", EMPTY_CELL, EMPTY_CELL]
    regret = of.regret(base)
    lost = EMPTY_CELL if regret is None else "diverged" if math.isinf(regret[0]) else signed(regret, "{:.3f}")
    if regret is not None and math.isfinite(regret[0]) and not of.mean.is_bracketed:
        lost = f">= {lost}"
    moved = beyond(of) + signed(of.drift(base), "{:+.2f}")
    return [f"{2**best:.2e}", f"{of.mean.loss:.4f}", moved, lost]


def beyond(of: RateSweep) -> str:
    """Return the sign before a drift: where the best rate is the first or last that was tried, the true one lies
    beyond."""
    if of.mean.is_bracketed:
        return ""
    return "> " if of.mean.best == max(of.mean.losses) else "< "


def note(found: Sequence[RateSweep], base: RateSweep, axis: str, steps: int) -> str:
    """Return the note on what a table is of."""
    other, seeds = AXES[axis], sorted({len(each.seeds) for each in found})
    several = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"{seeds[0]}"
    open_end = "" if base.mean.is_bracketed else " The base's own best is the last one tried: no more."
    return (
        f"{other} {BASE[other]}, {steps:,} steps, rates an octave apart, "
        f"{several} seed{'s' * (several != '1')}; drift: octaves from the best rate of {axis} {BASE[axis]}; "
        "regret: nats that this rate loses against the best one tried; where that is the last one tried, bounds: the "
        "best lies beyond. standard: the standard parametrization, one rate for all tensors, and no branch or logit is "
        "scaled. No report did this." + open_end
    )


def losses(found: Sequence[RateSweep]) -> Table:
    """Return the table of the mean validation loss of each shape at each rate."""
    rates = sorted({rate for each in found for rate in each.mean.losses})
    cells = [[name(each), *(loss(each, rate) for rate in rates)] for each in found]
    columns = "shape", *(f"{2**rate:.1e}" for rate in rates)
    return Table(title="Validation loss by base learning rate", columns=columns, rows=cells, note="*: the best")


def name(of: RateSweep) -> str:
    """Return the name of a sweep, such as d64 l4 standard."""
    return f"d{of.shape['d_model']} l{of.shape['layers']} {PARAMETRIZATIONS[of.mup]}"


def loss(of: RateSweep, rate: float) -> str:
    """Return the cell of a shape at a rate; EMPTY_CELL: it was not trained with that rate."""
    found = of.mean.losses.get(rate)
    if found is None:
        return EMPTY_CELL
    mark = "*" if rate == of.mean.best else ""
    return f"{found:.3f}{mark}" if math.isfinite(found) else "diverged"


SIZES = {"d_model": (32, 64, 256, 512), "layers": (2, 8, 16)}
"""Widths and depths beside the base's."""
STEPS, LEAST_STEPS = 1000, 20
LARGEST_SCALE = 0.05
"""Least --scale at which the widest and the deepest shapes are trained too."""
AROUND = 3
"""Octaves that are tried below and above the range from the recipe's rate to where the best is expected."""
MIDDLE = 1
"""Octaves around the recipe's rate that the base is trained with before anything else."""
DIGITS = 3
"""Significant digits of a rate."""
RECIPE = {"optimizer": "adamw"}


def points(devices: Devices, settings: ExperimentSettings) -> list[Point]:
    """Return a point for each shape and rate: first the base's middle three rates, as all else is compared with these;
    at equal cost the rates nearest to where the best is expected come first, so that a small cap leaves out the
    outermost."""
    steps = max(LEAST_STEPS, round(settings.scale * STEPS))
    held = {"dropout": 0.0, "precision": "bf16" if "bf16" in devices.precisions else "fp32"}
    held |= {name: settings.fix[name] for name in held if name in settings.fix}
    recipe: dict[str, Any] = {**settings.set}
    rate = Config(**recipe, family=settings.family).learning_rate
    asked = list[tuple[tuple[bool, int], dict[str, Any]]]()
    for shape in shapes(settings):
        low, high = sorted((0, expected(shape)))
        for octaves in range(low - AROUND, high + AROUND + 1):
            own = float(f"{rate * 2**octaves:.{DIGITS}g}")
            beyond = max(low - octaves, octaves - high)
            turn = shape != BASE or beyond > MIDDLE, beyond
            asked.append((turn, {**shape, **held, "learning_rate": own}))
    in_order = [(config, steps) for _, config in sorted(asked, key=itemgetter(0))]
    return training_points(devices, settings, in_order, first=1 + 2 * MIDDLE)


def shapes(settings: ExperimentSettings) -> Iterator[dict[str, Any]]:
    """Yield the base, which is the same with muP and without, and names neither; then the shapes that
    differ from it on one axis, with muP and without."""
    yield dict(BASE)
    most = None if settings.scale >= LARGEST_SCALE else -1
    for axis, sizes in SIZES.items():
        for size in sizes[:most]:
            for mup in (True, False):
                yield BASE | {axis: size, "scaling_rules": mup}


def expected(shape: Mapping[str, Any]) -> int:
    """Return the octaves from the recipe's rate to a shape's expected best: without muP one down for each
    doubling."""
    doublings = sum(math.log2(shape[axis] / BASE[axis]) for axis in BASE)
    return 0 if shape.get("scaling_rules", True) else -round(doublings)


TRANSFER = Experiment(
    name="transfer", about="learning rate x width and x depth, with muP and without: drift and regret",
    points=points, tables=tables, diverging=True, recipe=RECIPE, sets=tuple(SIZES),
)  # fmt: skip
