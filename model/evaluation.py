"""How good a model is on a split: un-smoothed loss and what follows from it."""

import dataclasses
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from model.config import Config, Data
from model.families import FAMILIES

_LARGEST_EXPONENT = 700.0    # beyond it exp() is no float any more


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The mean over a split's target tokens, padding not counted."""

    loss: float                 # nats a token
    perplexity: float           # a token
    bits_per_character: float
    nats_per_word: float
    accuracy: float             # share of the tokens that were predicted first; NaN: not known
    tokens: int
    seconds: float
    subset: int | None = None   # of the fixed part with about so many tokens; None: of all of the split


@torch.inference_mode()
def evaluate(
    model: nn.Module, config: Config, data: Data, split: str, *, tokens: int | None = None,
    device: torch.device | str = "cpu", go_on: Callable[[], bool] = lambda: True,
    clock: Callable[[], float] = time.monotonic,
) -> Evaluation | None:
    """Measure `split` ("train", "valid", "test"), all of it or its fixed subset of about `tokens` target tokens.

    `go_on` is asked before each batch; where it refuses the result is None. The model is in training mode afterwards.
    """
    began = clock()
    total, hits, counted = 0.0, 0.0, 0
    family = FAMILIES[config.family]
    model.eval()
    try:
        for batch in family.evaluation_batches(config, data, split, tokens, device):
            if not go_on():
                return None
            loss, right = family.sums(model, batch)
            total, hits, counted = total + loss.item(), hits + right.item(), counted + batch.tokens
    finally:
        model.train()
    _, characters, words = family.span(config, data, split, tokens)
    measured = of_totals(total, hits, counted, characters, words, clock() - began)
    return dataclasses.replace(measured, subset=tokens)


def of_totals(nats: float, hits: float, tokens: int, characters: int, words: int, seconds: float) -> Evaluation:
    """The figures that follow from sums over a split."""
    loss = nats / tokens
    return Evaluation(
        loss=loss, perplexity=math.exp(min(loss, _LARGEST_EXPONENT)),
        bits_per_character=nats / math.log(2) / max(characters, 1), nats_per_word=nats / max(words, 1),
        accuracy=hits / tokens, tokens=tokens, seconds=seconds,
    )
