"""nanoGPT: a decoder-only Transformer, as upstream has it or in a modern form.

# Shapes: B batch, T length, D d_model, V vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from model.attention import Dropout, causal_bias, norm
from model.blocks import SelfBlock, initialize_blocks, turns
from model.gpt_upstream import UpstreamTrunk, initialize_upstream
from model.precision import Embedding, Linear
from model.scaling_rules import EMBEDDING_STD, Scaling
from tune.errors import UserError

ARCHITECTURES = ("nanogpt", "modern")
SOFT_CAP = 15.0  # of the modern logits (Gemma Team 2024, arXiv:2408.00118)


@dataclass(frozen=True, kw_only=True)
class GPTConfig:
    """The shape of a GPT. `nanogpt` is upstream exactly, and `bias` is upstream's; `modern` has none."""

    vocabulary: int
    context: int
    d_model: int = 128
    heads: int = 4
    layers: int = 4
    dropout: float = 0.0
    architecture: str = "modern"
    bias: bool = False
    scaling_rules: bool = True

    def __post_init__(self) -> None:
        if self.architecture not in ARCHITECTURES:
            choices = ", ".join(ARCHITECTURES)
            raise UserError(f"architecture: {self.architecture!r} is unknown; choose one of {choices}")
        if self.d_model % self.heads:
            raise UserError(f"heads: {self.heads} does not divide d_model {self.d_model}; choose a divisor")


class GPT(nn.Module):
    """Predicts each next token from those before it."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        upstream = config.architecture == "nanogpt"
        self.scaling = Scaling(
            d_model=config.d_model, layers=config.layers, standard=upstream, ruled=config.scaling_rules
        )
        self.transformer = UpstreamTrunk(config) if upstream else ModernTrunk(config, self.scaling)
        self.lm_head = Linear(config.d_model, config.vocabulary, bias=False)
        if upstream:
            self.transformer.wte.weight = self.lm_head.weight
            initialize_upstream(self, config.layers)
        else:
            nn.init.zeros_(self.lm_head.weight)  # the first logits are uniform

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens (B, T), T at most the context -> logits (B, T, V), of `modern` in fp32"""
        if tokens.shape[1] > self.config.context:
            raise UserError(
                f"tokens: {tokens.shape[1]} are more than the context of {self.config.context}; give the last ones"
            )
        logits: Tensor = self.lm_head(self.transformer(tokens))
        if self.config.architecture == "nanogpt":
            return logits
        return SOFT_CAP * torch.tanh(logits.float() * (self.scaling.logits / SOFT_CAP))

    @classmethod
    def from_upstream(cls, checkpoint: Mapping[str, Any]) -> Self:
        """The model in nanoGPT's own checkpoint: `model_args` and `model` of its ckpt.pt, compiled or not."""
        shape = checkpoint["model_args"]
        config = GPTConfig(
            vocabulary=shape["vocab_size"],
            context=shape["block_size"],
            d_model=shape["n_embd"],
            heads=shape["n_head"],
            layers=shape["n_layer"],
            dropout=shape.get("dropout", 0.0),
            architecture="nanogpt",
            bias=shape["bias"],
        )
        weights = {name.removeprefix("_orig_mod."): tensor for name, tensor in checkpoint["model"].items()}
        masks = {name for name in weights if name.endswith(".attn.bias")}  # kept where upstream has no fused attention
        model = cls(config)
        model.load_state_dict({name: tensor for name, tensor in weights.items() if name not in masks})
        return model


class ModernTrunk(nn.Module):
    """Tokens to the last normalised activations."""

    causal: Tensor
    cosines: Tensor
    sines: Tensor

    def __init__(self, config: GPTConfig, scaling: Scaling) -> None:
        super().__init__()
        d_model, heads = config.d_model, config.heads
        self.wte = Embedding(config.vocabulary, d_model)
        self.drop = Dropout(config.dropout)
        self.h = nn.ModuleList(
            SelfBlock(d_model, heads, dropout=config.dropout, branch=scaling.branch, causal=True)
            for _ in range(config.layers)
        )
        nn.init.normal_(self.wte.weight, std=EMBEDDING_STD)
        initialize_blocks(self.h)
        cosines, sines = turns(config.context, d_model // heads)
        self.register_buffer("cosines", cosines, persistent=False)
        self.register_buffer("sines", sines, persistent=False)
        self.register_buffer("causal", causal_bias(config.context), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens (B, T) -> (B, T, D)"""
        length = tokens.shape[1]
        x = self.drop(norm(self.wte(tokens)))
        for block in self.h:
            x = block(x, self.causal[:length, :length], (self.cosines[:length], self.sines[:length]))
        return norm(x)
