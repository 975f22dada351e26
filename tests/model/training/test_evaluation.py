"""An evaluation: the same for everyone who asks for the same, and true to its definition; BLEU is of the same sentences
for every model, from the first to the last of the test split.
"""

import json
import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from model.config import Config, build_model
from model.data import batches
from model.data.batches import IGNORED, evaluation_batches, span
from model.data.dataset import PairData, TextData
from model.data.tokenizer import Tokenizer
from model.families import FAMILIES
from model.training import evaluation
from model.training.evaluation import CHUNK, chunk_count, evaluate, score, translate_in_chunks
from tests.cuda.fake_cuda import CPU, CUDA, fake_cuda
from tune.reports import Evaluation


def trained(config: Config, data: TextData | PairData) -> torch.nn.Module:
    torch.manual_seed(0)
    model = build_model(config, vocabulary=data.vocabulary, pad=getattr(data, "pad", 0))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


@pytest.fixture(params=["text", "pairs"])
def case(request: pytest.FixtureRequest, small: dict[str, tuple]) -> tuple[Config, TextData | PairData]:
    config, data = small[request.param]
    return replace(config, dropout=0.5), data


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


def test_the_subset_is_the_same_for_everyone_and_random_states_are_left_alone(
    case: tuple[Config, TextData | PairData],
) -> None:
    config, data = case
    model = trained(config, data)
    before = torch.get_rng_state()
    first, second = (evaluate(model, config, data, "valid", tokens=100) for _ in range(2))
    whole = evaluate(model, config, data, "valid")
    assert first is not None and second is not None and whole is not None
    assert first.loss == second.loss and first.tokens == second.tokens < whole.tokens
    assert torch.equal(before, torch.get_rng_state())


def test_the_blocks_of_test_add_up_to_it_and_are_the_same_for_every_model(
    case: tuple[Config, TextData | PairData],
) -> None:
    """So that two models can be compared block by block."""
    config, data = case
    one, other = (evaluate(trained(each, data), each, data, "test") for each in (config, replace(config, layers=1)))
    assert one is not None and other is not None and one.blocks is not None and other.blocks is not None
    first, second = json.loads(one.blocks), json.loads(other.blocks)
    assert len(first) == len(second) and first != second
    assert sum(first) == pytest.approx(one.loss * one.tokens, rel=1e-4)


def test_on_a_gpu_the_blocks_of_test_are_those_of_a_cpu_in_larger_batches(
    case: tuple[Config, TextData | PairData], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, data = case
    monkeypatch.setattr(batches, "EVALUATION_TOKENS", 128)
    model, told, counts = trained(config, data), list[list[float]](), list[int]()
    with fake_cuda():
        for device in (CUDA, CPU):
            made = FAMILIES[config.family].evaluation_batches(config, data, "test", None, device)
            counts.append(sum(1 for _ in made))
            found = evaluate(model.to(device), config, data, "test", device=device)
            assert found is not None and found.blocks is not None
            told.append(json.loads(found.blocks))
    assert counts[0] <= counts[1] / 4 and len(told[0]) == len(told[1]) == counts[1]
    assert told[0] == pytest.approx(told[1], rel=1e-3)


def test_refused_before_a_batch_it_gives_nothing(small_text: Config, text_data: TextData) -> None:
    answers = iter([True, False])
    model = trained(small_text, text_data)
    tokens = small_text.context * 400
    assert evaluate(model, small_text, text_data, "train", tokens=tokens, go_on=lambda: next(answers)) is None
    assert model.training


def test_figures_a_character_and_a_word_are_counted_in_the_text(small_text: Config, text_data: TextData) -> None:
    found = evaluate(trained(small_text, text_data), small_text, text_data, "valid")
    assert found is not None
    assert found.bits_per_character == pytest.approx(found.loss / math.log(2))  # one token a character
    words = span(text_data, "valid", None, context=small_text.context).words
    assert found.nats_per_word == pytest.approx(found.loss * found.tokens / words)


def test_a_hopeless_loss_overflows_nothing() -> None:
    assert math.isfinite(Evaluation(loss=1e9).perplexity) and math.isnan(Evaluation(loss=math.nan).perplexity)


def references(config: Config, data: PairData) -> list[str]:
    """Of all chunks; as many as are announced, none longer than CHUNK."""
    model, tokenizer = trained(config, data).eval(), Tokenizer.from_json(data.tokenizer)
    found = list(translate_in_chunks(model, tokenizer, data, data.test, evaluation.SENTENCES))
    assert len(found) == chunk_count(data) and all(0 < len(chunk) <= CHUNK for chunk in found)
    return [reference for chunk in found for _, reference in chunk]


def test_every_model_translates_the_same_sentences_of_the_test_split(
    small_pairs: Config, pair_data: PairData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "SENTENCES", 2 * CHUNK + 1)
    found = references(small_pairs, pair_data)
    assert len(found) == 2 * CHUNK + 1
    test, tokenizer = pair_data.test.target, Tokenizer.from_json(pair_data.tokenizer)
    ends = (test.tokens[: test.offsets[1]], test.tokens[test.offsets[-2] :])
    assert [found[0], found[-1]] == [tokenizer.decode(ids[1:-1].tolist()) for ids in ends]
    assert references(small_pairs, pair_data) == found


def test_a_small_split_is_translated_whole(pair_data: PairData) -> None:
    assert (chunk_count(pair_data) - 1) * CHUNK < len(pair_data.test) <= chunk_count(pair_data) * CHUNK


def test_as_many_sentences_of_another_split_as_are_asked_for(small_pairs: Config, pair_data: PairData) -> None:
    model, tokenizer = trained(small_pairs, pair_data).eval(), Tokenizer.from_json(pair_data.tokenizer)
    found = [pair for chunk in translate_in_chunks(model, tokenizer, pair_data, pair_data.valid, 5) for pair in chunk]
    valid = pair_data.valid.target
    first = tokenizer.decode(valid.tokens[: valid.offsets[1]][1:-1].tolist())
    assert len(found) == 5 and found[0][1] == first


def test_a_translation_that_is_its_reference_has_the_highest_score() -> None:
    sentences = ["Tengo un gato negro en casa .", "No lo sé , pero lo sabré mañana ."]
    best = score([(sentence, sentence) for sentence in sentences])
    worse = score([(sentences[0], sentences[0]), ("Lo sabré mañana .", sentences[1])])
    none = score([("x", sentence) for sentence in sentences])
    assert best.bleu == pytest.approx(100) and best.chrf == pytest.approx(100)
    assert best.bleu > worse.bleu > none.bleu and best.chrf > worse.chrf > none.chrf
    assert best.sentences == 2 and "nrefs:1" in best.signature


@pytest.mark.parametrize(
    "sentence",
    [
        *("我们的老师今天没有来上课。", "今日は 先生が学校に来ませんでした。", "วันนี้ครูของเราไม่มาโรงเรียน"),
        "老师今天没有来、 所以 Tom 很高兴、 但是 我们都回家了。",
    ],
)
def test_a_translation_into_a_script_without_spaces_is_scored_by_its_characters(sentence: str) -> None:
    """Else a clause with one wrong sign is one wrong word."""
    near = score([(sentence[:3] + "x" + sentence[4:], sentence)] * 3)
    assert 50 < near.bleu < 100 and "tok:char" in near.signature
    assert score([(sentence, sentence), (sentence[::-1], sentence)]).bleu < near.bleu


def test_a_translation_of_a_word_or_two_is_scored_by_its_words() -> None:
    for sentence in ("Buenos días.", "Guten Morgen.", "Доброе утро."):
        assert "tok:13a" in score([(sentence, sentence)] * 3).signature
