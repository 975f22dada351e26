"""A family of models: what training and a search ask of one. Most of it follows from three methods.

A user's own family is a subclass, registered under a name (tune/families.py).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from model.batches import EndlessBatches, Span, spread
from model.batches import span as span_of
from model.config import Config, Data, pad_of
from model.estimates import STATE_BYTES
from model.resident import Batch

FLOPS_PER_WEIGHT = 6
"""Of training, for each token: what is known of a model of which nothing is known."""
WRITTEN = ("space", "build", "batches", "loss")
Inputs = tuple[Tensor | None, ...]


class Family:
    """Write `space`, `build`, `batches` and `loss`, as WRITTEN lists them; write more where more is known.

    corpus: what it learns from, "text" or "pairs" of sentences; space: what may vary, the values of each dimension, of
    which the middle one is tried first; recipe: fields of model.config.Config that are not as in nanoGPT's. A dimension
    that is no field of Config's is found in `config.own`. compiles: torch.compile serves, and all batches have one
    shape.
    """

    corpus: str = "text"
    space: Mapping[str, Sequence[Any]] = {}
    recipe: Mapping[str, Any] = {}
    compiles = False

    def build(self, config: Config, vocabulary: int, pad: int) -> nn.Module:
        """The untrained model, initialized from torch's global generator."""
        raise NotImplementedError

    def batches(self, config: Config, data: Data, split: str) -> Sequence[Batch]:
        """Of one pass over "train", "valid" or "test". Training goes through them in a new order each time."""
        raise NotImplementedError

    def loss(self, model: nn.Module, inputs: Inputs, targets: Tensor) -> Tensor:
        """Nats a target token, the mean over those of a batch."""
        raise NotImplementedError

    def training_batches(self, config: Config, data: Data, device: torch.device) -> EndlessBatches:
        """Endless, and resumable."""
        return EndlessBatches(_Listed(self.batches(config, data, "train"), device), config.seed)

    def evaluation_batches(
        self, config: Config, data: Data, split: str, tokens: int | None, device: torch.device | str
    ) -> Iterator[Batch]:
        """All of a split, or a fixed part of it with about so many target tokens."""
        return (batch.to(device) for batch in self._some(config, data, split, tokens))

    def span(self, config: Config, data: Data, split: str, tokens: int | None) -> Span:
        """Target tokens of these evaluation batches, and the characters and words that as many of the split spell."""
        counted, every = sum(batch.tokens for batch in self._some(config, data, split, tokens)), _spelled(data, split)
        share = counted / every.tokens
        return Span(counted, round(share * every.characters), round(share * every.words))

    def losses(self, model: nn.Module, config: Config, inputs: Inputs, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The loss to train on, and its un-smoothed value."""
        loss = self.loss(model, inputs, targets)
        return loss, loss.detach()

    def sums(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """Over a batch's target tokens: nats, and how many were predicted first; NaN where that is not known."""
        return self.loss(model, batch.inputs, batch.targets) * batch.tokens, torch.tensor(torch.nan)

    def parameters(self, config: Config, vocabulary: int, pad: int) -> int:
        """All trained weights, tied ones once."""
        with torch.device("meta"):
            model = self.build(config, vocabulary, pad)
        return sum(parameter.numel() for parameter in model.parameters())

    def flops_per_token(self, config: Config, data: Data) -> float:
        """Training FLOPs of a target token, padding not counted."""
        return FLOPS_PER_WEIGHT * self.parameters(config, data.vocabulary, pad_of(data))

    def step_flops(self, config: Config, data: Data) -> float:
        """Training FLOPs of a step, padding included."""
        return self.flops_per_token(config, data) * self.batches(config, data, "train")[0].tokens

    def footprint(self, config: Config, data: Data, *, micro_batches: int, device: torch.device) -> int:
        """Bytes on paper of a trial whose batches are cut into so many parts: here of its weights and their moments."""
        return STATE_BYTES * self.parameters(config, data.vocabulary, pad_of(data))

    def most_micro_batches(self, config: Config, data: Data) -> int:
        """The power of two that cuts a batch into single rows."""
        return 1 << (len(self.batches(config, data, "train")[0].targets) - 1).bit_length()

    def _some(self, config: Config, data: Data, split: str, tokens: int | None) -> list[Batch]:
        """All batches of a split, or as many, spread over it, as have about so many tokens."""
        every = self.batches(config, data, split)
        count = len(every) if tokens is None else round(tokens / sum(batch.tokens for batch in every) * len(every))
        return [every[place] for place in spread(max(1, count), len(every))]


class _Listed:
    """Batches that are there, each as it is."""

    def __init__(self, batches: Sequence[Batch], device: torch.device) -> None:
        self._batches, self._device = batches, device

    def plan(self, generator: np.random.Generator) -> np.ndarray:
        return generator.permutation(len(self._batches))

    def batch(self, place: np.ndarray) -> Batch:
        return self._batches[int(place)].to(self._device)


_SPELLED: dict[tuple[str, str, str], Span] = {}


def _spelled(data: Data, split: str) -> Span:
    """What a whole split spells, counted once a process."""
    key = data.name, data.sha256, split
    if key not in _SPELLED:
        _SPELLED[key] = span_of(data, split, None, context=len(data.train))
    return _SPELLED[key]
