"""One training from its first step to its last, alone or of several ranks, what it came to, and what it will take on
paper: the row of the experiments that compare such.
"""

import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from model.config import Config, Data, model_config
from model.cost.estimates import flops_per_token, parameters
from model.cost.peak_flops import peak_on
from model.data.dataset import SMALL_VOCABULARY, PairData
from model.data.tokenizer import Tokenizer
from model.families import FAMILIES
from model.nn.gpt import GPTConfig
from model.nn.translator import TranslatorConfig
from model.training import checkpoint as checkpoints
from model.training.ddp import as_first, mean_over_ranks, ranks
from model.training.evaluation import CHUNK, evaluate, score, translated_of
from model.training.learner import Learner
from model.training.memory import prepare_process
from model.training.time_budget import Segment
from model.training.train import train
from tune.backend.worker_group import Place, Said
from tune.devices import Devices
from tune.experiments.base import Row
from tune.experiments.counters import step_bytes
from tune.reports import Report

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
"""Target tokens, the same ones for all, of the training and of the validation split."""
SENTENCES = 64
"""Of the validation split, the same ones for all, translated for BLEU."""
AFTER_SHARE = 0.1
"""Of the seconds, kept for what follows the training."""
CURVE_POINTS = 200
LAST_SHARE = 0.1
"""Of the steps, over which the loss while training is the mean."""
WARM_UP_SHARE = 0.1
"""Of the steps, at most, in which the learning rate rises: a short training has a shorter rise than the recipe's."""


def train_whole(
    place: Place, name: str, *, steps: int, device: torch.device | None = None, threads: int = 1
) -> Iterator[Said]:
    """Train `steps` steps with decay, from the newest checkpoint where there is one, and say the row.

    name: of its folder in the trial's. What the seconds did not suffice for is skipped, and goes on when asked again.
    memory_bytes is of tensors, process_bytes of what the process took more, which is less where it had worked before.
    """
    began, folder, where = time.monotonic(), place.folder / name, device or place.device
    config = replace(place.config, warm_up_steps=min(place.config.warm_up_steps, max(1, round(WARM_UP_SHARE * steps))))
    prepare_process(threads)
    peak, memory = peak_on(threads, config.precision, where), step_bytes(config, place.data, where)
    yield Said(what="start")
    segment = Segment(
        device_seconds=(1 - AFTER_SHARE) * place.left(), steps=steps, final=True, whole=False, peak_flops=peak
    )
    curve: list[Report] = []
    for report in train(
        config, place.data, segment, folder=folder, checkpoint=checkpoints.latest(folder),
        evaluation_tokens=EVALUATION_TOKENS, device=where, threads=threads,
    ):  # fmt: skip
        if report.valid or report.ended or report.steps * CURVE_POINTS >= len(curve) * steps:
            curve.append(report)
        yield Said(what=max(report.seconds, key=report.seconds.__getitem__))
    if report.ended == "final":
        row = learned(config, place.data, report, where) | costs(config, place.data, report, peak, where)
        row |= {"curve": [point(each) for each in curve], "loss_while_training": lately(curve)}
        row |= {"threads": threads, "kind": where.type, "device_seconds": time.monotonic() - began}
        row |= {"memory_bytes": memory, "process_bytes": report.memory_bytes}
    else:
        row = {"skipped": why_not(report, steps)}
    if report.ended != "lease":
        shutil.rmtree(folder, ignore_errors=True)
    yield Said(what="evaluation", row=row)


def why_not(report: Report, steps: int) -> str:
    """The reason for a training that did not come to its end."""
    if report.ended == "diverged":
        return f"diverged after {report.steps} steps"
    return f"{report.steps} of {steps} steps in the seconds that there were: go on with --resume"


def learned(config: Config, data: Data, last: Report, device: torch.device) -> Row:
    """How good the model is, its training and validation loss without dropout, on fixed samples of both splits."""
    tokenizer = Tokenizer.from_json(data.tokenizer)
    assert last.checkpoint and last.valid, "a training that came to its end has both"
    model = checkpoints.trained_model(config, Path(last.checkpoint), tokenizer, device)
    row: Row = {}
    if isinstance(data, PairData):
        chunks = translated_of(model, tokenizer, data, data.valid, SENTENCES)
        found = score([pair for chunk in chunks for pair in chunk])
        row = {"bleu": found.bleu, "chrf": found.chrf, "sentences": found.sentences}
    trained_on = evaluate(model, config, data, "train", tokens=EVALUATION_TOKENS, device=device)
    assert trained_on is not None, "nothing refuses it"
    return row | {
        "train_loss": trained_on.loss, "valid_loss": last.valid.loss, "accuracy": last.valid.accuracy,
        "perplexity": last.valid.perplexity, "bits_per_character": last.valid.bits_per_character,
        "nats_per_word": last.valid.nats_per_word,
    }  # fmt: skip


def costs(config: Config, data: Data, last: Report, peak: float, device: torch.device) -> Row:
    """What it took. mfu: the share of the device's peak (cost/peak_flops.py); stored_bytes: of the weights' file."""
    assert last.checkpoint, "a training that came to its end has one"
    family, rate = FAMILIES[config.family], last.tokens / last.training_seconds
    return {
        "parameters": last.parameters, "steps": last.steps, "tokens": last.tokens,
        "epochs": last.tokens / data.training_tokens, "training_seconds": last.training_seconds,
        "step_seconds": last.step_seconds, "tokens_per_second": rate, "micro_batches": last.micro_batches,
        "peak_flops": peak, "mfu": rate * family.flops_per_token(config, data) / peak,
        "paper_bytes": family.memory_estimate(config, data, micro_batches=last.micro_batches, device=device),
        "stored_bytes": (Path(last.checkpoint) / checkpoints.WEIGHTS).stat().st_size,
    }  # fmt: skip


def point(report: Report) -> list[Any]:
    """Of a curve: steps, tokens, training seconds, loss while training, validation loss where it was measured."""
    valid = None if report.valid is None else report.valid.loss
    return [report.steps, report.tokens, report.training_seconds, report.train_loss, valid]


def lately(curve: list[Report]) -> float:
    """The mean loss of the last steps, with dropout, as a loop prints it."""
    first = (1 - LAST_SHARE) * curve[-1].steps
    return statistics.fmean(each.train_loss for each in curve if each.steps >= first and each.train_loss is not None)


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
EVALUATIONS, CHECKPOINTS, WORDS = 4, 3, 48
"""Of a training: how many there are, and the tokens of a translation, each a forward pass."""
PROBES = 4
"""Steps that it takes to know its memory."""
CHECKPOINT_BYTES, DISK_BYTES = 12, 1e8
"""Of a parameter, and a second."""

TIMES, LATE_SECONDS = 2.0, 30.0
"""Of what a training is expected to take: on a busy machine it takes more, a short one above all."""


def at_most(seconds: float) -> float:
    """The seconds that a training may take, where the cap has them, of those that are expected."""
    return TIMES * seconds + LATE_SECONDS


@dataclass(frozen=True)
class Prices:
    """Of trainings on one of these devices; one process drives it, with one thread on a CPU."""

    devices: Devices

    def whole(self, config: Config, steps: int) -> float:
        """Expected device-seconds of a training with all that train_whole() does beside it."""
        rest = EVALUATIONS * EVALUATION_TOKENS / config.batch_tokens * FORWARD * self.step(config)
        rest += CHECKPOINTS * CHECKPOINT_BYTES * parameters(_model(config)) / DISK_BYTES
        if config.family == "translation":
            rest += FORWARD * SENTENCES / CHUNK * WORDS * self._overhead(config)
        return (PROBES + steps) * self.step(config) + rest

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


@cache
def peak(precision: str, kind: str) -> float:
    """FLOP/s of one process: a price is asked for again and again, and measuring takes time."""
    return peak_on(1, precision, kind)


def _model(config: Config) -> GPTConfig | TranslatorConfig:
    vocabulary = SMALL_VOCABULARY if config.family == "translation" else CHARACTERS
    return model_config(config, vocabulary=vocabulary, pad=0)
