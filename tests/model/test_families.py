"""The laws of a user's own family: three methods and a space are enough to train, judge, keep and load its models."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model.config import RECIPES, Config
from model.data.batches import Span, span
from model.data.dataset import TextData
from model.families import FAMILIES, Batch, Family, register_family
from model.nn.precision import PRECISIONS, Embedding, Linear, compute_dtype
from model.training import checkpoint as checkpoints
from model.training.checkpoint import export, load_model
from model.training.evaluation import evaluate
from model.training.learner import Learner
from tests.model.conftest import assert_parts_add_up
from tune.errors import UserError

CPU = torch.device("cpu")


class Guess(nn.Module):
    """The next token by the last one."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.embed(tokens))


class Bigrams(Family):
    space: Mapping[str, Any] = {"width": (4, 8, 16)}
    recipe: Mapping[str, Any] = {"learning_rate": 1e-2, "warm_up_steps": 5, "context": 16, "batch_tokens": 128}

    def build(self, config: Config, vocabulary: int, pad: int) -> nn.Module:
        return Guess(vocabulary, config.own["width"])

    def batches(self, config: Config, data: TextData, split: str) -> list[Batch]:
        tokens = torch.from_numpy(getattr(data, split).astype("int64"))
        rows = tokens.unfold(0, config.context + 1, config.context).split(config.batch_tokens // config.context)
        return [Batch((x[:, :-1],), x[:, 1:], x[:, 1:].numel()) for x in rows]

    def loss(self, model: nn.Module, inputs: tuple[Tensor, ...], targets: Tensor) -> Tensor:
        return F.cross_entropy(model(*inputs).flatten(0, 1), targets.flatten())


@pytest.fixture(autouse=True)
def bigrams() -> Iterator[Family]:
    register_family("bigrams", family := Bigrams())
    yield family
    del FAMILIES["bigrams"], RECIPES["bigrams"]


@pytest.fixture
def config(bigrams: Family) -> Config:
    return Config.at({"width": 8}, family="bigrams", seed=1)


def test_it_learns_and_goes_on_exactly_where_it_was(
    config: Config, text_data: TextData, tmp_path: Path, run: Callable
) -> None:
    whole = run(config, text_data, tmp_path / "whole", steps=40)[-1]
    assert whole.ended == "rung" and whole.valid.loss < 0.8 * math.log(text_data.vocabulary)
    half = run(config, text_data, tmp_path / "halves", steps=15)[-1]
    again = run(config, text_data, tmp_path / "halves", checkpoint=Path(half.checkpoint), steps=40)[-1]
    assert again.valid.loss == whole.valid.loss and again.tokens == whole.tokens


def test_an_epoch_has_each_batch_once_and_the_next_another_order(config: Config, text_data: TextData) -> None:
    batches = FAMILIES["bigrams"].training_batches(config, text_data, CPU)
    every = FAMILIES["bigrams"].batches(config, text_data, "train")
    epochs = [[tuple(next(batches).targets.flatten().tolist()) for _ in every] for _ in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(tuple(each.targets.flatten().tolist()) for each in every)
    assert epochs[0] != epochs[1]


def test_a_split_is_judged_by_all_of_its_tokens_and_what_they_spell(config: Config, text_data: TextData) -> None:
    model = FAMILIES["bigrams"].build(config, text_data.vocabulary, 0)
    found = evaluate(model, config, text_data, "valid")
    tokens = torch.from_numpy(text_data.valid.astype("int64"))
    count = (len(tokens) - 1) // config.context * config.context
    by_hand = F.cross_entropy(model(tokens[:count]), tokens[1 : count + 1]).item()
    assert found.tokens == count and found.loss == pytest.approx(by_hand, rel=1e-5)
    assert found.bits_per_character == pytest.approx(found.loss / math.log(2), rel=1e-2)  # a token is a character here
    assert found.accuracy is None


@pytest.mark.parametrize("tokens", [1, 300])
def test_a_part_of_a_split_is_always_the_same_and_about_as_large_as_asked(
    config: Config, text_data: TextData, tokens: int
) -> None:
    model = FAMILIES["bigrams"].build(config, text_data.vocabulary, 0)
    first, second = (evaluate(model, config, text_data, "valid", tokens=tokens) for _ in range(2))
    assert first.loss == second.loss
    assert abs(first.tokens - tokens) <= config.batch_tokens
    assert first.bits_per_character == pytest.approx(first.loss / math.log(2), rel=1e-2)


def test_an_evaluation_makes_its_batches_once(
    bigrams: Family, config: Config, text_data: TextData, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, batches = [], bigrams.batches
    monkeypatch.setattr(bigrams, "batches", lambda *given: made.append(given[-1]) or batches(*given))
    for split in ("valid", "test"):
        evaluate(bigrams.build(config, text_data.vocabulary, 0), config, text_data, split)
    assert made == ["valid", "test"]


def test_an_evaluation_tells_what_a_familys_own_count_says(config: Config, text_data: TextData) -> None:
    class Counted(Bigrams):
        def span(self, config: Config, data: TextData, split: str, tokens: int | None) -> Span:
            return super().span(config, data, split, tokens)._replace(characters=7)

    register_family("bigrams", counted := Counted())
    found = evaluate(counted.build(config, text_data.vocabulary, 0), config, text_data, "valid")
    assert found.bits_per_character == pytest.approx(found.loss * found.tokens / math.log(2) / 7)


def test_parts_of_a_batch_add_up_to_its_gradients(config: Config, text_data: TextData) -> None:
    assert_parts_add_up(config, text_data)


def test_a_dry_step_leaves_what_a_model_keeps_beside_its_weights(
    bigrams: Family, config: Config, text_data: TextData, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Normed(Guess):
        def __init__(self, vocabulary: int, width: int) -> None:
            super().__init__(vocabulary, width)
            self.norm = nn.BatchNorm1d(width)
            self.register_buffer("places", torch.zeros(1))

        def forward(self, tokens: Tensor) -> Tensor:
            self.places = torch.arange(tokens.shape[1])
            return self.out(self.norm(self.embed(tokens).mT).mT)

    monkeypatch.setattr(bigrams, "build", lambda config, vocabulary, pad: Normed(vocabulary, config.own["width"]))
    learner = Learner(config, text_data, CPU)
    before = [buffer.clone() for buffer in learner.model.buffers()]
    learner.dry_step()
    assert before and all(map(torch.equal, learner.model.buffers(), before))


def test_its_parameters_are_known_before_it_is_built(config: Config, text_data: TextData) -> None:
    learner = Learner(config, text_data, CPU)
    assert FAMILIES["bigrams"].parameters(config, text_data.vocabulary, 0) == learner.parameters


def test_a_winner_is_loaded_as_it_was(config: Config, text_data: TextData, tmp_path: Path, run: Callable) -> None:
    last = run(config, text_data, tmp_path / "t001", steps=20)[-1]
    export(Path(last.checkpoint), tmp_path / "best-bigrams", text_data.tokenizer)
    model, tokenizer = load_model(tmp_path / "best-bigrams")
    weights = checkpoints.load(Path(last.checkpoint)).state["config"]
    assert Config(**weights) == config and tokenizer.vocabulary == text_data.vocabulary
    assert evaluate(model, config, text_data, "valid", tokens=256).loss == pytest.approx(last.valid.loss, rel=1e-5)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_its_loss_is_measured_in_fp32_in_any_precision(
    precision: str, bigrams: Family, config: Config, text_data: TextData, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, run: Callable,
) -> None:  # fmt: skip
    """In 16 bits the nats of a large batch would not even be finite."""

    class Narrow(Guess):
        def __init__(self, vocabulary: int, width: int) -> None:
            super().__init__(vocabulary, width)
            self.embed, self.out = Embedding(vocabulary, width), Linear(width, vocabulary)

    monkeypatch.setattr(bigrams, "build", lambda config, vocabulary, pad: Narrow(vocabulary, config.own["width"]))
    monkeypatch.setattr(checkpoints, "native_precisions", lambda _: PRECISIONS)
    config = replace(config, precision=precision)
    last = run(config, text_data, tmp_path / "t001", steps=2)[-1]
    export(Path(last.checkpoint), tmp_path / "best-bigrams", text_data.tokenizer)
    batch = bigrams.batches(config, text_data, "valid")[0]
    for model in (Learner(config, text_data, CPU).model, load_model(tmp_path / "best-bigrams")[0]):
        assert isinstance(model, Narrow) and model.embed(*batch.inputs).dtype == compute_dtype(precision)
        loss, _ = bigrams.losses(model, config, batch.inputs, batch.targets)
        nats, _ = bigrams.sums(model, replace(batch, tokens=100_000))
        assert loss.dtype == torch.float32 and nats.item() == pytest.approx(100_000 * loss.item())


@pytest.mark.parametrize("lacking", ["space", "build", "batches", "loss"])
def test_what_lacks_a_part_is_refused_in_one_line(lacking: str) -> None:
    kept = {name: getattr(Bigrams, name) for name in ("space", "build", "batches", "loss") if name != lacking}
    with pytest.raises(ValueError, match=f"^families: 'half' has no {lacking}: a family has space, build, .*write it$"):
        register_family("half", type("Half", (Family,), kept)())
    assert "half" not in FAMILIES


def test_a_recipe_that_says_what_none_does_is_refused_in_one_line() -> None:
    odd = type("Odd", (Bigrams,), {"recipe": {"momentum": 0.9}})
    with pytest.raises(ValueError, match=r"^families: 'odd' has 'momentum' in its recipe: .*learning_rate"):
        register_family("odd", odd())


def test_a_split_without_a_batch_is_told_in_one_line(
    bigrams: Family, config: Config, text_data: TextData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bigrams, "batches", lambda *_: [])
    with pytest.raises(UserError, match=r"^families: 'bigrams' makes no batch with a target .* 'valid': give it more"):
        bigrams.span(config, text_data, "valid", None)
    with pytest.raises(UserError, match="no batch with a target of the split 'train'"):
        bigrams.step_flops(config, text_data)


@pytest.mark.parametrize("family", ["bigrams", "nanogpt"])
def test_what_a_split_spells_is_counted_once_for_all_trials(
    family: str, config: Config, text_data: TextData, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = []
    monkeypatch.setattr("model.families.span", lambda *given: counted.append(given) or span(*given))
    asked = [FAMILIES[family].span(replace(config, seed=seed), text_data, "valid", None) for seed in range(3)]
    assert len(counted) <= 1 and asked[0] == asked[1] == asked[2]
