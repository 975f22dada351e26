"""Translation: an encoder-decoder Transformer (Vaswani et al. 2017, arXiv:1706.03762) in a modern form.

# Shapes: B batch, T target length, S source length, D d_model, H heads, K head width, L layers, V vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from model.nn.attention import Dropout, causal_bias, norm, same_sentence_bias
from model.nn.blocks import (
    CrossBlock,
    RotaryTables,
    SelfBlock,
    TransformerConfig,
    initialize_blocks,
    scaled_rotary_tables,
)
from model.nn.decoding import KeyValueCache
from model.nn.mup import TIED_STD, Scaling, hidden_std
from model.nn.precision import Embedding, Linear, linear

RESIDENT = 128  # positions whose tables are kept; for longer sentences they are computed anew, on the device


@dataclass(frozen=True, kw_only=True)
class TranslatorConfig(TransformerConfig):
    """The shape of a translator; encoder and decoder have `layers` each. `bos` and `eos` follow `pad`
    (tokenizer.py)."""

    pad: int

    @property
    def bos(self) -> int:
        """The token that a target begins with."""
        return self.pad + 1

    @property
    def eos(self) -> int:
        """The token that ends a target."""
        return self.pad + 2


@dataclass(frozen=True)
class EncodedSource:
    """The encoded source as the decoder attends to it: keys and values of each layer (L, B, H, S, K), and a bias
    (B, 1, 1 or T, S) or None."""

    keys: Tensor
    values: Tensor
    bias: Tensor | None

    def select(self, rows: Tensor) -> "EncodedSource":
        """Return the memory of these rows of the batch; a row may be given several times."""
        bias = None if self.bias is None else self.bias[rows]
        return EncodedSource(self.keys[:, rows], self.values[:, rows], bias)


class Translator(nn.Module):
    """Predicts the target token by token; one embedding serves source, target and read-out."""

    causal: Tensor
    cosines: Tensor
    sines: Tensor

    def __init__(self, config: TranslatorConfig) -> None:
        super().__init__()
        self.config = config
        self.scaling = Scaling(d_model=config.d_model, layers=config.layers, mup=config.mup)
        self.embedding = Embedding(config.vocabulary, config.d_model)
        self.drop = Dropout(config.dropout)
        d_model, heads, layers = config.d_model, config.heads, config.layers
        rules = {"dropout": config.dropout, "branch": self.scaling.branch_factor}
        self.encoder = nn.ModuleList(SelfBlock(d_model, heads, causal=False, **rules) for _ in range(layers))
        self.cross = Linear(d_model, 2 * layers * d_model, bias=False)  # keys and values for all layers
        self.decoder = nn.ModuleList(CrossBlock(d_model, heads, **rules) for _ in range(layers))
        nn.init.normal_(self.embedding.weight, std=TIED_STD)
        nn.init.normal_(self.cross.weight, std=hidden_std(d_model))
        initialize_blocks(self.encoder)
        initialize_blocks(self.decoder)
        self.register_buffer("causal", causal_bias(RESIDENT), persistent=False)
        cosines, sines = scaled_rotary_tables(RESIDENT, d_model // heads)
        self.register_buffer("cosines", cosines, persistent=False)
        self.register_buffer("sines", sines, persistent=False)

    def forward(self, source: Tensor, source_of: Tensor, target_in: Tensor, target_of: Tensor) -> Tensor:
        """source (B, S), target_in (B, T), each with its tokens' sentence numbers, shaped alike -> logits (B, T, V)

        A token attends only to those with its own number: a row may hold several pairs, one after the other. Positions
        are relative, so that it does not matter where in the row a sentence begins.
        """
        dtype = self.embedding.compute_dtype
        within, across = (same_sentence_bias(of, source_of).to(dtype) for of in (source_of, target_of))
        own = same_sentence_bias(target_of, target_of, self._causal(target_in.shape[1])).to(dtype)
        return self._write(target_in, own, self._read(source, within, across), None)

    def encode(self, source: Tensor, unpadded: Tensor | None) -> EncodedSource:
        """source (B, S), unpadded (B, S) or None where nothing is padded -> each decoder layer's keys and values"""
        bias = None
        if unpadded is not None:
            bias = torch.zeros(unpadded.shape, device=source.device).masked_fill(~unpadded, float("-inf"))
            bias = bias[:, None, None]  # (B, 1, 1, S)
        return self._read(source, bias, bias)

    def _read(self, source: Tensor, bias: Tensor | None, read_bias: Tensor | None) -> EncodedSource:
        """source (B, S), biases of the encoder's and the decoder's attention to it (B, 1, ..., S) -> EncodedSource"""
        turned = self._rotary_tables(0, source.shape[1])
        x = self.drop(norm(self.embedding(source)))
        for block in self.encoder:
            x = block(x, bias, turned)
        pairs = self.cross(norm(x)).unflatten(-1, (2, self.config.layers, self.config.heads, -1))  # (B, S, 2, L, H, K)
        keys, values = pairs.unbind(2)  # (B, S, L, H, K)
        return EncodedSource(norm(keys).permute(2, 0, 3, 1, 4), values.permute(2, 0, 3, 1, 4), read_bias)

    def decode(self, target_in: Tensor, memory: EncodedSource, cache: KeyValueCache | None = None) -> Tensor:
        """target_in (B, T): the whole target so far, or with `cache` its next tokens -> logits (B, T, V)"""
        begin, length = 0 if cache is None else cache.length, target_in.shape[1]
        own = self._causal(begin + length)[begin:] if length > 1 else None  # a single new position attends to all
        return self._write(target_in, own, memory, cache)

    def _write(
        self, target_in: Tensor, own: Tensor | None, memory: EncodedSource, cache: KeyValueCache | None
    ) -> Tensor:
        """target_in (B, T), own: bias of its attention to the target so far -> logits (B, T, V)"""
        begin, length = 0 if cache is None else cache.length, target_in.shape[1]
        turned = self._rotary_tables(begin, begin + length)
        x = self.drop(norm(self.embedding(target_in)))
        sources = zip(memory.keys.unbind(), memory.values.unbind(), strict=True)
        for layer, (block, source) in enumerate(zip(self.decoder, sources, strict=True)):
            x = block(x, own, turned, (*source, memory.bias), cache, layer)
        if cache is not None:
            cache.length += length
        return linear(norm(x) * self.scaling.logits, self.embedding.weight.to(x.dtype))

    def _rotary_tables(self, begin: int, end: int) -> RotaryTables:
        """Return the rotary tables (T, K) of positions `begin` to `end`, however long the sentence."""
        tables: RotaryTables = self.cosines, self.sines
        if end > RESIDENT:
            tables = scaled_rotary_tables(end, self.config.d_model // self.config.heads, self.causal.device)
        cosines, sines = (table[begin:end].to(self.embedding.compute_dtype) for table in tables)
        return cosines, sines

    def _causal(self, length: int) -> Tensor:
        if length <= RESIDENT:
            return self.causal[:length, :length]
        return causal_bias(length, self.causal.device)
