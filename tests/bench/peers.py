"""How people train these models today: the loops that ours are measured against.

# Shapes: B batch, T target length, S source length, D d_model, H heads, K head width, V vocabulary.
"""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model.data.dataset import PairSplit, Sentences

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


def plain_gpt(text: np.ndarray, file: Path, *, rows: int, **shape: int) -> tuple[PlainGPT, Step]:
    """A model and nanoGPT's way to train it: eager, AdamW as it comes, each batch from a memory map opened anew."""
    torch.manual_seed(0)
    text.astype(np.uint16).tofile(file)
    model, context = PlainGPT(**shape), shape["context"]
    decayed = [weight for weight in model.parameters() if weight.dim() >= 2]
    rest = [weight for weight in model.parameters() if weight.dim() < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99))

    def step(rate: float) -> tuple[float, int]:
        data = np.memmap(file, dtype=np.uint16, mode="r")
        starts = torch.randint(len(data) - context, (rows,))
        windows = [torch.from_numpy(data[begin : begin + context + 1].astype(np.int64)) for begin in starts]
        batch = torch.stack(windows)  # (B, T + 1)
        loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        _descend(model, optimizer, loss, rate)
        return loss.item(), rows * context

    return model, step


def upstream_rate(step: int, steps: int) -> float:
    """nanoGPT's cosine for its CPU configuration: peak 1e-3 after 100 steps, 1e-4 at the end."""
    if step < 100:
        return 1e-3 * (step + 1) / 101
    return 1e-4 + 0.5 * (1e-3 - 1e-4) * (1 + math.cos(math.pi * (step - 100) / (steps - 100)))


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
        _descend(model, optimizer, loss, rate)
        return loss.item(), int((wanted != pad).sum())

    return model, step


def padded(sentences: Sentences, rows: np.ndarray, pad: int) -> Tensor:
    """The sentences of these rows (B, longest)."""
    spans = [slice(*sentences.offsets[row : row + 2]) for row in rows]
    texts = [torch.from_numpy(sentences.tokens[span].astype(np.int64)) for span in spans]
    return nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=pad)


def _descend(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Tensor, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
