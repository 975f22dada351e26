"""BLEU is of the same sentences for every model, from the first to the last of the test split."""

import pytest

from model.config import Config, build_model
from model.data.dataset import PairData
from model.data.tokenizer import Tokenizer
from model.training import evaluation as bleu
from model.training.evaluation import CHUNK, chunks, score, translated, translated_of


def references(config: Config, data: PairData) -> list[str]:
    """Of all chunks; as many as are announced, none longer than CHUNK."""
    tokenizer = Tokenizer.from_json(data.tokenizer)
    model = build_model(config, vocabulary=tokenizer.vocabulary, pad=data.pad).eval()
    found = list(translated(model, tokenizer, data))
    assert len(found) == chunks(data) and all(0 < len(chunk) <= CHUNK for chunk in found)
    return [reference for chunk in found for _, reference in chunk]


def test_every_model_translates_the_same_sentences_of_the_test_split(
    small_pairs: Config, pair_data: PairData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bleu, "SENTENCES", 2 * CHUNK + 1)
    found = references(small_pairs, pair_data)
    assert len(found) == 2 * CHUNK + 1
    test, tokenizer = pair_data.test.target, Tokenizer.from_json(pair_data.tokenizer)
    ends = (test.tokens[: test.offsets[1]], test.tokens[test.offsets[-2] :])
    assert [found[0], found[-1]] == [tokenizer.decode(ids[1:-1].tolist()) for ids in ends]
    assert references(small_pairs, pair_data) == found


def test_a_small_split_is_translated_whole(pair_data: PairData) -> None:
    assert (chunks(pair_data) - 1) * CHUNK < len(pair_data.test) <= chunks(pair_data) * CHUNK


def test_as_many_sentences_of_another_split_as_are_asked_for(small_pairs: Config, pair_data: PairData) -> None:
    tokenizer = Tokenizer.from_json(pair_data.tokenizer)
    model = build_model(small_pairs, vocabulary=tokenizer.vocabulary, pad=pair_data.pad).eval()
    found = [pair for chunk in translated_of(model, tokenizer, pair_data, pair_data.valid, 5) for pair in chunk]
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
