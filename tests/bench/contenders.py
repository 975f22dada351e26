"""What is timed: each contender, by name, as a function that does one training step and gives its target tokens."""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch

from model.config import Config
from model.data.corpus import load_pairs, load_text
from model.data.dataset import PairData, TextData, prepare_pairs, prepare_text
from model.nn.precision import PRECISIONS, native
from model.training.cohort import Cohort
from model.training.learner import Learner
from tests.bench import peers

PAIRS, TEXT = "tatoeba/spa.txt", "shakespeare/input.txt"
SMALL = {"d_model": 128, "heads": 4, "layers": 4, "context": 64}
LARGE = {"d_model": 384, "heads": 6, "layers": 6, "context": 256}
ROWS = {64: 12, 256: 16}
"""Windows a batch by context: nanoGPT's CPU configuration, and as many as a CPU can bear of its GPU one's 64."""
TRANSLATOR = {"d_model": 128, "heads": 4, "layers": 2}


@cache
def text(data: Path) -> TextData:
    """Tiny shakespeare."""
    return prepare_text(load_text(data / TEXT))


@cache
def pairs(data: Path) -> PairData:
    """Tatoeba."""
    return prepare_pairs(load_pairs(data / PAIRS))


def best_precision() -> str:
    """The fastest that this processor computes in, and that loses no quality (`--only loss`)."""
    return "bf16" if "bf16" in native("cpu") else "fp32"


def runs_here(name: str) -> bool:
    """Whether this processor computes natively in the precision that a contender names, if it names one."""
    return not set(name.split()) & (set(PRECISIONS) - set(native("cpu")))


def gpt_config(architecture: str, precision: str, shape: dict[str, int]) -> Config:
    """Our model of a shape, without dropout, with the batch and the optimizer that it is timed against."""
    return Config(
        family="nanogpt", architecture=architecture, precision=precision, dropout=0.0, optimizer="adamw",
        batch_tokens=ROWS[shape["context"]] * shape["context"], **shape,
    )  # fmt: skip


def _upstream(data: Path, shape: dict[str, int]) -> Callable[[], int]:
    config, folder = gpt_config("nanogpt", "fp32", shape), tempfile.TemporaryDirectory()
    training = peers.plain_gpt(config, text(data), Path(folder.name))

    def once(kept: tempfile.TemporaryDirectory = folder) -> int:
        training.step(1e-3)
        return config.batch_tokens

    return once


def _ours(config: Config, prepared: TextData | PairData, *, compiled: bool) -> Callable[[], int]:
    learner = Learner(config, prepared, torch.device("cpu"))
    if compiled:
        learner.compile()
    return lambda: learner.step(1.0).tokens


def _together(members: int, d_model: int, prepared: TextData) -> Callable[[], int]:
    cohort, config = Cohort(), gpt_config("modern", best_precision(), SMALL | {"d_model": d_model})
    for place in range(members):
        changes = {"dropout": (1 + place % 3) / 10, "optimizer": "muon", "seed": place}
        cohort.join(Learner(replace(config, **changes), prepared, torch.device("cpu")))
    if members == 1:
        alone = cohort.leave(0)
        return lambda: alone.step(1.0).tokens
    return lambda: sum(step.tokens for step in cohort.step([1.0] * members))


def make(name: str, data: Path) -> Callable[[], int]:
    """The contender of a name, such as `upstream small`, `nanogpt bf16 compiled large`, `translation bf16`, or
    `together 8 d64`: so many trials of a shape, siblings in dropout."""
    words = name.split()
    if words[0] == "together":
        return _together(int(words[1]), int(words[2].removeprefix("d")), text(data))
    shape = LARGE if "large" in words else SMALL
    if words[0] == "upstream":
        return _upstream(data, shape)
    if words[0] == "nn.Transformer":
        prepared = pairs(data)
        translator = peers.plain_translator(
            prepared.train, vocabulary=prepared.vocabulary, pad=prepared.pad, **TRANSLATOR
        )
        return lambda: translator[1](1e-3)[1]
    if words[0] == "translation":
        config = Config(family="translation", precision=words[1], optimizer="adamw", **TRANSLATOR)
        return _ours(config, pairs(data), compiled="compiled" in words)
    return _ours(gpt_config(words[0], words[1], shape), text(data), compiled="compiled" in words)
