"""nanoGPT: a decoder-only Transformer, as upstream has it (learned positions, LayerNorm, erf-GELU, its names) or in a
modern form.

# Shapes: B batch, T length, D d_model, H heads, K head width, V vocabulary.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from model.nn.attention import Attention, Dropout, Residual, causal_bias, heads_together, norm
from model.nn.blocks import EarlierTokens, SelfBlock, TransformerConfig, initialize_blocks, scaled_rotary_tables
from model.nn.mup import EMBEDDING_STD, Scaling
from model.nn.precision import Embedding, Linear
from tune.errors import UserError


class UpstreamTrunk(nn.Module):
    """Upstream's network, from tokens to the last normalised activations."""

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
    """Layer norm with a gain and without a bias."""

    def __init__(self, config: "GPTConfig") -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(config.d_model))

    def forward(self, x: Tensor) -> Tensor:
        """x (B, T, D) -> (B, T, D)"""
        return F.layer_norm(x, self.weight.shape, self.weight.to(x.dtype), None, 1e-5)


class Block(nn.Module):
    """Pre-norm block (Radford et al. 2019): x + attention(norm(x)), then x + mlp(norm(x))."""

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
        self.c_attn = Linear(config.d_model, 3 * config.d_model, bias=False)
        self.c_proj = Linear(config.d_model, config.d_model, bias=False)
        self.attend = Attention(scale=(config.d_model // config.heads) ** -0.5, dropout=config.dropout)

    def forward(self, x: Tensor, causal: Tensor) -> Tensor:
        """x (B, T, D), causal (T, T) -> (B, T, D)"""
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.c_attn(x).chunk(3, -1))
        return self.c_proj(heads_together(self.attend(q, k, v, causal, causal=True)))


class MLP(nn.Module):
    """Feed-forward of width 4 D with erf-GELU."""

    def __init__(self, config: "GPTConfig") -> None:
        super().__init__()
        self.c_fc = Linear(config.d_model, 4 * config.d_model, bias=False)
        self.c_proj = Linear(4 * config.d_model, config.d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, T, D) -> (B, T, D)"""
        return self.c_proj(F.gelu(self.c_fc(x)))


def initialize_upstream(model: nn.Module, layers: int) -> None:
    """Initialize as GPT-2 does, in upstream's order of drawing: normal with standard deviation 0.02, for projections
    into the residual stream 0.02 / sqrt(2 layers)."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
    for name, parameter in model.named_parameters():
        if name.endswith("c_proj.weight"):
            nn.init.normal_(parameter, std=0.02 / (2 * layers) ** 0.5)


ARCHITECTURES = ("nanogpt", "modern")
SOFT_CAP = 15.0  # bound of the modern architecture's logits, by tanh (Gemma Team 2024, arXiv:2408.00118)


@dataclass(frozen=True, kw_only=True)
class GPTConfig(TransformerConfig):
    """The shape of a GPT. The architecture `nanogpt` is exactly upstream's with `bias=False`.

    taps: in `modern`, how many of the tokens before each are mixed into its embedding. UserError: no such architecture.
    """

    context: int
    architecture: str = "modern"
    taps: int = 0

    def __post_init__(self) -> None:
        if self.architecture not in ARCHITECTURES:
            choices = ", ".join(ARCHITECTURES)
            raise UserError(f"architecture: {self.architecture!r} is unknown; choose one of {choices}")


class GPT(nn.Module):
    """Predicts each next token from those before it."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        upstream = config.architecture == "nanogpt"
        self.scaling = Scaling(d_model=config.d_model, layers=config.layers, standard=upstream, mup=config.mup)
        self.transformer = UpstreamTrunk(config) if upstream else ModernTrunk(config, self.scaling)
        self.lm_head = Linear(config.d_model, config.vocabulary, bias=False)
        if upstream:
            self.transformer.wte.weight = self.lm_head.weight
            initialize_upstream(self, config.layers)
        else:
            nn.init.zeros_(self.lm_head.weight)  # the first logits are uniform

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens (B, T), T at most the context -> logits (B, T, V), for `modern` in fp32. UserError: T is more"""
        if tokens.shape[1] > self.config.context:
            raise UserError(
                f"tokens: {tokens.shape[1]} are more than the context of {self.config.context}; give the last ones"
            )
        logits: Tensor = self.lm_head(self.transformer(tokens))
        if self.config.architecture == "nanogpt":
            return logits
        return SOFT_CAP * torch.tanh(logits.float() * (self.scaling.logits / SOFT_CAP))

    def to_upstream(self) -> dict[str, Any]:
        """Return `model_args` and `model` as in a checkpoint of nanoGPT, in fp32. UserError: another architecture."""
        shape = self.config
        if shape.architecture != "nanogpt":
            rule = "nanoGPT has another network: search with --set architecture=nanogpt"
            raise UserError(f"model: its architecture is {shape.architecture!r}: {rule}")
        sizes = {"n_layer": shape.layers, "n_head": shape.heads, "n_embd": shape.d_model}
        lengths = {"vocab_size": shape.vocabulary, "block_size": shape.context}
        weights = {name: tensor.float().cpu() for name, tensor in self.state_dict().items()}
        return {"model_args": sizes | lengths | {"bias": False, "dropout": shape.dropout}, "model": weights}


def checkpoint_activations(model: nn.Module) -> None:
    """Checkpoint the activations of a GPT: each block keeps only its input and recomputes the rest in backward (Chen et
    al. 2016, arXiv:1604.06174). Weights and their names stay as they are.
    """
    assert isinstance(model, GPT), "of no other model the blocks are known"
    draws = model.config.dropout > 0
    for block in model.transformer.h:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, preserve_rng_state=draws)


class ModernTrunk(nn.Module):
    """The modern network, from tokens to the last normalised activations."""

    causal: Tensor
    cosines: Tensor
    sines: Tensor

    def __init__(self, config: GPTConfig, scaling: Scaling) -> None:
        super().__init__()
        d_model, heads = config.d_model, config.heads
        self.wte = Embedding(config.vocabulary, d_model)
        self.mix = EarlierTokens(d_model, config.taps)
        self.drop = Dropout(config.dropout)
        self.h = nn.ModuleList(
            SelfBlock(d_model, heads, dropout=config.dropout, branch=scaling.branch_factor, causal=True)
            for _ in range(config.layers)
        )
        nn.init.normal_(self.wte.weight, std=EMBEDDING_STD)
        initialize_blocks(self.h)
        cosines, sines = scaled_rotary_tables(config.context, d_model // heads)
        self.register_buffer("cosines", cosines, persistent=False)
        self.register_buffer("sines", sines, persistent=False)
        self.register_buffer("causal", causal_bias(config.context), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens (B, T) -> (B, T, D)"""
        length = tokens.shape[1]
        x = self.drop(norm(self.mix(self.wte(tokens))))
        turned = self.cosines[:length].to(x.dtype), self.sines[:length].to(x.dtype)
        for block in self.h:
            x = block(x, self.causal[:length, :length], turned)
        return norm(x)
