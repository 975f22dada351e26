"""One training from its first step to its last, and what it came to: the row of the experiments that compare such."""

import shutil
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from model import checkpoint as checkpoints
from model.bleu import score, translated_of
from model.config import Config, Data
from model.evaluation import evaluate
from model.experiments.step_memory import step_bytes
from model.families import FAMILIES
from model.peak import known_peak
from model.prepared import PairData
from model.process import prepare_process
from model.stretch import Progress, Stretch
from model.tokenizer import Tokenizer
from model.training import train
from tune.distributed import Place, Said
from tune.experiments.experiment import Row

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
    peak, memory = known_peak(config.precision, where, threads), step_bytes(config, place.data, where)
    yield Said(what="start")
    stretch = Stretch(
        device_seconds=(1 - AFTER_SHARE) * place.left(), steps=steps, final=True, whole=False, peak_flops=peak
    )
    curve: list[Progress] = []
    for progress in train(
        config, place.data, stretch, folder=folder, checkpoint=checkpoints.latest(folder),
        evaluation_tokens=EVALUATION_TOKENS, device=where, threads=threads,
    ):  # fmt: skip
        if progress.valid or progress.ended or progress.steps * CURVE_POINTS >= len(curve) * steps:
            curve.append(progress)
        yield Said(what=max(progress.seconds, key=progress.seconds.__getitem__))
    if progress.ended == "final":
        row = learned(config, place.data, progress, where) | costs(config, place.data, progress, peak, where)
        row |= {"curve": [point(each) for each in curve], "loss_while_training": lately(curve)}
        row |= {"threads": threads, "kind": where.type, "device_seconds": time.monotonic() - began}
        row |= {"memory_bytes": memory, "process_bytes": progress.memory_bytes}
    else:
        row = {"skipped": why_not(progress, steps)}
    if progress.ended != "lease":
        shutil.rmtree(folder, ignore_errors=True)
    yield Said(what="evaluation", row=row)


def why_not(progress: Progress, steps: int) -> str:
    """The reason for a training that did not come to its end."""
    if progress.ended == "diverged":
        return f"diverged after {progress.steps} steps"
    return f"{progress.steps} of {steps} steps in the seconds that there were: go on with --resume"


def learned(config: Config, data: Data, last: Progress, device: torch.device) -> Row:
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


def costs(config: Config, data: Data, last: Progress, peak: float, device: torch.device) -> Row:
    """What it took. mfu: the share of the device's peak (model/peak.py); stored_bytes: of the weights' file."""
    assert last.checkpoint, "a training that came to its end has one"
    family, rate = FAMILIES[config.family], last.tokens / last.training_seconds
    return {
        "parameters": last.parameters, "steps": last.steps, "tokens": last.tokens,
        "epochs": last.tokens / data.training_tokens, "training_seconds": last.training_seconds,
        "step_seconds": last.step_seconds, "tokens_per_second": rate, "micro_batches": last.micro_batches,
        "peak_flops": peak, "mfu": rate * family.flops_per_token(config, data) / peak,
        "paper_bytes": family.footprint(config, data, micro_batches=last.micro_batches, device=device),
        "stored_bytes": (Path(last.checkpoint) / checkpoints.WEIGHTS).stat().st_size,
    }  # fmt: skip


def point(progress: Progress) -> list[Any]:
    """Of a curve: steps, tokens, training seconds, loss while training, validation loss where it was measured."""
    valid = None if progress.valid is None else progress.valid.loss
    return [progress.steps, progress.tokens, progress.training_seconds, progress.train_loss, valid]


def lately(curve: list[Progress]) -> float:
    """The mean loss of the last steps, with dropout, as a loop prints it."""
    first = (1 - LAST_SHARE) * curve[-1].steps
    return statistics.fmean(each.train_loss for each in curve if each.steps >= first)
