"""A family of models: what training and a search ask of one, most of which follows from the methods `build`, `batches`
and `loss`; and the families that there are: two of Transformers, and those that a user adds (tune/registry.py).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from model.config import OLD_DEFAULTS, RECIPES, Config, Data, build_model, model_config, pad_of
from model.cost.estimates import AVERAGE_BYTES, STATE_BYTES, flops_per_token, parameters, update_flops
from model.cost.memory_estimate import memory_estimate
from model.data.batches import (
    COUNTED_AT_ONCE,
    Batch,
    EndlessBatches,
    Samples,
    Span,
    TrainBatches,
    batch_shape,
    evaluation_batches,
    span,
    spread,
)
from model.data.corpus import CORPORA
from model.data.dataset import OwnData, PairData, TextData
from model.data.resident import Inputs
from model.nn.loss import plain_loss, sums, training_loss
from tune.errors import UserError
from tune.recipe import FLOPS_PER_WEIGHT, NUMBERS, parse_set

WRITTEN = ("space", "build", "batches", "loss")


class Family:
    """A family of models. One of your own has `space`, `build`, `batches` and `loss` (WRITTEN), and more where more is
    known.

    corpus: what it learns from: "text", "pairs" of sentences, or a word of its own for what it then has to `read`,
    which families with the same word share. space: the values that each dimension may have; tried first is the value of
    the default configuration for d_model, heads, layers and dropout, where it is listed, else the middle one. A
    dimension that is no field of model.config.Config is found in `config.own`. recipe: fields of Config that differ
    from the recipe of nanogpt, none of config.OLD_DEFAULTS. compiles: whether torch.compile serves, which takes
    batches of one shape.
    """

    corpus: str = "text"
    space: Mapping[str, Sequence[Any]] = {}
    recipe: Mapping[str, Any] = {}
    compiles = False

    def read(self, source: Path | Mapping[str, Any] | None) -> OwnData:
        """Read what --own-corpus names: a file, the splits of a dataset of the hub (train, and valid and test where it
        has them), or None for data that is made here."""
        raise NotImplementedError

    def build(self, config: Config, vocabulary: int, pad: int) -> nn.Module:
        """Return the untrained model, initialized from torch's global generator."""
        raise NotImplementedError

    def batches(self, config: Config, data: Data, split: str) -> Sequence[Batch]:
        """Return the batches of one pass over "train", "valid" or "test". Training takes them in a new order each
        time."""
        raise NotImplementedError

    def loss(self, model: nn.Module, inputs: Inputs, targets: Tensor) -> Tensor:
        """Return the loss in nats a target token, the mean over those of a batch."""
        raise NotImplementedError

    def training_batches(self, config: Config, data: Data, device: torch.device) -> EndlessBatches:
        """Return the batches to train on, endless and resumable."""
        return EndlessBatches(_Listed(self.batches(config, data, "train"), device), config.seed)

    def evaluation_batches(
        self, config: Config, data: Data, split: str, tokens: int | None, device: torch.device | str
    ) -> Iterator[Batch]:
        """Yield the batches of a split, or of a fixed part of it with about so many target tokens."""
        return (batch.to(device) for batch in self._some_batches(config, data, split, tokens))

    def span(self, config: Config, data: Data, split: str, tokens: int | None) -> Span:
        """Return the target tokens of these evaluation batches, and how many characters and words such a share of the
        split spells; none for data without text."""
        return _share(data, split, sum(batch.tokens for batch in self._some_batches(config, data, split, tokens)))

    def evaluated_span(self, config: Config, data: Data, split: str, tokens: int | None, counted: int) -> Span:
        """Return `span` once its tokens were counted, without the batches; a `span` of a family's own is asked."""
        own = type(self).span is not Family.span
        return self.span(config, data, split, tokens) if own else _share(data, split, counted)

    def items(self, config: Config, data: Data) -> Dataset[Batch] | None:
        """Return the training split as batches of one row, which the processes of a DataLoader make one by one; None:
        no such processes are needed."""
        return None

    def losses(self, model: nn.Module, config: Config, inputs: Inputs, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss to train on, and its un-smoothed value."""
        loss = self.loss(model, inputs, targets)
        return loss, loss.detach()

    def sums(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return nats, and how many targets were predicted first (NaN where that is not known), summed over a batch or
        each of its blocks."""
        return self.loss(model, batch.inputs, batch.targets) * batch.tokens, torch.tensor(torch.nan)

    def parameters(self, config: Config, vocabulary: int, pad: int) -> int:
        """Return the number of trained weights, tied ones once."""
        with torch.device("meta"):
            model = self.build(config, vocabulary, pad)
        return sum(parameter.numel() for parameter in model.parameters())

    def flops_per_token(self, config: Config, data: Data) -> float:
        """Return the training FLOPs of a target token, padding not counted."""
        return FLOPS_PER_WEIGHT * self.parameters(config, data.vocabulary, pad_of(data))

    def step_flops(self, config: Config, data: Data) -> float:
        """Return the training FLOPs of a step, padding included."""
        return self.flops_per_token(config, data) * self._some_batches(config, data, "train", 1)[0].tokens

    def memory_estimate(self, config: Config, data: Data, *, micro_batches: int, device: torch.device) -> int:
        """Return the bytes on paper of a trial whose batches are cut into so many parts: here of the weights, their
        gradients, moments and average only."""
        state = STATE_BYTES + (AVERAGE_BYTES if config.average else 0)
        return state * self.parameters(config, data.vocabulary, pad_of(data))

    def most_micro_batches(self, config: Config, data: Data) -> int:
        """Return the power of two that cuts a batch into single rows."""
        return 1 << (len(self._some_batches(config, data, "train", 1)[0].targets) - 1).bit_length()

    def _some_batches(self, config: Config, data: Data, split: str, tokens: int | None) -> list[Batch]:
        """Return all batches of a split, or as many, spread over it, as have about so many tokens."""
        every = self.batches(config, data, split)
        if not (total := sum(batch.tokens for batch in every)):
            rule = f"makes no batch with a target of the split {split!r}: give it more data"
            raise UserError(f"families: {config.family!r} {rule}")
        count = len(every) if tokens is None else round(tokens / total * len(every))
        return [every[place] for place in spread(max(1, count), len(every))]


class _Listed:
    """A source of batches that exist already."""

    def __init__(self, batches: Sequence[Batch], device: torch.device) -> None:
        self._batches, self._device = batches, device

    def plan(self, generator: np.random.Generator) -> np.ndarray:
        return generator.permutation(len(self._batches))

    def batch(self, place: np.ndarray, _: Tensor) -> Batch:
        return self._batches[int(place)].to(self._device)


_SPANS: dict[tuple[object, ...], Span] = {}
"""What `span` returned in this process. No text is kept for it."""


def _span_once(data: TextData | PairData, split: str, tokens: int | None, context: int) -> Span:
    key = data.name, data.sha256, data.vocabulary, data.training_tokens, split, tokens, context
    if key not in _SPANS:
        _SPANS[key] = span(data, split, tokens, context)
    return _SPANS[key]


def _share(data: Data, split: str, tokens: int) -> Span:
    """Return so many target tokens of a split, and the characters and words of such a share of it."""
    if isinstance(data, OwnData):  # which spells nothing
        return Span(tokens, 0, 0)
    every = _span_once(data, split, None, COUNTED_AT_ONCE)
    share = tokens / every.tokens
    return Span(tokens, round(share * every.characters), round(share * every.words))


def _text(data: Data) -> TextData | PairData:
    assert not isinstance(data, OwnData), "only a family of a user's own learns from anything else"
    return data


class Transformers(Family):
    """The translators or the GPTs: estimates on paper are exact for them, and their batches are made on the device."""

    compiles = True

    def __init__(self, corpus: str) -> None:
        self.corpus = corpus

    def build(self, config: Config, vocabulary: int, pad: int) -> nn.Module:
        return build_model(config, vocabulary=vocabulary, pad=pad)

    def training_batches(self, config: Config, data: Data, device: torch.device) -> EndlessBatches:
        return TrainBatches(
            _text(data), batch_tokens=config.batch_tokens, context=config.context, seed=config.seed, device=device
        )

    def evaluation_batches(
        self, config: Config, data: Data, split: str, tokens: int | None, device: torch.device | str
    ) -> Iterator[Batch]:
        window = config.evaluation_window
        context = config.context
        return evaluation_batches(_text(data), split, tokens=tokens, context=context, window=window, device=device)

    def span(self, config: Config, data: Data, split: str, tokens: int | None) -> Span:
        return _span_once(_text(data), split, tokens, config.evaluation_window or config.context)

    def items(self, config: Config, data: Data) -> Dataset[Batch]:
        return Samples(self.training_batches(config, data, torch.device("cpu")))

    def losses(self, model: nn.Module, config: Config, inputs: Inputs, targets: Tensor) -> tuple[Tensor, Tensor]:
        return self._loss(_logits(model, inputs), targets.flatten(), config)

    def losses_of_each(
        self, model: nn.Module, config: Config, inputs: Inputs, targets: Tensor, members: int
    ) -> tuple[Tensor, Tensor]:
        """Return what `losses` does, (K,) for the members of a cohort, whose rows follow one another."""
        logits = _logits(model, inputs).unflatten(0, (members, -1))
        return self._loss(logits, targets.flatten().view(members, -1), config)

    def _loss(self, logits: Tensor, targets: Tensor, config: Config) -> tuple[Tensor, Tensor]:
        if self.corpus == "text" and not config.label_smoothing:
            return plain_loss(logits, targets)
        return training_loss(logits, targets, config.label_smoothing)

    def sums(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        return sums(_logits(model, batch.inputs), batch.targets.flatten(), batch.block * batch.targets.shape[1])

    def parameters(self, config: Config, vocabulary: int, pad: int) -> int:
        return parameters(model_config(config, vocabulary=vocabulary, pad=pad))

    def flops_per_token(self, config: Config, data: Data) -> float:
        """Return the training FLOPs of a target token; pairs are taken to be as long as those of the validation
        split."""
        made = model_config(config, vocabulary=data.vocabulary, pad=pad_of(data))
        if not isinstance(data, PairData):
            return flops_per_token(made, target=config.context)
        lengths, counts = np.unique(data.valid.lengths, axis=0, return_counts=True)
        whole = 0.0
        for (source, target), count in zip(lengths.tolist(), counts.tolist(), strict=True):
            whole += count * target * flops_per_token(made, target=target, source=source)
        return whole / int(data.valid.lengths[:, 1].sum())

    def step_flops(self, config: Config, data: Data) -> float:
        made = model_config(config, vocabulary=data.vocabulary, pad=pad_of(data))
        shape = batch_shape(data, batch_tokens=config.batch_tokens, context=config.context)
        update = update_flops(made) if config.optimizer == "muon" else 0
        return shape.rows * shape.target * flops_per_token(made, target=shape.target, source=shape.source) + update

    def memory_estimate(self, config: Config, data: Data, *, micro_batches: int, device: torch.device) -> int:
        return memory_estimate(config, data, micro_batches=micro_batches, device=device)

    def most_micro_batches(self, config: Config, data: Data) -> int:
        shape = batch_shape(data, batch_tokens=config.batch_tokens, context=config.context)
        return 1 << (shape.rows - 1).bit_length()


def _logits(model: nn.Module, inputs: Inputs) -> Tensor:
    """Return the logits (B T, V)."""
    logits: Tensor = model(*inputs).flatten(0, 1)
    return logits


FAMILIES: dict[str, Family] = {"translation": Transformers("pairs"), "nanogpt": Transformers("text")}
BUILT_IN = tuple(FAMILIES)


def register_family(name: str, family: Family) -> None:
    """Register a user's own family in this process. UserError: it lacks a method, or a space, corpus or recipe that
    serves."""
    if missing := [each for each in WRITTEN if getattr(type(family), each) is getattr(Family, each)]:
        raise UserError(f"families: {name!r} has no {missing[0]}: a family has {', '.join(WRITTEN)}; write it")
    if not family.space:
        raise UserError(f"families: {name!r} has no dimension in its space: write one, such as width: (64, 128)")
    if family.corpus not in CORPORA and type(family).read is Family.read:
        known = " or ".join(CORPORA)
        raise UserError(f"families: {name!r}: corpus is {family.corpus!r}: choose {known}, or write how it is read")
    common = {name: value for name, value in RECIPES["nanogpt"].items() if name not in OLD_DEFAULTS}
    if unknown := [field for field in family.recipe if field not in common]:
        there = ", ".join(common)
        raise UserError(f"families: {name!r} has {unknown[0]!r} in its recipe: a recipe has {there}; leave it out")
    try:  # else a study could not be resumed with it
        for field in [field for field in family.recipe if field in NUMBERS]:
            parse_set(f"{field}={json.dumps(family.recipe[field], default=repr)}")
    except UserError as error:
        raise UserError(f"families: {name!r} has in its recipe {error}") from None
    FAMILIES[name], RECIPES[name] = family, {**common, **family.recipe, **OLD_DEFAULTS}


def registered_families() -> dict[str, Family]:
    """Return the families that were added."""
    return {name: family for name, family in FAMILIES.items() if name not in BUILT_IN}
