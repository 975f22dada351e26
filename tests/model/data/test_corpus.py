"""Corpora: what is read is what is there, what is wrong is said, and no sentence stands in two splits."""

import os
import random
import shlex
import subprocess
import sys
import unicodedata
from collections import Counter
from pathlib import Path

import pytest

from model.data.corpus import (
    LEAST_PAIRS,
    LONGEST_CHARACTERS,
    Pair,
    PairCorpus,
    TextCorpus,
    load_pairs,
    load_text,
    normalised,
    short_pairs,
    split_pairs,
)
from model.data.toy_corpus import PAIRS

SPLITS = ("train", "valid", "test")
BUILTIN_PAIRS = "40067cd3f2152225ccf342714dabde76e46310671293cb016b096c3876b8bd42"


def tangled_pairs(count: int = 3000) -> list[Pair]:
    """Pairs whose sentences recur with other translations, other case and other punctuation."""
    chooser = random.Random(0)
    ends = ("", ".", "!", " .", "...")
    pairs = []
    for _ in range(count):
        english, spanish = chooser.randrange(count), chooser.randrange(count)
        source, target = f"we count {english}", f"¿contamos {spanish}"
        pairs.append((chooser.choice((source, source.upper(), "«" + source)) + chooser.choice(ends), target + "?"))
    return pairs + [(f"only {i}", f"solo {i}") for i in range(count)]


def write(path: Path, pairs: list[Pair]) -> Path:
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs), encoding="utf-8")
    return path


def sentences(pairs: list[Pair]) -> set[str]:
    return {normalised(sentence) for pair in pairs for sentence in pair}


def texts(corpus: TextCorpus) -> list[str]:
    """Of each split."""
    return ["".join(getattr(corpus, split)) for split in SPLITS]


def all_pairs(corpus: PairCorpus) -> list[Pair]:
    return corpus.train + corpus.valid + corpus.test


def test_no_sentence_stands_in_two_splits(tmp_path: Path) -> None:
    corpus = load_pairs(write(tmp_path / "pairs.txt", tangled_pairs()))
    train, valid, test = (sentences(getattr(corpus, split)) for split in SPLITS)
    assert train and valid and test
    assert not (train & valid or train & test or valid & test)


def test_splits_share_out_every_pair_once(tmp_path: Path) -> None:
    pairs = tangled_pairs()
    corpus = load_pairs(write(tmp_path / "pairs.txt", pairs))
    assert Counter(all_pairs(corpus)) == Counter(pairs)
    assert len(corpus.valid) <= len(pairs) // 20 and len(corpus.test) <= len(pairs) // 20
    assert len(corpus.valid) + len(corpus.test) > len(pairs) // 20


def test_splits_are_always_the_same_and_drawn_from_all_over_the_corpus() -> None:
    pairs = [(f"a {i}", f"b {i}") for i in range(1_000)]
    train, valid, test = split_pairs(pairs)
    assert [train, valid, test] == split_pairs(pairs)
    for held_out in (valid, test):
        places = [*map(pairs.index, held_out)]
        assert min(places) < 250 and max(places) > 750


def test_held_out_pairs_are_at_most_so_many_a_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("model.data.corpus.HELD_OUT_PAIRS", 50)
    assert [*map(len, split_pairs([(f"a {i}", f"b {i}") for i in range(1_200)]))] == [1_100, 50, 50]


@pytest.mark.parametrize(
    "same",
    [
        *(("Go.", "go"), ("¿Qué?", "QUÉ"), ("It's  so", "it's so!"), ("cafe\u0301", "CAFÉ"), ("«Ven»", "ven...")),
        *(("Go \u2764\ufe0f", "go"), ("की।", "की")),
    ],
)
def test_sentences_are_the_same_but_for_case_spaces_and_outer_punctuation(same: tuple[str, str]) -> None:
    assert normalised(same[0]) == normalised(same[1])
    assert normalised(normalised(same[0])) == normalised(same[0])


@pytest.mark.parametrize(
    "different", [("it's", "its"), ("que", "qué"), ("...", "!"), ("a b", "ab"), ("की", "का"), ("ปี", "ปิ")]
)
def test_other_sentences_are_different(different: tuple[str, str]) -> None:
    assert normalised(different[0]) != normalised(different[1])


def test_lines_are_read_literally(tmp_path: Path) -> None:
    filler = "".join(f"hello {i}\thola {i}\n" for i in range(LEAST_PAIRS))
    path = tmp_path / "pairs.txt"
    path.write_bytes(("\ufeff" + '"Go," he\t"Ve"\tCC-BY #1\r\nCafe\u0301\tCafé\u2028uno\n' + filler + "\n\n").encode())
    pairs = all_pairs(load_pairs(path))
    assert ('"Go," he', '"Ve"') in pairs and ("Café", "Café\u2028uno") in pairs
    assert len(pairs) == LEAST_PAIRS + 2
    assert all(unicodedata.is_normalized("NFC", source + target) for source, target in pairs)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ("no tab", "line 3 has no tab"),
        ("\tonly target", "line 3 has nothing"),
        ("only source\t ", "line 3 has nothing"),
        ("", "line 3 has no tab"),
    ],
)
def test_bad_lines_are_named_or_left_out(tmp_path: Path, bad: str, said: str) -> None:
    lines = [f"hello {i}\thola {i}" for i in range(400)]
    lines[2:2] = [bad]
    lines[300:300] = [bad]
    path = tmp_path / "pairs.txt"
    path.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(ValueError, match=said) as error:
        load_pairs(path)
    assert all(part in str(error.value) for part in ("--translation-corpus", "pairs.txt", "--skip-bad-lines"))
    corpus = load_pairs(path, skip_bad_lines=True)
    assert len(all_pairs(corpus)) == 400 and corpus.bad_lines == 2
    path.write_text("\n".join([bad, *lines[:9]]), encoding="utf-8")
    with pytest.raises(ValueError, match=" has 8 pairs beside 2 bad lines, fewer than a batch;"):
        load_pairs(path, skip_bad_lines=True)


@pytest.mark.parametrize("skip_bad_lines", [False, True])
@pytest.mark.parametrize("line", ["How are you?", '"How are you?","¿Qué tal?"', '{"en": "So it goes.", "es": "\\t"}'])
def test_a_file_without_tabs_is_told_what_pairs_are(line: str, skip_bad_lines: bool, tmp_path: Path) -> None:
    """As one side of Moses' two files, CSV and JSONL, of which no line is to be skipped."""
    (path := tmp_path / "corpus.en").write_text(f"{line}\n" * 400)
    with pytest.raises(ValueError, match=r"'.*corpus.en' has no tab .* write .* as source<TAB>target") as error:
        load_pairs(path, skip_bad_lines=skip_bad_lines)
    assert "--skip-bad-lines" not in str(error.value)


def test_pairs_that_are_too_long_are_left_out_and_counted_and_the_others_stay_in_their_splits(tmp_path: Path) -> None:
    longest, longer = "a" * LONGEST_CHARACTERS, "a" * (LONGEST_CHARACTERS + 1)
    pairs = [*tangled_pairs(500), (longest, "justa"), (longer, "larga"), ("long", longer)]
    corpus = load_pairs(write(tmp_path / "pairs.txt", pairs))
    assert corpus.too_long == 2 and Counter(all_pairs(corpus)) == Counter(pairs[:-2])
    splits = split_pairs(pairs)
    assert [short_pairs(split) for split in splits] == [getattr(corpus, name) for name in SPLITS]


BOTH = [
    (None, "cannot be read"),
    (b"", "is empty"),
    (b"a\tb\n\xff", "not UTF-8 at line 2"),
    (b"a\tb\n", "fewer than a ba"),
]
"""What neither can be made of."""
NO_TEXT = [(b"to be or not to be\n" * 3_000 + b"\n" * 60_000, "nothing but blanks .* judged; cut off its blank end")]
NO_PAIRS = [
    (b" \n\n", "is empty"),
    (b"a\tb\n" * 1000, "too few distinct sentences for train, .* share none"),
    (b"a\tb\n" * 1000 + b"".join(b"c%d\td%d\n" % (i, i) for i in range(55)), "at least 8 pairs, to share none"),
    (
        b"".join(b"c%d\td%d\n" % (i, i) if i < 260 else b"e%d\t%s%d\n" % (i, b"f" * 2001, i) for i in range(1300)),
        "too few distinct sentences of at most 2,000 characters a side for train",
    ),
    (b"a\t" + b"b" * 9_999 + b"\n", "0 pairs of at most .*fewer"),
]


@pytest.mark.parametrize(
    ("load", "flag", "content", "said"),
    [*((load_text, "--text-corpus", *each) for each in BOTH + NO_TEXT),
     *((load_pairs, "--translation-corpus", *each) for each in BOTH + NO_PAIRS)],
)  # fmt: skip
def test_a_file_that_cannot_serve_is_refused(load, flag, content, said, tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=said) as error:
        load(path)
    assert str(error.value).startswith(f"{flag}: ") and "file.txt" in str(error.value)


def test_a_folder_is_no_corpus(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        load_text(tmp_path)


def test_a_pipe_is_no_corpus() -> None:
    """It can be read once."""
    reading, writing = os.pipe()
    os.write(writing, b"some text\n")
    os.close(writing)
    with pytest.raises(ValueError, match="no file but a pipe"):
        load_text(Path(f"/dev/fd/{reading}"))
    os.close(reading)


@pytest.mark.parametrize("end", ["\n", ""])
def test_a_text_without_ascii_is_read_some_of_it_at_a_time_too(
    end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "".join(f"{'大' * (1 + number % 7)}か\u3099{end}" for number in range(2_000))
    (path := tmp_path / "text.txt").write_bytes(text.encode())
    monkeypatch.setattr("model.data.corpus.PIECE", 100)
    corpus = load_text(path)
    splits = [[*getattr(corpus, name)] for name in SPLITS]
    assert "".join(map("".join, splits)) == unicodedata.normalize("NFC", text)
    assert max(len(piece) for split in splits for piece in split) <= 100


def test_the_hash_is_of_the_files_bytes(tmp_path: Path) -> None:
    one = write(tmp_path / "one.txt", tangled_pairs())
    other = write(tmp_path / "other.txt", [*tangled_pairs(), ("one", "more")])
    assert load_pairs(one).sha256 != load_pairs(other).sha256
    assert load_pairs(one).sha256 == load_text(one).sha256


def test_the_builtin_pairs_are_always_the_same_and_each_split_has_its_part() -> None:
    """Losses on them are compared over versions and machines, and their grammar was read once: a digest keeps both. No
    sentence holds together so many others that held-out splits stay small."""
    corpus = load_pairs(None)
    assert corpus.sha256 == BUILTIN_PAIRS
    assert len(corpus.valid) == len(corpus.test) == PAIRS // 20 and corpus.too_long == 0


def test_the_builtin_text_is_the_standard_librarys_own() -> None:
    corpus = load_text(None)
    train, valid, test = texts(corpus)
    assert corpus.builtin and [train, valid, test] == texts(load_text(None))
    assert 1_000_000 < len(train) < 4_000_000
    assert len(set(train)) <= 256
    source = (Path(random.__file__)).read_text(encoding="utf-8")
    assert not source.isascii() or source in train + valid + test


def test_long_chains_of_shared_sentences_are_one_component() -> None:
    length = sys.getrecursionlimit() * 3
    chain = [(f"a {i // 2}", f"b {(i + 1) // 2}") for i in range(length)]
    loose = [(f"c {i}", f"d {i}") for i in range(length)]
    train, valid, test = split_pairs(chain + loose)
    assert set(chain) <= set(train)
    assert not set(chain) & set(valid + test)


@pytest.mark.parametrize("piece", [4, 7, 64, 1 << 20])
def test_a_text_is_the_same_however_much_of_it_is_read_at_a_time(
    piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [
        "cafe\u0301",
        "\r\n",
        "\r",
        "\n",
        " ",
        "\u1100\u1161\u11a8",
        "\u0301\u0323",
        "😀",
        "a",
        "é",
        "\u2028",
        "한글",
        *("가\u11a8", "\u09c7\u09be", "か\u3099", "\u0958", "\u2126", "\uf900", "\u0344", "\u0f71\u0f72", "\u0f73"),
        *"\u1161\u11a8\u09be\u0bd7\u0338=",
    ]
    raw = "".join(random.Random(0).choices(words, k=8_000))
    path = tmp_path / "text.txt"
    path.write_bytes(b"\xef\xbb\xbf" + raw.encode())
    monkeypatch.setattr("model.data.corpus.PIECE", piece)
    train, valid, test = texts(corpus := load_text(path))
    whole = unicodedata.normalize("NFC", raw.replace("\r\n", "\n"))
    assert train + valid + test == whole and train == whole[: int(len(whole) * 0.9)]
    assert abs(len(valid) - len(test)) <= 1
    assert not corpus.builtin and corpus.name == "text.txt"
    assert [train, valid, test] == texts(corpus)


def test_the_line_that_is_not_utf_8_is_told_however_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("model.data.corpus.PIECE", 7)
    path = tmp_path / "text.txt"
    path.write_bytes("uno é dos\n".encode() * 1_000 + b"\xc3(\n")
    with pytest.raises(ValueError, match="is not UTF-8 at line 1001;"):
        load_text(path)


@pytest.mark.parametrize("encoding", ["LATIN1", "UTF-16"])
def test_what_is_not_utf_8_is_so_after_the_remedy_that_is_told(encoding: str, tmp_path: Path) -> None:
    text = "uno é dos\n" * 2_000
    (path := tmp_path / "text.txt").write_bytes(text.encode(encoding))
    with pytest.raises(ValueError, match=rf"is not UTF-8 .*\b{encoding}\b") as error:
        load_text(path)
    remedy = str(error.value).split("convert it with ")[1].split(",")[0].replace("ENCODING", encoding)
    path.write_bytes(subprocess.run([*shlex.split(remedy), path], check=True, capture_output=True).stdout)
    assert "".join(texts(load_text(path))) == text
