"""The word-level language model of a published report, an encoder block of torch's own between two large matrices; and
its parameters, FLOPs and memory on paper, by the report's formula too.

It is measured, not searched: see the experiment `estimates`.

# Shapes: B batch, S length, D d_model, H heads, F feed-forward, V vocabulary.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model.cost.estimates import STATE_BYTES, STEP_OVER_FORWARD
from model.nn.precision import prepare


@dataclass(frozen=True, kw_only=True)
class WordConfig:
    """The shape of the model; the defaults are the report's."""

    vocabulary: int = 33_278
    length: int = 35
    d_model: int = 200
    heads: int = 2
    feed_forward: int = 200
    layers: int = 1


class WordModel(nn.Module):
    """Predicts each next word. Post-norm and ReLU (Vaswani et al. 2017), and a norm behind the last block."""

    positions: Tensor
    later: Tensor

    def __init__(self, config: WordConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocabulary, config.d_model)
        last = nn.LayerNorm(config.d_model)
        self.encoder = nn.TransformerEncoder(encoder_block(config), config.layers, last, enable_nested_tensor=False)
        self.head = nn.Linear(config.d_model, config.vocabulary)
        self.scale = math.sqrt(config.d_model)
        self.register_buffer("positions", sinusoids(config.length, config.d_model), persistent=False)
        later = nn.Transformer.generate_square_subsequent_mask(config.length)
        self.register_buffer("later", later, persistent=False)

    def forward(self, words: Tensor) -> Tensor:
        """words (B, S) -> logits (B, S, V)"""
        x = self.embedding(words) * self.scale + self.positions
        logits: Tensor = self.head(self.encoder(x, mask=self.later, is_causal=True))
        return logits


def encoder_block(config: WordConfig) -> nn.TransformerEncoderLayer:
    """Return torch's encoder block, (B, S, D) -> (B, S, D)."""
    return nn.TransformerEncoderLayer(config.d_model, config.heads, config.feed_forward, dropout=0.0, batch_first=True)


def sinusoids(length: int, width: int) -> Tensor:
    """Return sinusoidal positions (S, D), D even: sines and cosines in turn."""
    rates = torch.exp(torch.arange(0, width, 2) * (-math.log(10_000.0) / width))
    angles = torch.outer(torch.arange(length).float(), rates)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


@dataclass(frozen=True, kw_only=True)
class Training:
    """A training step of a model, with an optimizer or without; forward: returns a scalar."""

    model: nn.Module
    forward: Callable[[], Tensor]
    optimizer: torch.optim.Optimizer | None = None

    def __call__(self) -> None:
        self.forward().backward()
        if self.optimizer is not None:
            self.optimizer.step()
        self.model.zero_grad(set_to_none=True)


def block_training(config: WordConfig, batch: int, device: torch.device) -> Training:
    """Return a step of one block on activations that need gradients too, as if there were blocks before it."""
    block = encoder_block(config).to(device)
    shape = batch, config.length, config.d_model
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(device)
    return Training(model=block, forward=lambda: block(x.detach().requires_grad_()).sum())


def model_training(config: WordConfig, batch: int, device: torch.device) -> Training:
    """Return a step of the whole model with AdamW, on random words."""
    model = WordModel(config).to(device)
    shape = batch, config.length + 1
    words = torch.randint(config.vocabulary, shape, generator=torch.Generator().manual_seed(0)).to(device)
    inputs, targets = words[:, :-1], words[:, 1:].flatten()

    def forward() -> Tensor:
        return F.cross_entropy(model(inputs).flatten(0, 1), targets)

    return Training(model=model, forward=forward, optimizer=torch.optim.AdamW(model.parameters(), fused=True))


def profiled_step(batch: int) -> None:
    """Take the steps that run under ncu, of which only the second is profiled."""
    device = torch.device("cuda")
    prepare("fp32", device)
    step = block_training(WordConfig(), batch, device)
    step()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    step()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStop()


BYTES = 4  # all is fp32
REPORTED_PRODUCTS = 7
"""Products of S x D x D multiplications that the report counts for each row of the batch."""


def parts(config: WordConfig) -> dict[str, int]:
    """Return the parameters of each part; matrices but the embedding have a bias, norms a gain and a bias."""
    d, wide = config.d_model, config.feed_forward
    return {
        "embedding": config.vocabulary * d,
        "attention's input projection": config.layers * (3 * d * d + 3 * d),
        "attention's output projection": config.layers * (d * d + d),
        "feed-forward": config.layers * (2 * d * wide + wide + d),
        "norms": (2 * config.layers + 1) * 2 * d,
        "head": config.vocabulary * d + config.vocabulary,
    }


def reported_flops(config: WordConfig, batch: int) -> int:
    """Return the FLOPs of a block, as the report estimates them."""
    return 2 * batch * REPORTED_PRODUCTS * config.length * config.d_model**2


def block_flops(config: WordConfig, batch: int) -> int:
    """Return the FLOPs of the matrix products in a block's forward; heads cancel. Training takes
    `estimates.STEP_OVER_FORWARD` times as many."""
    s, d = config.length, config.d_model
    return batch * (8 * s * d**2 + 4 * s**2 * d + 4 * s * d * config.feed_forward)


def model_flops(config: WordConfig, batch: int) -> int:
    """Return the FLOPs of the matrix products in the whole model's forward."""
    return config.layers * block_flops(config, batch) + 2 * batch * config.length * config.d_model * config.vocabulary


def block_kept_bytes(config: WordConfig, batch: int) -> int:
    """Return the bytes that a block's forward keeps for backward, its input included, with fused attention and no
    dropout.

    Of width D: the input, queries, keys and values, attention's output, and the input and output of each norm, but for
    the last output; the feed-forward's activations once; a number for each head, two for each norm.
    """
    s, d = config.length, config.d_model
    return BYTES * batch * s * (8 * d + config.feed_forward + config.heads + 4)


def model_kept_bytes(config: WordConfig, batch: int) -> int:
    """Return the bytes that the whole model's forward keeps, with the loss, which keeps the logarithm of each logit."""
    s, d = config.length, config.d_model
    return config.layers * block_kept_bytes(config, batch) + BYTES * batch * s * (2 * d + 2 + config.vocabulary)


def step_bytes(config: WordConfig, batch: int) -> int:
    """Return the peak bytes of a step of the whole model with AdamW: at the beginning of backward, with the gradients
    of logits and logarithms, or at its end."""
    weights = sum(parts(config).values())
    gradients = 2 * BYTES * batch * config.length * config.vocabulary
    begin = (STATE_BYTES - BYTES) * weights + model_kept_bytes(config, batch) + gradients
    return max(STATE_BYTES * weights, begin)


def on_paper(what: str, config: WordConfig, batch: int) -> dict[str, int]:
    """Return all figures on paper of a step of the block or the whole model, by their names in rows of `estimates`."""
    block = what == "block"
    forward = (block_flops if block else model_flops)(config, batch)
    kept = (block_kept_bytes if block else model_kept_bytes)(config, batch)
    own = {"reported_flops": reported_flops} if block else {"step_bytes": step_bytes}
    return {
        **{f"paper_{name}": figure(config, batch) for name, figure in own.items()},
        "paper_forward_flops": forward, "paper_step_flops": STEP_OVER_FORWARD * forward, "paper_kept_bytes": kept,
    }  # fmt: skip
