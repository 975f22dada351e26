"""An evaluation: the same for everyone who asks for the same, and true to its definition."""

import math
import random

import pytest
import torch
from torch.nn import functional as F

from model.config import Config, build_model
from model.data.batches import IGNORED, evaluation_batches
from model.data.corpus import PairCorpus, TextCorpus
from model.data.dataset import PairData, TextData, prepare_pairs, prepare_text
from model.training.evaluation import evaluate, of_totals

TEXT = Config(family="nanogpt", d_model=16, heads=4, layers=2, context=16, dropout=0.5)
PAIRS = Config(family="translation", d_model=16, heads=4, layers=2, dropout=0.5)
DATA = ("text", "pairs")


@pytest.fixture(scope="module")
def text() -> TextData:
    whole = "".join(random.Random(0).choices("abcde \n", k=6000))
    return prepare_text(
        TextCorpus(name="text", sha256="", builtin=True, train=whole[:5000], valid=whole[5000:5500], test=whole[5500:])
    )


@pytest.fixture(scope="module")
def pairs() -> PairData:
    chooser = random.Random(0)
    words = ["uno", "dos", "tres", "cuatro", "cinco", "seis"]
    made = [
        (" ".join(some), " ".join(reversed(some)))
        for some in (chooser.choices(words, k=chooser.randint(1, 7)) for _ in range(300))
    ]
    return prepare_pairs(
        PairCorpus(name="pairs", sha256="", builtin=True, train=made[:200], valid=made[200:250], test=made[250:])
    )


def trained(config: Config, data: TextData | PairData) -> torch.nn.Module:
    torch.manual_seed(0)
    model = build_model(config, vocabulary=data.vocabulary, pad=getattr(data, "pad", 0))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


@pytest.fixture(params=DATA)
def case(request: pytest.FixtureRequest) -> tuple[Config, TextData | PairData]:
    return {"text": TEXT, "pairs": PAIRS}[request.param], request.getfixturevalue(request.param)


def test_it_is_the_mean_over_the_target_tokens(case: tuple[Config, TextData | PairData]) -> None:
    config, data = case
    model = trained(config, data)
    found = evaluate(model, config, data, "valid")
    assert found is not None and model.training
    nats, right = [], []
    model.eval()
    with torch.no_grad():
        for batch in evaluation_batches(data, "valid", tokens=None, context=config.context):
            for row, target in zip(F.log_softmax(model(*batch.inputs).float(), -1), batch.targets, strict=True):
                for scores, token in zip(row, target.tolist(), strict=True):
                    if token != IGNORED:
                        nats.append(-scores[token].item())
                        right.append(scores.argmax().item() == token)
    assert found.tokens == len(nats)
    assert found.loss == pytest.approx(sum(nats) / len(nats), rel=1e-5)
    assert found.accuracy == pytest.approx(sum(right) / len(right))
    assert found.perplexity == pytest.approx(math.exp(found.loss))


def test_the_subset_is_the_same_for_everyone(case: tuple[Config, TextData | PairData]) -> None:
    config, data = case
    model = trained(config, data)
    first, second = (evaluate(model, config, data, "valid", tokens=100) for _ in range(2))
    whole = evaluate(model, config, data, "valid")
    assert first is not None and second is not None and whole is not None
    assert first.loss == second.loss and first.tokens == second.tokens < whole.tokens


def test_it_leaves_the_random_states_alone(case: tuple[Config, TextData | PairData]) -> None:
    config, data = case
    model = trained(config, data)
    before = torch.get_rng_state()
    evaluate(model, config, data, "test", tokens=100)
    assert torch.equal(before, torch.get_rng_state())


def test_refused_before_a_batch_it_gives_nothing(text: TextData) -> None:
    answers = iter([True, False])
    model = trained(TEXT, text)
    short = TEXT.context * 400
    assert evaluate(model, TEXT, text, "train", tokens=short, go_on=lambda: next(answers)) is None
    assert model.training


def test_bits_and_words_are_counted_in_the_text(text: TextData) -> None:
    found = evaluate(trained(TEXT, text), TEXT, text, "valid")
    assert found is not None
    assert found.bits_per_character == pytest.approx(found.loss / math.log(2))  # one token a character


def test_figures_follow_from_sums() -> None:
    found = of_totals(nats=math.log(2) * 100, hits=25, tokens=50, characters=200, words=40, seconds=1.0)
    assert found.loss == pytest.approx(2 * math.log(2)) and found.perplexity == pytest.approx(4.0)
    assert found.bits_per_character == pytest.approx(0.5) and found.accuracy == 0.5
    assert found.nats_per_word == pytest.approx(2.5 * math.log(2))


def test_a_hopeless_loss_overflows_nothing() -> None:
    assert math.isfinite(of_totals(1e9, 0, 1, 1, 1, 0.0).perplexity)
    assert math.isnan(of_totals(float("nan"), 0, 1, 1, 1, 0.0).perplexity)
