"""Beam search, batched, with cached keys and values; a beam of one is greedy.

# Shapes: B batch, W beam width, T length so far, L layers, H heads, K head width, V vocabulary.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from model.nn.translator import Translator

LENGTH_PENALTY = 1.0
"""Exponent of ((5 + length) / 6), by which a text's log probability is divided (Wu et al. 2016, arXiv:1609.08144). In
the mean of six models on the validation split 0.6 was .15 BLEU and chrF worse, and 1.4 no better (docs/log.md, day
30)."""


class KeyValueCache:
    """Cached keys and values of the tokens decoded so far, at most `limit`, of each layer (L, B, H, T, K)."""

    def __init__(self, layers: int, limit: int) -> None:
        self.length = 0
        self._limit = limit
        self._stored: list[tuple[Tensor, Tensor] | None] = [None] * layers

    def extend(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append k, v (B, H, T, K) of the newest tokens and return all so far (B, H, length, K)."""
        begin, end = self.length, self.length + k.shape[2]
        stored = self._stored[layer]
        if stored is None:
            room = (*k.shape[:2], self._limit, k.shape[3])
            stored = self._stored[layer] = (k.new_empty(room), v.new_empty(room))
        for held, new in zip(stored, (k, v), strict=True):
            held[:, :, begin:end] = new
        return stored[0][:, :, :end], stored[1][:, :, :end]

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch only; a row may be given several times."""
        for layer, stored in enumerate(self._stored):
            assert stored is not None
            kept = []
            for held in stored:
                fresh = held.new_empty((len(rows), *held.shape[1:]))
                fresh[:, :, : self.length] = held[rows, :, : self.length]
                kept.append(fresh)
            self._stored[layer] = (kept[0], kept[1])


@torch.inference_mode()
def beam_search(
    model: "Translator", source: Tensor, unpadded: Tensor | None, width: int, limit: int,
    before_step: Callable[[], None] = lambda: None,
) -> list[list[int]]:  # fmt: skip
    """source (B, S) -> the best of `width` texts kept for each row, at most `limit` tokens, without eos

    A finished text keeps its place until `width` better ones push it out; a row whose texts are all finished leaves the
    batch. before_step: called before the source is read and before each token; what it raises ends the search.
    """
    config, device = model.config, source.device
    before_step()
    memory, past = model.encode(source, unpadded), KeyValueCache(config.layers, limit)
    memory = memory.select(torch.arange(len(source), device=device).repeat_interleave(width))  # (B W)
    best: list[list[int]] = [[] for _ in range(len(source))]
    rows = torch.arange(len(source), device=device)  # which sentence each row of the batch is
    texts = source.new_full((len(source), width, 1), config.bos)  # (B, W, T)
    scores = torch.full((len(source), width), float("-inf"), device=device)  # (B, W): log probabilities
    scores[:, 0] = 0  # at first all texts of a row are the same
    lengths = torch.zeros_like(scores)
    finished = torch.zeros_like(scores, dtype=torch.bool)
    for step in range(limit):
        before_step()
        logits = model.decode(texts[:, :, -1].reshape(-1, 1), memory, past)[:, -1]
        gains = logits.float().log_softmax(-1).view(len(rows), width, -1)  # (B, W, V)
        gains = gains.masked_fill(finished[..., None], float("-inf"))
        gains[..., config.pad] = torch.where(finished, 0.0, float("-inf"))  # a finished text gets padding only
        total = scores[..., None] + gains
        longer = lengths + (~finished).float()
        _, choice = (total / _penalty(longer)[..., None]).flatten(1).topk(width)  # (B, W)
        parent, token = choice // gains.shape[-1], choice % gains.shape[-1]
        scores = total.flatten(1).gather(1, choice)
        lengths = longer.gather(1, parent)
        finished = finished.gather(1, parent) | (token == config.eos)
        texts = torch.cat([texts.gather(1, parent[..., None].expand(-1, -1, step + 1)), token[..., None]], -1)
        done = finished.all(1) if step + 1 < limit else torch.ones(len(rows), dtype=torch.bool, device=device)
        if bool(done.any()):
            winners = (scores / _penalty(lengths)).argmax(1)
            for place in done.nonzero()[:, 0].tolist():
                text = texts[place, winners[place], 1:].tolist()
                best[int(rows[place])] = [token for token in text if token not in (config.eos, config.pad)]
        kept = (~done).nonzero()[:, 0]
        if len(kept) == 0:
            break
        survivors = (kept[:, None] * width + parent[kept]).flatten()
        past.select(survivors)
        if len(kept) < len(rows):
            memory = memory.select((kept[:, None] * width + torch.arange(width, device=device)).flatten())
            rows, texts, scores = rows[kept], texts[kept], scores[kept]
            lengths, finished = lengths[kept], finished[kept]
    return best


def _penalty(length: Tensor) -> Tensor:
    return ((5 + length) / 6) ** LENGTH_PENALTY
