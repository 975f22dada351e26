"""Does one learning rate serve all shapes? Losses over rates by width and depth, with the scaling rules and without."""

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Self

from model.config import Config, model_config
from model.cost.estimates import flops_per_token
from model.data.dataset import SMALL_VOCABULARY
from tune.devices import Devices
from tune.experiments.base import Experiment, ExperimentSettings, Point, Row, Table
from tune.experiments.learning_rates import (
    BASE,
    EVALUATION_TOKENS,
    FARTHEST_OCTAVES,
    MARGIN,
    Valley,
    core_rates,
    next_rate,
    work,
)
from tune.experiments.parallel_timing import Interval, interval
from tune.experiments.tables import NOTHING
from tune.experiments.whole_training import peak

AXES = {"d_model": "layers", "layers": "d_model"}
"""What varies, and what is the base's meanwhile."""


@dataclass(frozen=True, kw_only=True)
class Descent:
    """Rates are steps of so many octaves from the recipe's learning_rate; mean: of the losses of all seeds.

    ruled: with the scaling rules, or one rate for all tensors; at the base it is the same.
    """

    shape: dict[str, int]
    ruled: bool
    octaves: float
    learning_rate: float
    seeds: Sequence[Valley]
    mean: Valley

    @classmethod
    def of(cls, row: Row) -> Self:
        """That of a row."""
        losses = {rate: [math.nan if loss is None else loss for loss in each] for rate, each in row["losses"]}
        return cls(
            shape={name: row["config"][name] for name in AXES}, ruled=row["config"]["scaling_rules"],
            octaves=row["asked"]["octaves"], learning_rate=row["learning_rate"],
            seeds=[Valley({rate: losses[rate][seed] for rate in losses}) for seed in range(row["asked"]["seeds"])],
            mean=Valley({rate: statistics.fmean(each) for rate, each in losses.items()}),
        )  # fmt: skip

    def rate(self, step: float) -> float:
        """The base rate at this step."""
        return float(self.learning_rate * 2 ** (step * self.octaves))

    def drift(self, base: "Descent") -> Interval:
        """Octaves from the base's best rate to this shape's, the median of the seeds."""
        pairs = zip(self.seeds, base.seeds, strict=True)
        return interval(itemgetter("drift"), {"drift": [self.octaves * (x.optimum - y.optimum) for x, y in pairs]})

    def regret(self, base: "Descent") -> Interval | None:
        """Nats that the base's best rate loses against this shape's, the median of the seeds.

        None: this shape was not trained with that rate; infinite: it diverged there.
        """
        at, best = base.mean.best, self.mean.best
        if at not in self.mean.losses:
            return None
        if math.isinf(self.mean.regret(at)):
            return math.inf, math.inf, math.inf
        lost = [each.losses[at] - each.losses[best] for each in self.seeds]
        return interval(itemgetter("lost"), {"lost": lost})


def base_of(rows: Sequence[Row]) -> Descent | None:
    """The base's, where it is there."""
    found = [each for each in map(Descent.of, measured(rows)) if each.shape == BASE]
    return found[0] if found else None


def along(rows: Sequence[Row], axis: str, *, ruled: bool) -> list[Descent]:
    """Of the shapes that differ from the base on one axis, and of the base, in their order there."""
    other = AXES[axis]
    found = [
        each for each in map(Descent.of, measured(rows))
        if each.shape == BASE or (each.ruled == ruled and each.shape[other] == BASE[other])
    ]  # fmt: skip
    return sorted(found, key=lambda each: each.shape[axis])


def measured(rows: Sequence[Row]) -> list[Row]:
    """Those with losses; of a shape that went on beyond its rates the later."""
    return list({json.dumps(row["config"], sort_keys=True): row for row in rows if "losses" in row}.values())


RULES = {True: "rules", False: "standard"}
NAMES = {"d_model": "width", "layers": "depth"}


def tables(rows: Sequence[Row]) -> list[Table]:
    """Drift and regret by width and by depth, and the losses that they are of."""
    made = [compared(rows, axis) for axis in AXES] + [losses(rows)]
    return [table for table in made if table.rows]


def compared(rows: Sequence[Row], axis: str) -> Table:
    """What both parametrizations do along one axis."""
    base = base_of(rows)
    ways = {ruled: {each.shape[axis]: each for each in along(rows, axis, ruled=ruled)} for ruled in RULES}
    sizes = sorted({size for found in ways.values() for size in found})
    found = [[str(size), *(cell for way in ways.values() for cell in figures(way.get(size), base))] for size in sizes]
    columns = axis, *(each for name in RULES.values() for each in (f"{name}: best rate", "loss", "drift", "regret"))
    title = f"One learning rate for all: {NAMES[axis]}"
    return Table(title=title, columns=columns, rows=found if base else [], note=note(rows, axis))


def figures(descent: Descent | None, base: Descent | None) -> list[str]:
    """A shape's best rate and its loss, how far the rate moved, and what the base's own costs here."""
    if descent is None or base is None:
        return [NOTHING] * 4
    best = descent.mean.best
    regret = descent.regret(base)
    lost = NOTHING if regret is None else "diverged" if math.isinf(regret[0]) else signed(regret, "{:.3f}")
    if regret is not None and math.isfinite(regret[0]) and not descent.mean.bracketed:
        lost = f">= {lost}"
    moved = beyond(descent) + signed(descent.drift(base), "{:+.2f}")
    return [f"{descent.rate(best):.2e}", f"{descent.mean.losses[best]:.4f}", moved, lost]


def beyond(descent: Descent) -> str:
    """Where the best rate lies at an end of those that were tried, the true one lies beyond."""
    if descent.mean.bracketed:
        return ""
    return "> " if descent.mean.best + 1 not in descent.mean.losses else "< "


def signed(value: Interval, form: str) -> str:
    """-1.42 (-1.5 to -1.3); one seed has no interval."""
    figure, low, high = (form.format(each) for each in value)
    return figure if low == high else f"{figure} ({low} to {high})"


def note(rows: Sequence[Row], axis: str) -> str:
    """What the table is of."""
    asked = next((row["asked"] for row in measured(rows)), None)
    if asked is None:
        return ""
    other, seeds, base = AXES[axis], asked["seeds"], base_of(rows)
    open_end = "" if base is None or base.mean.bracketed else " The base's own best is the last one tried: no more."
    return (
        f"{other} {BASE[other]}, {asked['steps']:,} steps, rates {asked['octaves']:g} octaves apart, "
        f"{seeds} seed{'s' * (seeds > 1)}; drift: octaves from the best rate of {axis} {BASE[axis]}; regret: nats that "
        "this rate loses against the best one tried; where that is the last one tried, bounds: the best lies beyond. "
        "standard: one rate for all tensors, and no branch or logit is scaled. No report did this." + open_end
    )


def losses(rows: Sequence[Row]) -> Table:
    """Mean validation loss of each shape at each rate."""
    base = base_of(rows)
    descents = ([base] if base else []) + [
        each for axis in AXES for ruled in RULES for each in along(rows, axis, ruled=ruled) if each.shape != BASE
    ]
    steps = sorted({step for each in descents for step in each.mean.losses})
    cells = [[name(each), *(loss(each, step) for step in steps)] for each in descents]
    columns = "shape", *(f"{descents[0].rate(step):.1e}" for step in steps)
    return Table(title="Validation loss by base learning rate", columns=columns, rows=cells, note="*: the best")


def name(descent: Descent) -> str:
    """d64 l4 standard"""
    shape = f"d{descent.shape['d_model']} l{descent.shape['layers']}"
    return f"{shape} base" if descent.shape == BASE else f"{shape} {RULES[descent.ruled]}"


def loss(descent: Descent, step: int) -> str:
    """A cell; what was not trained is empty."""
    found = descent.mean.losses.get(step)
    if found is None:
        return NOTHING
    mark = "*" if step == descent.mean.best else ""
    return f"{found:.3f}{mark}" if math.isfinite(found) else "diverged"


SIZES = {"d_model": (32, 64, 256, 512), "layers": (2, 8, 16)}
"""Beside the base's."""
STEPS, LEAST_STEPS = 1000, 20
FINE_SCALE = 0.1
"""From this share of the training on rates are half an octave apart, else a whole one."""
LARGEST_SCALE = 0.05
"""From this share on the widest and the deepest shapes are there too."""
BEYOND_CORE = 2
"""Rates that a shape is expected to need beyond those that all have in common."""
PEAK_SHARE = 0.3
"""A guess on the slow side, as the seconds below are."""
LAYER_SECONDS = {"cpu": 5e-3, "cuda": 1.5e-3}
"""Of a step, for each layer, whatever its width."""
LIFE_SECONDS = 0.1
"""Until a model is there."""


def points(devices: Devices, settings: ExperimentSettings) -> list[Point]:
    """The base first, which is the same with the rules and without; then shape by shape, the cheapest first."""
    found = [point(devices, settings, shape, ruled=ruled) for shape in shapes(settings) for ruled in (True, False)]
    return [point(devices, settings, BASE, ruled=True), *sorted(found, key=lambda each: each.seconds)]


def further(rows: Sequence[Row]) -> list[Point]:
    """The shapes whose best rate is the last one tried on its side, the cheapest first: their rates beyond."""
    found = []
    for row in measured(rows):
        octaves = row["asked"]["octaves"]
        tried = Descent.of(row).mean
        if "rate_seconds" in row and next_rate(tried.losses, (), round(FARTHEST_OCTAVES / octaves)) is not None:
            asked, seconds = {**row["asked"], "beyond": True}, row["rate_seconds"]
            prices = {"seconds": BEYOND_CORE * MARGIN * seconds, "least": MARGIN * seconds}
            found.append(Point(devices=1, asked=asked, config=row["config"], **prices))
    return sorted(found, key=lambda each: each.seconds)


def told(point: Point, rows: Sequence[Row]) -> dict[str, Any]:
    """Of a shape that goes on, the losses that are known."""
    same = [row["losses"] for row in rows if "losses" in row and row["config"] == point.config]
    return {"known": same[-1]} if "beyond" in point.asked else {}


def shapes(settings: ExperimentSettings) -> list[dict[str, int]]:
    """Those beside the base, which differ from it on one axis."""
    most = None if settings.scale >= LARGEST_SCALE else -1
    return [BASE | {axis: size} for axis, sizes in SIZES.items() for size in sizes[:most]]


def point(devices: Devices, settings: ExperimentSettings, shape: dict[str, int], *, ruled: bool) -> Point:
    """The lives of one shape."""
    octaves = 0.5 if settings.scale >= FINE_SCALE else 1.0
    steps = max(LEAST_STEPS, round(settings.scale * STEPS))
    config: dict[str, Any] = {**shape, "scaling_rules": ruled, "optimizer": "adamw", "dropout": 0.0}
    config |= {"precision": "bf16" if "bf16" in devices.precisions else "fp32"} | dict(settings.fix)
    seconds = settings.seeds * life_seconds(devices, Config(family=settings.family, **config), steps)
    rates = len(core_rates(octaves))
    return Point(
        devices=1, asked={"steps": steps, "octaves": octaves, "seeds": settings.seeds}, config=config,
        seconds=(rates + BEYOND_CORE) * seconds, least=rates * seconds,
    )  # fmt: skip


def life_seconds(devices: Devices, config: Config, steps: int) -> float:
    """What a life takes by its FLOPs on paper and the machine's peak."""
    made = model_config(config, vocabulary=SMALL_VOCABULARY if config.family == "translation" else 128, pad=0)
    flops = flops_per_token(made, target=config.context, source=config.context)
    rate = PEAK_SHARE * peak(config.precision, devices.kind)
    tokens = steps * config.batch_tokens + EVALUATION_TOKENS / 3
    return LIFE_SECONDS + steps * config.layers * LAYER_SECONDS[devices.kind] + tokens * flops / rate


def line(row: Row) -> str:
    """What came out, in short."""
    descent = Descent.of(row)
    within = "" if descent.mean.bracketed else ", or beyond"
    return f"best of {len(descent.mean.losses)} rates {descent.rate(descent.mean.best):.1e}{within}, " \
           f"loss {descent.mean.losses[descent.mean.best]:.4f}"  # fmt: skip


TRANSFER = Experiment(
    name="transfer", about="learning rate x width and x depth, with the scaling rules and without: drift and regret",
    points=points, work=work, line=line, tables=tables, told=told, further=further, sets=tuple(SIZES),
)  # fmt: skip
