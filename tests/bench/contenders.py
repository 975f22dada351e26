"""What is timed: each contender, by name, as a function that does one training step and gives its target tokens;
and how people train these models today, the loops that ours are measured against.

# Shapes: B batch, T target length, S source length, D d_model, H heads, K head width, V vocabulary.
"""

import math
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model.config import Config
from model.data.corpus import load_pairs, load_text
from model.data.dataset import PairData, PairSplit, Sentences, TextData, prepare_pairs, prepare_text
from model.nn.precision import PRECISIONS, native_precisions
from model.training.cohort import Cohort
from model.training.learner import Learner
from tune.experiments.stages import UpstreamTraining

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


def cpu_seconds() -> float:
    """A clock: CPU seconds of this process, and of its processes that ended, such as each g++ of torch.compile."""
    ended = os.times()
    return time.process_time() + ended.children_user + ended.children_system


def best_precision() -> str:
    """The fastest that this processor computes in, and that loses no quality (`--only loss`)."""
    return "bf16" if "bf16" in native_precisions("cpu") else "fp32"


def runs_here(name: str) -> bool:
    """Whether this processor computes natively in the precision that a contender names, if it names one."""
    return not set(name.split()) & (set(PRECISIONS) - set(native_precisions("cpu")))


def gpt_config(architecture: str, precision: str, shape: dict[str, int]) -> Config:
    """Our model of a shape, without dropout, with the batch and the optimizer that it is timed against."""
    return Config(
        family="nanogpt", architecture=architecture, precision=precision, dropout=0.0, optimizer="adamw",
        batch_tokens=ROWS[shape["context"]] * shape["context"], **shape,
    )  # fmt: skip


def _upstream(data: Path, shape: dict[str, int]) -> Callable[[], int]:
    config, folder = gpt_config("nanogpt", "fp32", shape), tempfile.TemporaryDirectory()
    training = plain_gpt(config, text(data), Path(folder.name))

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
        changes = {"dropout": (1 + place % 3) / 10, "dropout_after": 0.0, "optimizer": "muon", "seed": place}
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
        translator = plain_translator(prepared.train, vocabulary=prepared.vocabulary, pad=prepared.pad, **TRANSLATOR)
        return lambda: translator[1](1e-3)[1]
    if words[0] == "translation":
        config = Config(family="translation", precision=words[1], optimizer="adamw", dropout_after=0.0, **TRANSLATOR)
        return _ours(config, pairs(data), compiled="compiled" in words)
    return _ours(gpt_config(words[0], words[1], shape), text(data), compiled="compiled" in words)


PAIRS_A_BATCH = 64
Step = Callable[[float], tuple[float, int]]
"""A training step at a learning rate: its loss in nats a token, target tokens without padding."""


class PlainBlock(nn.Module):
    """GPT-2's block of torch's own parts."""

    def __init__(self, d_model: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(d_model, bias=False) for _ in range(2))
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)
        self.up, self.down = nn.Linear(d_model, 4 * d_model, bias=False), nn.Linear(4 * d_model, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, T, D) -> (B, T, D)"""
        qkv = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1))  # (B, T, 3, H, K)
        q, k, v = qkv.transpose(1, 3).unbind(2)  # (B, H, T, K)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class PlainGPT(nn.Module):
    """GPT-2 as nanoGPT trains it on a CPU: learned positions, tied read-out, no dropout, no bias."""

    def __init__(self, vocabulary: int, context: int, d_model: int, heads: int, layers: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, d_model), nn.Embedding(context, d_model)
        self.blocks = nn.ModuleList(PlainBlock(d_model, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(d_model, bias=False)
        self.head = nn.Linear(d_model, vocabulary, bias=False)
        self.tokens.weight = self.head.weight
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                residual = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * layers) if residual else 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens (B, T) -> logits (B, T, V)"""
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def plain_gpt(config: Config, data: TextData, folder: Path) -> UpstreamTraining:
    """A model of a config's shape in nanoGPT's way to train it, on a CPU."""
    torch.manual_seed(0)
    model = PlainGPT(data.vocabulary, config.context, config.d_model, config.heads, config.layers)
    return UpstreamTraining(model, config, data, torch.device("cpu"), folder)


class PlainTranslator(nn.Module):
    """torch.nn.Transformer between embeddings and a read-out, with sinusoidal positions."""

    def __init__(self, vocabulary: int, pad: int, d_model: int, heads: int, layers: int) -> None:
        super().__init__()
        self.pad, self.d_model = pad, d_model
        self.source, self.target = nn.Embedding(vocabulary, d_model), nn.Embedding(vocabulary, d_model)
        self.body = nn.Transformer(d_model, heads, layers, layers, 4 * d_model, dropout=0.1, batch_first=True)
        self.head = nn.Linear(d_model, vocabulary)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """source (B, S), target (B, T) -> logits (B, T, V)"""
        length = target.shape[1]
        hidden = self.body(
            self._placed(self.source(source)), self._placed(self.target(target)),
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(length), tgt_is_causal=True,
            src_key_padding_mask=source == self.pad, memory_key_padding_mask=source == self.pad,
        )  # fmt: skip
        return self.head(hidden)

    def _placed(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1])[:, None]
        waves = torch.exp(torch.arange(0, self.d_model, 2) * (-math.log(10_000) / self.d_model))
        angles = places * waves  # (T, D / 2)
        return x * math.sqrt(self.d_model) + torch.stack([angles.sin(), angles.cos()], -1).flatten(-2)


def plain_translator(
    split: PairSplit, *, vocabulary: int, pad: int, d_model: int, heads: int, layers: int
) -> tuple[PlainTranslator, Step]:
    """A model and the common way to train it: 64 pairs as they come, padded to the longest, fp32, Adam."""
    torch.manual_seed(0)
    model = PlainTranslator(vocabulary, pad, d_model, heads, layers)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.98), eps=1e-9)
    draws = np.random.default_rng(0)

    def step(rate: float) -> tuple[float, int]:
        rows = draws.integers(len(split), size=PAIRS_A_BATCH)
        source, target = (padded(side, rows, pad) for side in (split.source, split.target))
        wanted = target[:, 1:]
        loss = F.cross_entropy(
            model(source, target[:, :-1]).flatten(0, 1), wanted.flatten(), ignore_index=pad, label_smoothing=0.1
        )
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item(), int((wanted != pad).sum())

    return model, step


def padded(sentences: Sentences, rows: np.ndarray, pad: int) -> Tensor:
    """The sentences of these rows (B, longest)."""
    spans = [slice(*sentences.offsets[row : row + 2]) for row in rows]
    texts = [torch.from_numpy(sentences.tokens[span].astype(np.int64)) for span in spans]
    return nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=pad)
