"""The trunk of nanoGPT as upstream has it: learned positions, LayerNorm, erf-GELU. Its names are those of upstream.

# Shapes: B batch, T length, D d_model, H heads, K head width.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model.attention import Attention, Dropout, Residual, causal_bias, heads_apart, heads_together
from model.precision import Embedding, Linear

if TYPE_CHECKING:
    from model.gpt import GPTConfig


class UpstreamTrunk(nn.Module):
    """Tokens to the last normalised activations."""

    causal: Tensor

    def __init__(self, config: "GPTConfig") -> None:
        super().__init__()
        self.wte = Embedding(config.vocabulary, config.d_model)
        self.wpe = Embedding(config.context, config.d_model)
        self.drop = Dropout(config.dropout)
        self.h = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.ln_f = LayerNorm(config)
        self.register_buffer("causal", causal_bias(config.context), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens (B, T) -> (B, T, D)"""
        length = tokens.shape[1]
        x = self.drop(self.wte(tokens) + self.wpe(torch.arange(length, device=tokens.device)))
        for block in self.h:
            x = block(x, self.causal[:length, :length])
        normalised: Tensor = self.ln_f(x)
        return normalised


class LayerNorm(nn.Module):
    """A gain, and a bias only where the config has one."""

    def __init__(self, config: "GPTConfig") -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(config.d_model))
        self.bias = nn.Parameter(torch.zeros(config.d_model)) if config.bias else None

    def forward(self, x: Tensor) -> Tensor:
        """x (B, T, D) -> (B, T, D)"""
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.layer_norm(x, self.weight.shape, self.weight.to(x.dtype), bias, 1e-5)


class Block(nn.Module):
    """Pre-norm (Radford et al. 2019): x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: "GPTConfig") -> None:
        super().__init__()
        self.ln_1 = LayerNorm(config)
        self.attn = SelfAttention(config)
        self.ln_2 = LayerNorm(config)
        self.mlp = MLP(config)
        self.add = Residual(config.dropout)

    def forward(self, x: Tensor, causal: Tensor) -> Tensor:
        """x (B, T, D), causal (T, T) -> (B, T, D)"""
        x = self.add(x, self.attn(self.ln_1(x), causal))
        return self.add(x, self.mlp(self.ln_2(x)))


class SelfAttention(nn.Module):
    """Causal self-attention with queries, keys and values from one product."""

    def __init__(self, config: "GPTConfig") -> None:
        super().__init__()
        self.heads = config.heads
        self.c_attn = Linear(config.d_model, 3 * config.d_model, bias=config.bias)
        self.c_proj = Linear(config.d_model, config.d_model, bias=config.bias)
        self.attend = Attention(scale=(config.d_model // config.heads) ** -0.5, dropout=config.dropout)

    def forward(self, x: Tensor, causal: Tensor) -> Tensor:
        """x (B, T, D), causal (T, T) -> (B, T, D)"""
        q, k, v = (heads_apart(part, self.heads) for part in self.c_attn(x).chunk(3, -1))
        return self.c_proj(heads_together(self.attend(q, k, v, causal, causal=True)))


class MLP(nn.Module):
    """Feed-forward of width 4 D with erf-GELU."""

    def __init__(self, config: "GPTConfig") -> None:
        super().__init__()
        self.c_fc = Linear(config.d_model, 4 * config.d_model, bias=config.bias)
        self.c_proj = Linear(4 * config.d_model, config.d_model, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, T, D) -> (B, T, D)"""
        return self.c_proj(F.gelu(self.c_fc(x)))


def initialize_upstream(model: nn.Module, layers: int) -> None:
    """GPT-2's: normal 0.02, projections into the residual stream 0.02 / sqrt(2 layers); drawn in upstream's order."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    for name, parameter in model.named_parameters():
        if name.endswith("c_proj.weight"):
            nn.init.normal_(parameter, std=0.02 / (2 * layers) ** 0.5)
