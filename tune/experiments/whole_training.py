"""One training of several ranks from its first step to its last; and what a training will take, on paper."""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from model.config import Config, model_config
from model.cost.estimates import flops_per_token
from model.cost.peak_flops import product_flops
from model.data.dataset import SMALL_VOCABULARY
from model.nn.gpt import GPTConfig
from model.nn.precision import on_threads
from model.nn.translator import TranslatorConfig
from model.training import checkpoint as checkpoints
from model.training.ddp import as_first, mean_over_ranks, ranks
from model.training.learner import Learner
from tune.devices import Devices
from tune.search_flags import KINDS

MARGIN = 1.5  # nothing begins unless so many times the longest of its kind is left


@dataclass(frozen=True, kw_only=True)
class Trained:
    """How far the ranks have come, and in which checkpoint that is kept; loss: the mean since the one before."""

    steps: int
    tokens: int
    loss: float
    seconds: float  # of the steps since the one before
    checkpoint: Path


def train_together(
    learner: Learner,
    *,
    steps: int,
    every: int,
    factor: Callable[[int], float],
    folder: Path,
    left: Callable[[], float],
) -> Iterator[Trained]:
    """From the newest checkpoint in `folder`, if there is one, to so many steps of a life, as far as seconds are left.

    every: steps between two checkpoints; factor: the share of the peak rates at a step. All ranks read one folder.
    """
    newest = checkpoints.latest(folder)
    if newest is not None:
        learner.restore(checkpoints.load(newest))
    longest = 0.0
    while learner.steps < steps and as_first(left(), learner.device) >= MARGIN * longest:
        began = time.perf_counter()
        count = min(every, steps - learner.steps)
        losses = [learner.step(factor(learner.steps)).loss for _ in range(count)]
        loss = mean_over_ranks(torch.stack(losses).mean()).item()
        seconds = time.perf_counter() - began
        path = _save(learner, folder)
        longest = max(longest, time.perf_counter() - began)
        yield Trained(steps=learner.steps, tokens=learner.tokens, loss=loss, seconds=seconds, checkpoint=path)


def _save(learner: Learner, folder: Path) -> Path:
    """Written by the first rank; no other goes on before it is there."""
    tensors, state = learner.tensors(), learner.state()
    path = folder / f"step-{learner.steps:06d}"
    if learner.rank == 0:
        checkpoints.save(folder, learner.model, tensors, state)
    if ranks() > 1:
        dist.barrier()
    return path


EVALUATION_TOKENS = 16_384
"""Target tokens, the same ones for all, on which a training is judged."""
ROW, CHARACTERS = 64, 65
"""Tokens of a row of translation, on either side, and the vocabulary of a text: guesses, as none was read yet."""
SHARE = {"cpu": 0.6, "cuda": 0.3}
"""Of the peak that products of matrices reach inside a model."""
OVERHEADS = {
    ("translation", "cpu"): (0.014, 0.009), ("nanogpt", "cpu"): (0.005, 0.002),
    ("translation", "cuda"): (0.005, 0.004), ("nanogpt", "cuda"): (0.004, 0.0015),
}  # fmt: skip
"""Seconds of a step beside its products, once and for each layer: measured on an EPYC; those of a GPU are guesses."""
FORWARD = 1 / 3
"""Of a step."""


@dataclass(frozen=True)
class Prices:
    """Of trainings on one of these devices; one process drives it, with one thread on a CPU."""

    devices: Devices

    def step(self, config: Config) -> float:
        """Expected seconds of an optimizer step, at the speed of eager code."""
        reached = SHARE[self.devices.kind] * peak(config.precision, self.devices.kind)
        return self.flops(config) / reached + self._overhead(config)

    def flops(self, config: Config) -> float:
        """On paper, of a step."""
        length = ROW if config.family == "translation" else config.context
        return config.batch_tokens * flops_per_token(_model(config), target=length, source=ROW)

    def _overhead(self, config: Config) -> float:
        once, layer = OVERHEADS[config.family, self.devices.kind]
        return once + config.layers * layer


_measured: dict[tuple[str, str], tuple[float, float]] = {}
"""FLOP/s of one process, by precision and kind of device: of the best product of matrices, and of the middle one."""


def peak(precision: str, kind: str) -> float:
    """FLOP/s of one process: a price is asked for again and again, and measuring takes time."""
    if (precision, kind) not in _measured:
        with on_threads(1):
            found = product_flops(precision, kind)
        _measured[precision, kind] = max(found), statistics.median(found)
    return _measured[precision, kind][0]


def peak_lines() -> Iterator[str]:
    """What prices go by here, and how that spread; nothing where none was measured."""
    for (precision, kind), (best, middle) in _measured.items():
        spread = f"half of them fell short of it by {1 - middle / best:.0%} or more"
        yield f"prices go by products of {best / 1e9:,.0f} GFLOP/s in {precision} on a {KINDS[kind]}; {spread}"


def _model(config: Config) -> GPTConfig | TranslatorConfig:
    vocabulary = SMALL_VOCABULARY if config.family == "translation" else CHARACTERS
    return model_config(config, vocabulary=vocabulary, pad=0)
