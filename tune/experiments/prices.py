"""What a training is expected to take, from steps of small models that are measured here before any text is read, and
from FLOPs on paper."""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from model.config import Config, Data, model_config
from model.cost.estimates import flops_per_token
from model.cost.probe import step_seconds
from model.data.dataset import SMALL_VOCABULARY, PairData, PairSplit, Sentences, TextData
from model.data.packing import pack, row_shape
from tune.devices import Devices
from tune.experiments.experiment_settings import ExperimentSettings
from tune.search_flags import KINDS

EVALUATION_TOKENS = 16_384
"""Target tokens on which a training is judged, the same ones for all."""
FORWARD = 1 / 3
"""Share of a step's seconds that its forward takes."""
ROW, CHARACTERS = 64, 65
"""Tokens of a row of translation, on either side, and the vocabulary of a text: guesses, as no text was read yet."""
PROBED = ((32, 2), (32, 6), (256, 2))
"""d_model and layers of the models whose steps are measured: three for three unknowns."""
PROBE_SECONDS = 0.3
"""Seconds of steps of each of these models; two steps at least are taken."""
MADE_UP_TOKENS, MADE_UP_PAIRS, LONGEST = 65_536, 4_096, 24


@dataclass(frozen=True, kw_only=True)
class StepSpeed:
    """Speed of a family's steps with its own batch: seconds beside the matrix products, `once` a step and for each
    `layer`, and FLOP/s of the products. spread: largest interquartile range of a model's step seconds, as a share of
    their median."""

    once: float
    layer: float
    flops: float
    spread: float


_measured: dict[tuple[str, str, str], StepSpeed] = {}
"""What was measured, by family, precision and kind of device: a price is asked for again and again, and measuring takes
time."""


def step_price(config: Config, devices: Devices) -> float:
    """Return the expected seconds of an optimizer step on one of these devices, at the speed of eager code; one process
    drives it, with one thread on a CPU."""
    known = measure_step_speed(config.family, config.precision, devices.kind)
    beside = known.once + config.layers * known.layer
    if devices.kind == "cpu":  # there it is work on each token; on a GPU it is launching kernels
        beside *= config.batch_tokens / Config(family=config.family).batch_tokens
    return step_flops(config) / known.flops + beside


def rank_step_price(
    settings: ExperimentSettings, devices: Devices, count: int, *, rows: int | None = None, tokens: int | None = None
) -> float:
    """Return the expected seconds of a step of the family's recipe on each of so many devices, which share its batch,
    without communication; 0 for a user's own family, of which no price is known.

    rows, tokens: of the batch, on all devices together; None: as many as the recipe has.
    """
    if settings.family not in MADE_UP:
        return 0.0
    given: dict[str, Any] = {**settings.recipe, **settings.set, **settings.fix}
    config = Config(family=settings.family, **given)
    length = ROW if settings.family == "translation" else config.context
    if tokens is None:
        tokens = config.batch_tokens if rows is None else rows * length
    busy = count / devices.cores if devices.kind == "cpu" else 1.0  # several may share a core
    return max(1.0, busy) * step_price(replace(config, batch_tokens=math.ceil(tokens / count)), devices)


def step_flops(config: Config) -> float:
    """Return the FLOPs of a step on paper."""
    translates = config.family == "translation"
    vocabulary, length = (SMALL_VOCABULARY, ROW) if translates else (CHARACTERS, config.context)
    model = model_config(config, vocabulary=vocabulary, pad=0)
    return config.batch_tokens * flops_per_token(model, target=length, source=ROW)


def measure_step_speed(family: str, precision: str, kind: str) -> StepSpeed:
    """Return the speed of steps as measured on a device of this kind."""
    if (family, precision, kind) not in _measured:
        configs = [Config(family=family, d_model=width, layers=depth, precision=precision) for width, depth in PROBED]
        data, device = MADE_UP[family](), torch.device(kind)
        taken = [step_seconds(config, data, device, seconds=PROBE_SECONDS) for config in configs]
        _measured[family, precision, kind] = fit_step_speed(taken, [*map(step_flops, configs)])
    return _measured[family, precision, kind]


def fit_step_speed(taken: Sequence[Sequence[float]], flops: Sequence[float]) -> StepSpeed:
    """Return the speed that follows from the seconds of steps of the models of PROBED, without the first half of each,
    and their FLOPs a step."""
    late = [each[len(each) // 2 :] for each in taken]
    small, deep, wide = map(statistics.median, late)
    (_, few), (_, many), _ = PROBED
    rate = (flops[2] - flops[0]) / max(wide - small, small)
    layer = max(0.0, (deep - small - (flops[1] - flops[0]) / rate) / (many - few))
    once = max(0.0, small - few * layer - flops[0] / rate)
    quarters = [np.quantile(each, (0.25, 0.75)) / statistics.median(each) for each in late]
    return StepSpeed(once=once, layer=layer, flops=rate, spread=max(float(high - low) for low, high in quarters))


def price_lines() -> Iterator[str]:
    """Yield a line on each speed that prices go by here, and its spread; nothing where none was measured."""
    for (family, precision, kind), found in _measured.items():
        beside = f"{1e3 * found.once:.1f} ms and {1e3 * found.layer:.1f} ms a layer beside"
        yield (
            f"costs of {family} in {precision} follow from steps measured on a {KINDS[kind]}: {found.flops / 1e9:,.0f} "
            f"GFLOP/s, {beside}; half of them lay within {found.spread:.0%}"
        )


def made_up_text() -> TextData:
    """Return a text of characters drawn at random."""
    drawn = np.random.default_rng(0).integers(CHARACTERS, size=MADE_UP_TOKENS).astype(np.uint16)
    return TextData(
        name="", sha256="", builtin=True, tokenizer="", vocabulary=CHARACTERS, train=drawn, valid=drawn, test=drawn
    )


def made_up_pairs() -> PairData:
    """Return pairs of sentences of tokens drawn at random, as many on either side."""
    random = np.random.default_rng(0)
    lengths = random.integers(3, LONGEST, size=MADE_UP_PAIRS)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    tokens = random.integers(4, SMALL_VOCABULARY, size=offsets[-1]).astype(np.uint16)
    sentences = Sentences(tokens=tokens, offsets=offsets)
    split = PairSplit(source=sentences, target=sentences, characters=lengths, words=lengths)
    row = row_shape(split.lengths)
    return PairData(
        name="", sha256="", builtin=True, tokenizer="", vocabulary=SMALL_VOCABULARY, pad=0, row=row,
        rows=pack(split.lengths, row), train=split, valid=split, test=split,
    )  # fmt: skip


MADE_UP: dict[str, Callable[[], Data]] = {"nanogpt": made_up_text, "translation": made_up_pairs}
