"""Does one learning rate serve all shapes? Losses over rates by width and depth, with the scaling rules and without."""

from typing import Any

from model.config import Config, model_config
from model.estimates import flops_per_token
from model.experiments.short_life import EVALUATION_TOKENS
from model.kept_peaks import cpu_name, kept
from model.prepared import SMALL_VOCABULARY
from tune.devices import Devices
from tune.experiments.experiment import Experiment, Point, Row
from tune.experiments.settings import ExperimentSettings
from tune.experiments.transfer.rows import Descent
from tune.experiments.transfer.tables import tables
from tune.experiments.transfer.work import BASE, core_rates, work

SIZES = {"d_model": (32, 64, 256, 512), "layers": (2, 8, 16)}
"""Beside the base's."""
STEPS, LEAST_STEPS = 1000, 20
FINE_SCALE = 0.1
"""From this share of the training on rates are half an octave apart, else a whole one."""
LARGEST_SCALE = 0.05
"""From this share on the widest and the deepest shapes are there too."""
BEYOND_CORE = 2
"""Rates that a shape is expected to need beyond those that all have in common."""
FIRST_FLOPS = {"cpu": 1.5e11, "cuda": 1e13}
"""A second, where no peak is known: guesses on the slow side, as the shares and the seconds below are."""
PEAK_SHARE = 0.3
LAYER_SECONDS = {"cpu": 5e-3, "cuda": 1.5e-3}
"""Of a step, for each layer, whatever its width."""
LIFE_SECONDS = 0.1
"""Until a model is there."""


def points(devices: Devices, settings: ExperimentSettings) -> list[Point]:
    """The base first, which is the same with the rules and without; then shape by shape, the cheapest first."""
    found = [point(devices, settings, shape, ruled=ruled) for shape in shapes(settings) for ruled in (True, False)]
    return [point(devices, settings, BASE, ruled=True), *sorted(found, key=lambda each: each.seconds)]


def shapes(settings: ExperimentSettings) -> list[dict[str, int]]:
    """Those beside the base, which differ from it on one axis."""
    most = None if settings.scale >= LARGEST_SCALE else -1
    return [BASE | {axis: size} for axis, sizes in SIZES.items() for size in sizes[:most]]


def point(devices: Devices, settings: ExperimentSettings, shape: dict[str, int], *, ruled: bool) -> Point:
    """The lives of one shape."""
    octaves = 0.5 if settings.scale >= FINE_SCALE else 1.0
    steps = max(LEAST_STEPS, round(settings.scale * STEPS))
    config: dict[str, Any] = {**shape, "scaling_rules": ruled, "dropout": 0.0}
    config |= {"precision": "bf16" if "bf16" in devices.precisions else "fp32"} | dict(settings.fix)
    seconds = settings.seeds * life_seconds(devices, Config(family=settings.family, **config), steps)
    rates = len(core_rates(octaves))
    return Point(
        devices=1, asked={"steps": steps, "octaves": octaves, "seeds": settings.seeds}, config=config,
        seconds=(rates + BEYOND_CORE) * seconds, least=rates * seconds,
    )  # fmt: skip


def life_seconds(devices: Devices, config: Config, steps: int) -> float:
    """What a life takes by its FLOPs on paper and the machine's peak, where that is known."""
    made = model_config(config, vocabulary=SMALL_VOCABULARY if config.family == "translation" else 128, pad=0)
    flops = flops_per_token(made, target=config.context, source=config.context)
    peaks = kept(devices.model if devices.kind == "cuda" else cpu_name())
    peak = peaks.flops_per_second.get(config.precision, {}).get(1) if peaks else None
    rate = PEAK_SHARE * peak if peak else FIRST_FLOPS[devices.kind]
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
    points=points, work=work, line=line, tables=tables, sets=tuple(SIZES),
)  # fmt: skip
