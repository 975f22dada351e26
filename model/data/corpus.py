"""Texts to learn from: pairs and text, from files or made up, split so that no sentence is in two splits."""

import codecs
import hashlib
import math
import random
import sysconfig
import unicodedata
from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Protocol, TypeVar

from model.data import toy_corpus
from tune.errors import UserError

CHUNK = 10_000
"""Items that are worked on at a time: what the tokenizers library tells of a text is many times as large as it."""
PIECE = 1 << 20
"""Characters of a text that are worked on at a time, about; of a file, bytes that are read at a time."""
T = TypeVar("T")


class Track(Protocol):
    """Goes through `total` items, and may show how far it has come with what it is `about`."""

    def __call__(self, items: Iterable[T], about: str, total: int) -> Iterable[T]: ...


def untracked(items: Iterable[T], about: str, total: int) -> Iterable[T]:
    """Shows nothing."""
    return items


def chunks(items: list[T], track: Track, about: str) -> Iterator[list[T]]:
    """The items, CHUNK at a time."""
    for start in track(range(0, len(items), CHUNK), about, math.ceil(len(items) / CHUNK)):
        yield items[start : start + CHUNK]


CORPORA = ("text", "pairs")
"""What families learn from."""
PAIRS_FLAG = "--translation-corpus"
TEXT_FLAG = "--text-corpus"
LEAST_PAIRS = 256
LEAST_CHARACTERS = 8_192
BUILTIN_CHARACTERS = 4_000_000
HELD_OUT_SHARE = 0.05
LEAST_HELD_OUT = int(LEAST_CHARACTERS * HELD_OUT_SHARE)
"""Characters of a part to be judged on, of which a shorter one may have not two tokens."""
HELD_OUT_PAIRS = 5_000
LONGEST_CHARACTERS = 2_000
"""Of a sentence, on either side: some 350 words. What is longer is hardly one, and its attention grows with the
square."""

Pair = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class PairCorpus:
    """Pairs (English, Spanish) of each split; so many were left out as `too_long`."""

    name: str
    sha256: str
    builtin: bool
    train: list[Pair]
    valid: list[Pair]
    test: list[Pair]
    too_long: int = 0


class Pieces(Protocol):
    """A text, some of it at a time, as often as it is asked for; as many pieces as its length says, about."""

    def __iter__(self) -> Iterator[str]: ...

    def __len__(self) -> int: ...


Read = Callable[[int], Iterator[tuple[int, str]]]
"""From any of its places on, the pieces of a text, each with its place: a byte of a file, a row of a dataset."""


class Text:
    """The characters from `first` to before `last` of a text that is read again whenever it is gone through.

    begins: of each piece, the characters before it and its place.
    """

    def __init__(self, read: Read, begins: Sequence[tuple[int, int]], first: int, last: int) -> None:
        self._read, self._begins, self._first, self._last = read, begins, first, last
        self._from = max(0, bisect_right(begins, (first, math.inf)) - 1)

    @classmethod
    def whole(cls, read: Read, track: Track = untracked, about: str = "", pieces: int = 0) -> "Text":
        """All of it, gone through once to see how long it is."""
        begins, characters = [], 0
        for place, piece in track(read(0), about, pieces):
            begins.append((characters, place))
            characters += len(piece)
        return cls(read, begins, 0, characters)

    @property
    def characters(self) -> int:
        """How many."""
        return self._last - self._first

    def __len__(self) -> int:
        return max(0, bisect_left(self._begins, (self._last, -1)) - self._from)

    def __iter__(self) -> Iterator[str]:
        if not self.characters:
            return
        at, place = self._begins[self._from]
        for _, piece in self._read(place):
            yield piece[max(0, self._first - at) : self._last - at]
            at += len(piece)
            if at >= self._last:
                return

    def cut(self, held_out: int = 2) -> list["Text"]:
        """In order: train, then so many equal parts of 5 % each."""
        begin = int(self.characters * (1 - held_out * HELD_OUT_SHARE))
        cuts = [0, *(begin + (self.characters - begin) * part // held_out for part in range(held_out + 1))]
        return [Text(self._read, self._begins, self._first + a, self._first + b) for a, b in pairwise(cuts)]

    def blank(self) -> bool:
        """Whether nothing is written in it."""
        return all(not piece or piece.isspace() for piece in self)


@dataclass(frozen=True, kw_only=True)
class TextCorpus:
    """Contiguous text: first 90 % train, next 5 % valid, last 5 % test (nanoGPT's validation split is valid + test).

    However long it is, some of it is in memory at a time.
    """

    name: str
    sha256: str
    builtin: bool
    train: Pieces
    valid: Pieces
    test: Pieces


def load_pairs(
    path: Path | None,
    *,
    skip_bad_lines: bool = False,
    track: Track = untracked,
) -> PairCorpus:
    """Read `source<TAB>target[<TAB>ignored]` lines (None: the builtin grammar); UserError says what is wrong where.

    What is too long is left out of the splits: they are those of the whole file, less that.
    """
    if path is None:
        pairs = toy_corpus.pairs()
        name, text = "builtin English-Spanish grammar", "\n".join(map("\t".join, pairs))
        digest = hashlib.sha256(text.encode()).hexdigest()
    else:
        digest, text = _digest(path, PAIRS_FLAG), "".join(piece for _, piece in _pieces(path, PAIRS_FLAG))
        if not text.strip():
            raise _empty(path, PAIRS_FLAG)
        pairs = _parse(text, path, skip_bad_lines)
        name = path.name
    train, valid, test = map(short_pairs, split_pairs(pairs, track=track))
    left = len(train) + len(valid) + len(test)
    if left < LEAST_PAIRS:
        short = f" of at most {LONGEST_CHARACTERS:,} characters a side" if left < len(pairs) else ""
        raise UserError(
            f"{PAIRS_FLAG}: {str(path)!r} has {left} pairs{short}, fewer than a batch; "
            f"give a file of at least {LEAST_PAIRS} pairs"
        )
    if not (train and valid and test):
        raise UserError(
            f"{PAIRS_FLAG}: {str(path)!r} repeats its sentences so much that train, valid and test would "
            f"share some; give a file with more distinct sentences"
        )
    return PairCorpus(
        name=name,
        sha256=digest,
        builtin=path is None,
        too_long=len(pairs) - left,
        train=train,
        valid=valid,
        test=test,
    )


def short_pairs(pairs: list[Pair]) -> list[Pair]:
    """Those of which neither sentence is too long."""
    return [pair for pair in pairs if max(map(len, pair)) <= LONGEST_CHARACTERS]


def load_text(path: Path | None, *, track: Track = untracked) -> TextCorpus:
    """Look through a text file (None: the source text of Python's standard library); UserError says what is wrong."""
    if path is None:
        source = _standard_library()
        name, digest = "builtin Python standard library", hashlib.sha256(source.encode()).hexdigest()
        text = Text.whole(lambda place: ((at, source[at : at + PIECE]) for at in range(place, len(source), PIECE)))
    else:
        name, digest = path.name, _digest(path, TEXT_FLAG)
        pieces = math.ceil(path.stat().st_size / PIECE)
        text = Text.whole(partial(_pieces, path, TEXT_FLAG), track, "reading", pieces)
        if text.blank():
            raise _empty(path, TEXT_FLAG)
    if text.characters < LEAST_CHARACTERS:
        raise UserError(
            f"{TEXT_FLAG}: {str(path)!r} has {text.characters} characters, fewer than a batch; "
            f"give a file of at least {LEAST_CHARACTERS} characters"
        )
    train, valid, test = text.cut()
    if valid.blank() or test.blank():
        raise UserError(
            f"{TEXT_FLAG}: {str(path)!r} has nothing but blanks in a half of its last tenth, on which models are "
            f"judged; cut off its blank end"
        )
    return TextCorpus(name=name, sha256=digest, builtin=path is None, train=train, valid=valid, test=test)


def normalised(sentence: str) -> str:
    """What makes two sentences the same: lower case, NFC, single spaces, no punctuation or symbol at either end."""
    words = unicodedata.normalize("NFC", sentence.lower()).split()
    text = " ".join(words)
    first, last = 0, len(text)
    while first < last and not text[first].isalnum():
        first += 1
    while last > first and not text[last - 1].isalnum():
        last -= 1
    return text[first:last] or text


def split_pairs(pairs: list[Pair], *, held_out: int = 2, track: Track = untracked) -> list[list[Pair]]:
    """Train and so many held-out splits, such that no normalised sentence of either language stands in two of them.

    Pairs that share a sentence, directly or through others, form a component; components are shuffled and dealt whole.
    """
    components = _components(pairs, track)
    random.Random(0).shuffle(components)
    share = min(int(len(pairs) * HELD_OUT_SHARE), HELD_OUT_PAIRS)
    train: list[Pair] = []
    others: list[list[Pair]] = [[] for _ in range(held_out)]
    for component in components:
        home = next((split for split in others if len(split) + len(component) <= share), train)
        home.extend(component)
    return [train, *others]


def _components(pairs: list[Pair], track: Track) -> list[list[Pair]]:
    """Connected components of the graph of normalised sentences whose edges are pairs, by union-find."""
    numbers: dict[str, int] = {}
    parent = array("q")

    def number(sentence: str) -> int:
        found = numbers.setdefault(normalised(sentence), len(parent))
        if found == len(parent):
            parent.append(found)
        return found

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    sources = array("q")
    for chunk in chunks(pairs, track, "splitting"):
        for source, target in chunk:
            sources.append(number(source))
            parent[root(sources[-1])] = root(number(target))
    members: dict[int, list[Pair]] = defaultdict(list)
    for source_number, pair in zip(sources, pairs, strict=True):
        members[root(source_number)].append(pair)
    return list(members.values())


def _digest(path: Path, flag: str) -> str:
    """The sha256 of a file's bytes."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise UserError(
            f"{flag}: {str(path)!r} is no file but a pipe or a device, and is read twice; write it to a file"
        )
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(
            f"{flag}: {str(path)!r} cannot be read ({error.strerror}); give the path of a text file"
        ) from None


def _pieces(path: Path, flag: str, place: int = 0) -> Iterator[tuple[int, str]]:
    """The file's text (NFC, LF) from a byte on that an earlier piece began at, in pieces with the byte of each.

    They are cut before a character that nothing before it changes: none of what joins in NFC, no line end after `\\r`.
    """
    decoder, rest = codecs.getincrementaldecoder("utf-8")(), ""
    with path.open("rb") as file:
        file.seek(place)
        raw = file.read(PIECE)
        if place == 0 and raw.startswith(codecs.BOM_UTF8):
            place, raw = len(codecs.BOM_UTF8), raw[len(codecs.BOM_UTF8) :]
        while True:
            try:
                text = rest + decoder.decode(raw, final=not raw)
            except UnicodeDecodeError as error:
                good = place + len(rest.encode()) + error.start
                raise UserError(
                    f"{flag}: {str(path)!r} is not UTF-8 at line {_line(path, good)}; convert it, for example with "
                    f"iconv -t UTF-8"
                ) from None
            new = range(len(text) - 1, max(0, len(rest) - 1), -1)  # before there is no place for a cut
            cut = next((at for at in new if _apart(text[at - 1], text[at])), 0) if raw else len(text)
            piece, rest = text[:cut], text[cut:]
            if piece:
                yield place, unicodedata.normalize("NFC", piece.replace("\r\n", "\n"))
                place += len(piece.encode())
            if not raw:
                return
            raw = file.read(PIECE)


def _apart(before: str, character: str) -> bool:
    """Whether text may be cut between both: NFC of the parts is then that of the whole (UAX #15: a starter whose quick
    check says yes)."""
    if character < "\x80":
        return before + character != "\r\n"
    starts = not unicodedata.combining(character) and character not in _joining()
    return starts and unicodedata.is_normalized("NFC", character)


@cache
def _joining() -> frozenset[str]:
    """What NFC may join to a character before it: the second of two that make a third, vowels and ends of Hangul."""
    parts = (unicodedata.decomposition(chr(code)).split() for code in range(0x80, 0x20000))  # beyond are ideographs
    seconds = (chr(int(each[1], 16)) for each in parts if len(each) == 2 and not each[0].startswith("<"))
    return frozenset([*seconds, *map(chr, range(0x1160, 0x1200))])


def _line(path: Path, byte: int) -> int:
    """The line that a byte of a file is in."""
    with path.open("rb") as file:
        return 1 + sum(file.read(min(PIECE, byte - at)).count(b"\n") for at in range(0, byte, PIECE))


def _empty(path: Path, flag: str) -> UserError:
    return UserError(f"{flag}: {str(path)!r} is empty; give a file with text in it")


def _parse(text: str, path: Path, skip_bad_lines: bool) -> list[Pair]:
    """Pairs of the good lines."""
    pairs: list[Pair] = []
    for number, line in enumerate(text.rstrip("\n").split("\n"), start=1):
        source, tab, rest = line.partition("\t")
        target = rest.split("\t")[0].strip()
        if tab and source.strip() and target:
            pairs.append((source.strip(), target))
        elif not skip_bad_lines:
            rule = "has nothing on one side of its tab" if tab else "has no tab between source and target"
            raise UserError(f"{PAIRS_FLAG}: {str(path)!r}: line {number} {rule}; correct it or pass --skip-bad-lines")
    return pairs


def _standard_library() -> str:
    """The top-level ASCII modules of the running Python's standard library in the order of their names."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    texts: list[str] = []
    characters = 0
    for path in sorted(folder.glob("*.py")):
        raw = path.read_bytes()
        if raw.isascii() and characters + len(raw) <= BUILTIN_CHARACTERS:
            texts.append(raw.decode("ascii"))
            characters += len(raw)
    return "\n".join(texts)
