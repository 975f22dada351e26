"""The blocks of the modern models: `modern` GPT and translator.

Norms have no gains, queries and keys are normalised, the feed-forward has squared ReLU, and the last matrix of each
branch begins at zero.

# Shapes: B batch, T length, S source length, D d_model, H heads, K head width.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from model.nn.attention import Attention, Residual, heads_together, norm, rotary_tables, rotate, squared_relu
from model.nn.decoding import KeyValueCache
from model.nn.mup import attention_scale, hidden_std
from model.nn.precision import Linear

RotaryTables = tuple[Tensor, Tensor]  # cosines and sines (T, K), in the compute dtype


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """The shape of a model, as far as both kinds have it in common."""

    vocabulary: int
    d_model: int
    heads: int
    layers: int
    dropout: float = 0.0
    mup: bool = True


def scaled_rotary_tables(length: int, head_width: int, device: torch.device | None = None) -> RotaryTables:
    """Return the rotary tables times the root of the attention scale: turning queries and keys also scales them."""
    cosines, sines = rotary_tables(length, head_width, device)
    share = attention_scale(head_width) ** 0.5
    return share * cosines, share * sines


def initialize_blocks(blocks: nn.Module) -> None:
    """Initialize matrices by their fan-in, and the last one of each branch with zeros."""
    for name, parameter in blocks.named_parameters():
        if name.endswith("out.weight"):
            nn.init.zeros_(parameter)
        else:
            nn.init.normal_(parameter, std=hidden_std(parameter.shape[1]))


class EarlierTokens(nn.Module):
    """A causal depthwise convolution over embeddings that begins as the identity. It relates a token to the few before
    it ahead of the first attention (So et al. 2021, arXiv:2109.08668, have one in each attention).
    """

    def __init__(self, d_model: int, taps: int) -> None:
        super().__init__()
        self.gains = nn.ParameterList(nn.Parameter(torch.zeros(d_model)) for _ in range(taps))

    def forward(self, x: Tensor) -> Tensor:
        """x (B, T, D) -> (B, T, D), with zeros before the first token"""
        mixed, nothing = x, x.new_zeros(x.shape[0], len(self.gains), x.shape[2])
        for back, each in enumerate(self.gains, 1):
            earlier = torch.cat([nothing[:, :back], x], 1)[:, : x.shape[1]]
            gain = each.to(x.dtype)
            if gain.ndim == 1:
                mixed = torch.addcmul(mixed, earlier, gain)
            else:  # (K, D), in a cohort
                of_each = (len(gain), -1)
                mixed = torch.addcmul(
                    mixed.unflatten(0, of_each), earlier.unflatten(0, of_each), gain[:, None, None]
                ).flatten(0, 1)
        return mixed


class SelfAttention(nn.Module):
    """Self-attention with rotary positions and normalised queries and keys (Henry et al. 2020, arXiv:2010.04245);
    optionally with the keys and values of a `cache`."""

    def __init__(self, d_model: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.qkv = Linear(d_model, 3 * d_model, bias=False)
        self.out = Linear(d_model, d_model, bias=False)
        self.attend = Attention(scale=1, dropout=0)

    def forward(
        self, x: Tensor, bias: Tensor | None, rotary: RotaryTables, cache: KeyValueCache | None = None, layer: int = 0
    ) -> Tensor:
        """x (B, T, D), bias broadcasting to (B, H, T, T), tables (T, K) -> (B, T, D)"""
        qkv = self.qkv(x).unflatten(-1, (3, self.heads, -1))  # (B, T, 3, H, K)
        both, v = qkv.split([2, 1], 2)
        q, k = rotate(norm(both), *rotary).transpose(1, 3).unbind(2)  # (B, H, T, K)
        v = v.squeeze(2).transpose(1, 2)
        if cache is not None:
            k, v = cache.extend(layer, k, v)
        causal = self.causal and bias is not None and bias.ndim == 2 and q.shape[2] == k.shape[2]
        return self.out(heads_together(self.attend(q, k, v, bias, causal=causal)))


class CrossAttention(nn.Module):
    """Attention to the source, whose keys and values are computed for all layers at once."""

    def __init__(self, d_model: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q = Linear(d_model, d_model, bias=False)
        self.out = Linear(d_model, d_model, bias=False)
        self.attend = Attention(scale=attention_scale(d_model // heads), dropout=0)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None) -> Tensor:
        """x (B, T, D), keys, values (B, H, S, K), bias -> (B, T, D)"""
        q = norm(self.q(x).unflatten(-1, (self.heads, -1))).transpose(1, 2)  # (B, H, T, K)
        return self.out(heads_together(self.attend(q, keys, values, bias)))


class FeedForward(nn.Module):
    """Feed-forward of width 4 D with squared ReLU."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.up = Linear(d_model, 4 * d_model, bias=False)
        self.out = Linear(4 * d_model, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, T, D) -> (B, T, D)"""
        return self.out(squared_relu(self.up(x)))


class SelfBlock(nn.Module):
    """Pre-norm block (Xiong et al. 2020, arXiv:2002.04745): self-attention, then the feed-forward.

    `branch` is the factor of each residual branch, by which one learning rate serves all depths.
    """

    def __init__(self, d_model: int, heads: int, *, dropout: float, branch: float, causal: bool) -> None:
        super().__init__()
        self.own = SelfAttention(d_model, heads, causal=causal)
        self.mlp = FeedForward(d_model)
        self.add = Residual(dropout, branch)

    def forward(self, x: Tensor, bias: Tensor | None, rotary: RotaryTables) -> Tensor:
        """x (B, T, D), bias broadcasting to (B, H, T, T), tables (T, K) -> (B, T, D)"""
        x = self.add(x, self.own(norm(x), bias, rotary))
        return self.add(x, self.mlp(norm(x)))


class CrossBlock(nn.Module):
    """Pre-norm block: attention to the target so far, attention to the source, then the feed-forward."""

    def __init__(self, d_model: int, heads: int, *, dropout: float, branch: float) -> None:
        super().__init__()
        self.own = SelfAttention(d_model, heads, causal=True)
        self.source = CrossAttention(d_model, heads)
        self.mlp = FeedForward(d_model)
        self.add = Residual(dropout, branch)

    def forward(
        self,
        x: Tensor,
        own: Tensor | None,
        rotary: RotaryTables,
        source: tuple[Tensor, Tensor, Tensor | None],
        cache: KeyValueCache | None,
        layer: int,
    ) -> Tensor:
        """x (B, T, D), own: bias broadcasting to (B, H, T, T), source: keys, values (B, H, S, K), bias -> (B, T, D)"""
        x = self.add(x, self.own(norm(x), own, rotary, cache, layer))
        x = self.add(x, self.source(norm(x), *source))
        return self.add(x, self.mlp(norm(x)))
