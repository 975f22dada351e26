"""The families of models that there are: two of Transformers, and those that a user adds."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model.batches import EndlessBatches, Span, TrainBatches, batch_shape, evaluation_batches, span
from model.config import RECIPES, Config, Data, build_model, model_config, pad_of
from model.estimates import flops_per_token, parameters
from model.family import WRITTEN, Family, Inputs
from model.footprint import footprint, most_micro_batches
from model.loss import training_loss
from model.peak import flops_on
from model.resident import IGNORED, Batch
from tune.errors import UserError


class Transformers(Family):
    """The translators or the GPTs: what is on paper of them is exact, and their batches are made on the device."""

    compiles = True

    def __init__(self, corpus: str) -> None:
        self.corpus = corpus

    def build(self, config: Config, vocabulary: int, pad: int) -> nn.Module:
        return build_model(config, vocabulary=vocabulary, pad=pad)

    def training_batches(self, config: Config, data: Data, device: torch.device) -> EndlessBatches:
        return TrainBatches(
            data, batch_tokens=config.batch_tokens, context=config.context, seed=config.seed, device=device)

    def evaluation_batches(
        self, config: Config, data: Data, split: str, tokens: int | None, device: torch.device | str
    ) -> Iterator[Batch]:
        return evaluation_batches(data, split, tokens=tokens, context=config.context, device=device)

    def span(self, config: Config, data: Data, split: str, tokens: int | None) -> Span:
        return span(data, split, tokens, context=config.context)

    def losses(self, model: nn.Module, config: Config, inputs: Inputs, targets: Tensor) -> tuple[Tensor, Tensor]:
        return training_loss(_logits(model, inputs), targets.flatten(), config.label_smoothing)

    def sums(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        logits, targets = _logits(model, batch.inputs), batch.targets.flatten()
        right = (logits.argmax(-1) == targets).sum()           # IGNORED is no token's number
        return F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum"), right

    def parameters(self, config: Config, vocabulary: int, pad: int) -> int:
        return parameters(model_config(config, vocabulary=vocabulary, pad=pad))

    def flops_per_token(self, config: Config, data: Data) -> float:
        return flops_on(config, data)

    def step_flops(self, config: Config, data: Data) -> float:
        made = model_config(config, vocabulary=data.vocabulary, pad=pad_of(data))
        shape = batch_shape(data, batch_tokens=config.batch_tokens, context=config.context)
        return shape.rows * shape.target * flops_per_token(made, target=shape.target, source=shape.source)

    def footprint(self, config: Config, data: Data, *, micro_batches: int, device: torch.device) -> int:
        return footprint(config, data, micro_batches=micro_batches, device=device)

    def most_micro_batches(self, config: Config, data: Data) -> int:
        return most_micro_batches(config, data)


def _logits(model: nn.Module, inputs: Inputs) -> Tensor:
    """(B T, V) in fp32"""
    logits: Tensor = model(*inputs).flatten(0, 1).float()
    return logits


FAMILIES: dict[str, Family] = {"translation": Transformers("pairs"), "nanogpt": Transformers("text")}
BUILT_IN = tuple(FAMILIES)


def add(name: str, family: Family) -> None:
    """From now on this process knows a family of a user's own. UserError: it lacks something, or its recipe is odd."""
    if missing := [each for each in WRITTEN if getattr(type(family), each) is getattr(Family, each)]:
        raise UserError(f"families: {name!r} has no {missing[0]}: a family has {', '.join(WRITTEN)}; write it")
    common = RECIPES["nanogpt"]
    if unknown := [field for field in family.recipe if field not in common]:
        there = ", ".join(common)
        raise UserError(f"families: {name!r} has {unknown[0]!r} in its recipe: a recipe has {there}; leave it out")
    FAMILIES[name], RECIPES[name] = family, {**common, **family.recipe}


def own() -> dict[str, Family]:
    """Those that were added."""
    return {name: family for name, family in FAMILIES.items() if name not in BUILT_IN}
