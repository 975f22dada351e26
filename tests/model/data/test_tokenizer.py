"""Tokenizers: text to ids and back without loss, the same after a trip through JSON."""

import json
import random
import tracemalloc
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

from model.config import Data
from model.data import dataset
from model.data.corpus import TextCorpus, load_text
from model.data.dataset import LEARNED_CHARACTERS, SMALL_VOCABULARY, count_words, prepare_text
from model.data.tokenizer import UNKNOWN_CHARACTER, CharacterTokenizer, SubwordTokenizer, Tokenizer
from tests.model.conftest import prepared_pairs
from tune.errors import UserError

TRAINED_ON = ["The boy does not eat.", "El niño no come.", "¿Qué come la niña?", "What does the girl eat?"] * 20


def wild_texts(count: int = 300) -> list[str]:
    """Texts of any characters but surrogates, seen in training or not."""
    chooser = random.Random(0)
    pools = [
        "abc no come ",
        " \t\n\r\u2028\u00a0",
        "<pad><bos></s>[UNK]Ġ",
        "éñ¿¡e\u0301",
        "日本語😀\u200d",
        "\x00\x7f\ufffd",
    ]
    return [
        "".join(chooser.choices(chooser.choice(pools) + chooser.choice(pools), k=chooser.randrange(40)))
        for _ in range(count)
    ] + ["", *TRAINED_ON, *pools]


@pytest.fixture(scope="module", params=[True, False], ids=["marks", "no marks"])
def subwords(request: pytest.FixtureRequest) -> SubwordTokenizer:
    return SubwordTokenizer.train(TRAINED_ON, 320, marks=request.param)


@pytest.fixture(scope="module")
def characters() -> CharacterTokenizer:
    return CharacterTokenizer("".join(wild_texts()))


def test_decoding_undoes_encoding(subwords: SubwordTokenizer, characters: CharacterTokenizer) -> None:
    for tokenizer in (subwords, characters):
        for text in wild_texts():
            ids = tokenizer.encode(text)
            assert tokenizer.decode(ids) == text
            assert all(0 <= i < tokenizer.vocabulary for i in ids)


def test_encoding_many_is_encoding_each(subwords: SubwordTokenizer, characters: CharacterTokenizer) -> None:
    texts = wild_texts()
    for tokenizer in (subwords, characters):
        arrays = tokenizer.encode_all(texts)
        assert [array.tolist() for array in arrays] == [tokenizer.encode(text) for text in texts]
        assert all(array.dtype == np.uint16 for array in arrays)


def test_tokens_are_those_that_the_library_has_of_the_whole_text() -> None:
    spaces = "\t\n\v\f\r \x1c\x1f\x85\xa0\u1680\u2000\u200b\u2028\u202f\u3000\ufeff"
    pools = [spaces, "'sdmtlvre ", "a1.' ", "é²中—\u0301٣", "".join(map(chr, range(128)))]
    chooser = random.Random(0)
    texts = ["".join(chooser.choices("".join(chooser.sample(pools, 2)), k=chooser.randrange(30))) for _ in range(4_000)]
    tokenizer = SubwordTokenizer.train(texts, 4_000, marks=False)
    library = tokenizers.Tokenizer.from_str(json.dumps(json.loads(tokenizer.to_json())["bpe"]))
    for text, ids in zip(texts, tokenizer.encode_all(texts), strict=True):
        assert ids.tolist() == library.encode(text).ids, text


def test_json_brings_back_the_same_tokenizer(subwords: SubwordTokenizer, characters: CharacterTokenizer) -> None:
    for tokenizer in (subwords, characters):
        again = Tokenizer.from_json(tokenizer.to_json())
        assert type(again) is type(tokenizer) and again.to_json() == tokenizer.to_json()
        for name in ("vocabulary", "pad", "bos", "eos", "unknown"):
            assert getattr(again, name) == getattr(tokenizer, name)
        assert [again.encode(text) for text in wild_texts()] == [tokenizer.encode(text) for text in wild_texts()]


def test_no_text_spells_a_mark_and_marks_say_nothing() -> None:
    tokenizer = SubwordTokenizer.train(["<pad> <bos> <eos>"] * 9, 300, marks=True)
    marks = {tokenizer.pad, tokenizer.bos, tokenizer.eos}
    assert len(marks) == 3 and None not in marks
    assert not marks & set(tokenizer.encode("<pad> <bos> <eos> [PAD]"))
    ids = tokenizer.encode("<bos>")
    assert tokenizer.decode([tokenizer.bos or 0, *ids, tokenizer.eos or 0, tokenizer.pad or 0]) == "<bos>"


def test_characters_never_seen_are_one_unknown_token() -> None:
    tokenizer = CharacterTokenizer("hello")
    assert tokenizer.vocabulary == 5 and tokenizer.unknown == 4
    assert tokenizer.encode("hé\U0001f600!") == [tokenizer.encode("h")[0], 4, 4, 4]
    assert tokenizer.decode(tokenizer.encode("hé")) == "h" + UNKNOWN_CHARACTER


def text_corpus(train: str) -> TextCorpus:
    return TextCorpus(name="text", sha256="", builtin=False, train=[train], valid=[train[:99]], test=[train[-99:]])


@pytest.mark.parametrize(("alphabet", "kind"), [(256, CharacterTokenizer), (257, SubwordTokenizer)])
def test_a_text_of_few_characters_is_read_by_character(alphabet: int, kind: type[Tokenizer]) -> None:
    train = "".join(chr(0x4E00 + i) for i in range(alphabet)) * 20
    data = prepare_text(text_corpus(train * 3))
    tokenizer = Tokenizer.from_json(data.tokenizer)
    assert isinstance(tokenizer, kind) and data.vocabulary == tokenizer.vocabulary
    assert tokenizer.decode(data.train) == train * 3


@pytest.mark.parametrize(("length", "kind"), [(3_000, CharacterTokenizer), (3_001, SubwordTokenizer)])
def test_a_long_text_is_read_in_longer_tokens(length: int, kind: type[Tokenizer], monkeypatch: Any) -> None:
    monkeypatch.setattr("model.data.dataset.SHORT_TEXT", 3_000)
    text = ("to be or not to be, " * 200)[:length]
    data = prepare_text(replace(text_corpus("a"), train=[text[:2_000], text[2_000:]]))
    assert isinstance(tokenizer := Tokenizer.from_json(data.tokenizer), kind) and tokenizer.decode(data.train) == text


def test_the_vocabulary_is_learned_from_the_training_split_only() -> None:
    data = prepare_text(replace(text_corpus("abc" * 999), valid=["abz"], test=["yca"]))
    assert data.vocabulary == 4 and data.valid.tolist()[-1] == data.test.tolist()[0] == 3
    pairs = [(f"one {i}", f"uno {i}") for i in range(500)]
    one, other = (prepared_pairs(pairs, valid, pairs[:9]) for valid in (pairs[:9], [("quixotic", "cebra")] * 99))
    assert one.tokenizer == other.tokenizer


@pytest.mark.parametrize("longest", [40, 1 << 16])
def test_tokens_are_the_same_wherever_the_pieces_of_a_text_are_cut(
    longest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("model.data.tokenizer.LONGEST_LINE", longest)
    chooser = random.Random(0)
    signs = [chr(0x4E00 + i) for i in range(300)]
    text = "".join(chooser.choices([*signs, " ", "word ", "\n", "\r\n", "x" * 50, "\u2028"], k=5_000))
    cuts = sorted(chooser.sample(range(len(text)), 300))
    corpus = replace(text_corpus(text), valid=["".join(signs)])
    one, other = (
        prepare_text(replace(corpus, train=train))
        for train in ([text], [text[first:last] for first, last in pairwise([0, *cuts, len(text)])])
    )
    assert one.tokenizer == other.tokenizer and np.array_equal(one.train, other.train)
    assert isinstance(tokenizer := Tokenizer.from_json(one.tokenizer), SubwordTokenizer)
    assert tokenizer.decode(one.train) == text


@pytest.mark.parametrize(("alphabet", "new"), [(100, False), (400, True)])
def test_no_more_memory_is_taken_of_a_longer_text(
    alphabet: int, new: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is read and prepared, though all its words are new."""
    for name in ("corpus", "tokenizer"):
        monkeypatch.setattr(f"model.data.{name}.PIECE", 1 << 12)
    monkeypatch.setattr("model.data.tokenizer.KNOWN_CHARACTERS", 1 << 12)
    monkeypatch.setattr("model.data.dataset.SAMPLE_CHARACTERS", 1 << 14)
    monkeypatch.setattr("model.data.dataset.LARGE_VOCABULARY", 700)
    signs = [chr(0x4E00 + i) for i in range(alphabet)]
    lines = ["".join(signs[first : first + 3]) + "abc\n" for first in range(alphabet)]
    path, peaks = tmp_path / "text.txt", []
    for times in (8_000, 8_000, 48_000):  # the first: what the libraries keep
        text = random.Random(0).choices(lines, k=times)
        path.write_text("".join(f"{i}{line}" if new else line for i, line in enumerate(text)), encoding="utf-8")
        del text
        tracemalloc.start()
        prepare_text(load_text(path), folder=tmp_path)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    longer = path.stat().st_size * 5 / 6
    assert longer > 500_000 and peaks[2] - peaks[1] < longer / 8


@pytest.mark.parametrize("kind", ["text", "pairs"])
@pytest.mark.parametrize(
    ("limit", "most", "letters"),
    [("CHARACTERS", 8_000, "abcdefghijklmnopqrstuvwxyz"), ("BYTES", 900 + 8 * 40, "àáâãäåæçèéêëìíîïñòóôõöùúûü")],
    ids=["characters", "words that differ"],
)
def test_the_vocabulary_of_a_long_corpus_is_learned_from_all_over_it(
    limit: str, most: int, letters: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"model.data.dataset.SAMPLE_{limit}", most)
    signs = "".join(chr(0x4E00 + i) for i in range(300))
    words = ["".join(random.Random(i).choices(letters, k=20)) for i in range(100)]
    if kind == "text":
        data: Data = prepare_text(replace(text_corpus("a"), train=[signs, *words_of(words)]))
    else:
        monkeypatch.setattr("model.data.corpus.CHUNK", 24)
        train = [(signs, "a")] + [("a", "a")] * 23 + [(word, word) for word in words for _ in range(24)]
        data = prepared_pairs(train, train[:1], train[:1])
    tokenizer = Tokenizer.from_json(data.tokenizer)
    known = [place for place, word in enumerate(words) if len(tokenizer.encode(word)) == 1]
    assert 4 <= len(known) <= 8 and np.diff(known).max() < 40 and known[-1] > 60


def test_what_has_no_space_is_learned_from_in_parts_and_words_that_have_are_learned_from_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The library takes the square of a word's length; what is learned of ordinary texts is the same."""
    seen: list[str] = []

    def train(texts: Iterable[str], vocabulary: int, *, marks: bool) -> SubwordTokenizer:
        seen[:] = texts
        return library(seen, vocabulary, marks=marks)

    library = SubwordTokenizer.train
    monkeypatch.setattr(SubwordTokenizer, "train", train)
    monkeypatch.setattr("model.data.dataset.SHORT_TEXT", 0)
    lines = ["to be or not\n", "x" * LEARNED_CHARACTERS + " y\n"] * 9
    runs = ["AC" * (3 * LEARNED_CHARACTERS), f"an {'T' * (2 * LEARNED_CHARACTERS)}\n"]
    data = prepare_text(text_corpus("".join(lines + runs)))
    assert seen[: len(lines)] == lines and "".join(seen) == "".join(lines + runs)
    assert max(len(word) for part in seen for word in part.split()) == LEARNED_CHARACTERS
    assert Tokenizer.from_json(data.tokenizer).decode(data.train) == "".join(lines + runs)


def words_of(words: list[str]) -> list[str]:
    """A piece of 1,000 characters of each."""
    return [f"{word}\n" * (1_000 // (len(word) + 1)) for word in words]


@pytest.mark.parametrize("chunk", [7, 10_000])
def test_pairs_keep_their_sentences_and_counts(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr("model.data.corpus.CHUNK", chunk)
    pairs = [(f"the boy {i}", f"¿el niño {i}?") for i in range(300)]
    data = prepared_pairs(pairs, pairs[:50], pairs[50:80])
    tokenizer = Tokenizer.from_json(data.tokenizer)
    assert data.pad == tokenizer.pad
    assert data.vocabulary <= SMALL_VOCABULARY
    for split, expected in ((data.train, pairs), (data.valid, pairs[:50]), (data.test, pairs[50:80])):
        sides = []
        for side in (split.source, split.target):
            assert side.tokens.dtype == np.uint16
            sides.append([side.tokens[begin:end] for begin, end in zip(side.offsets, side.offsets[1:], strict=False)])
        assert [tuple(map(tokenizer.decode, both)) for both in zip(*sides, strict=True)] == expected
        assert all(target[0] == tokenizer.bos and target[-1] == tokenizer.eos for target in sides[1])
        assert split.lengths.tolist() == [[len(source), len(target) - 1] for source, target in zip(*sides, strict=True)]
        assert split.characters.tolist() == [len(target) for _, target in expected] and set(split.words) == {3}


@pytest.mark.parametrize(("text", "words"), [("a b c", 2), (" a b c", 3), ("abc", 0), ("\n a\nb ", 2), ("", 0)])
def test_words_count_where_they_begin(text: str, words: int) -> None:
    assert count_words(text) == words


@pytest.mark.parametrize("classes", [2, 56_322, 70_000])
def test_a_familys_own_data_has_a_token_for_each_class(classes: int) -> None:
    assert Tokenizer.from_json(classified(classes).tokenizer).vocabulary == classes


def test_there_are_no_more_classes_than_characters_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last five: to write down all takes seconds."""
    monkeypatch.setattr(dataset, "FIRST_CLASS", dataset.FIRST_CLASS + dataset.MOST_CLASSES - 5)
    monkeypatch.setattr(dataset, "MOST_CLASSES", 5)
    assert Tokenizer.from_json(classified(5).tokenizer).vocabulary == 5
    with pytest.raises(UserError, match=r"^vocabulary: 6 classes: at most 5; write fewer$"):
        classified(6)


def classified(classes: int) -> dataset.OwnData:
    none = np.zeros(0)
    return dataset.OwnData(vocabulary=classes, train=none, valid=none, test=none)
