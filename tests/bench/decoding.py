"""How fast sentences are translated: with cached keys and values, and without.

# Shapes: B batch, T length so far, V vocabulary.
"""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from model.config import Config, build_model
from model.nn.decoding import beam_search
from model.nn.precision import prepare, set_compute
from model.nn.translator import Memory, Translator
from tests.bench.contenders import TRANSLATOR, pairs
from tests.bench.interleaved import ratio
from tests.bench.speed import cpu_seconds
from tests.bench.table import Row

SENTENCES, LENGTH = 16, 12


class History:
    """A past that keeps tokens (B, T) only."""

    tokens: Tensor | None = None

    def select(self, rows: Tensor) -> None:
        """Go on with some rows of the batch."""
        assert self.tokens is not None
        self.tokens = self.tokens[rows]


class Uncached:
    """A translator that computes all of the target anew for each token."""

    def __init__(self, model: Translator) -> None:
        self.model, self.config, self.encode = model, model.config, model.encode

    def past(self, limit: int) -> History:
        """An empty one."""
        return History()

    def decode(self, token: Tensor, memory: Memory, past: History) -> Tensor:
        """token (B, 1): the newest -> logits (B, 1, V) of the next"""
        past.tokens = token if past.tokens is None else torch.cat([past.tokens, token], 1)
        return self.model.decode(past.tokens, memory)[:, -1:]


@torch.inference_mode()
def decoding(data: Path, *, short: bool) -> Iterator[Row]:
    """Greedy decoding and beam search of a batch of sentences, to the limit."""
    torch.set_num_threads(1)
    config, prepared = Config(family="translation", **TRANSLATOR), pairs(data)
    prepare(config.precision, "cpu")
    torch.manual_seed(0)
    model = build_model(config, vocabulary=prepared.vocabulary, pad=prepared.pad).eval()
    assert isinstance(model, Translator)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    set_compute(model, config.precision)
    source = torch.randint(prepared.pad, (SENTENCES, LENGTH), generator=torch.Generator().manual_seed(1))
    limit, slowly = 16 if short else 64, Uncached(model)
    for name, search in (
        ("greedy decoding", lambda model: beam_search(model, source, None, 1, limit)),
        ("beam search of width 4", lambda model: beam_search(model, source, None, 4, limit)),
    ):
        pairs_of_turns = [
            (cpu_seconds(lambda search=search: search(slowly)), cpu_seconds(lambda search=search: search(model)))
            for _ in range(3 if short else 9)
        ]
        times, low, high = ratio(*zip(*pairs_of_turns, strict=True))
        same = search(slowly) == search(model)
        yield Row(
            what=f"{name}, {SENTENCES} sentences, {limit} tokens each", against="without cached keys and values",
            asked="the same text, >= 5x",
            measured=f"{'the same text' if same else 'another text'}, {times:.1f}x ({low:.1f} to {high:.1f})",
            reached=same and times >= 5,
        )  # fmt: skip
