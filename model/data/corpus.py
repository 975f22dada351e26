"""Corpora to learn from: pairs and text, from files or built in; no sentence of pairs is in two splits."""

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
"""Items to process at a time: what the tokenizers library returns for a text is many times as large as the text."""
PIECE = 1 << 20
"""About how many characters of a text to process at a time; bytes of a file to read at a time."""
T = TypeVar("T")


class ProgressBar(Protocol):
    """Passes on `total` items, and may show the progress of what they are `about`."""

    def __call__(self, items: Iterable[T], about: str, total: int) -> Iterable[T]: ...


def no_progress_bar(items: Iterable[T], about: str, total: int) -> Iterable[T]:
    """Pass on the items without showing any progress."""
    return items


def chunks(items: list[T], track: ProgressBar, about: str) -> Iterator[list[T]]:
    """Yield the items, CHUNK at a time."""
    for start in track(range(0, len(items), CHUNK), about, math.ceil(len(items) / CHUNK)):
        yield items[start : start + CHUNK]


CORPORA = ("text", "pairs")
"""Kinds of corpora that families learn from."""
PAIRS_FLAG = "--translation-corpus"
TEXT_FLAG = "--text-corpus"
LEAST_PAIRS = 256
LEAST_CHARACTERS = 8_192
BUILTIN_CHARACTERS = 4_000_000
HELD_OUT_SHARE = 0.05
LEAST_HELD_OUT = int(LEAST_CHARACTERS * HELD_OUT_SHARE)
"""Least characters of a held-out split: a shorter one may not have two tokens."""
HELD_OUT_PAIRS = 5_000
LEAST_HELD_OUT_PAIRS = 8
"""Fewest pairs of a held-out split, some less than the smallest corpus has: fewer tell no two models apart."""
LONGEST_CHARACTERS = 2_000
"""Most characters of a sentence, on either side: some 350 words. What is longer is hardly a sentence, and its attention
grows with the square."""

Pair = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class PairCorpus:
    """Pairs (source, target) of each split; too_long, bad_lines: how many of each were left out; cut: held-out splits
    of a dataset that are cut from train as it has too few pairs of its own for them."""

    name: str
    sha256: str
    builtin: bool
    train: list[Pair]
    valid: list[Pair]
    test: list[Pair]
    too_long: int = 0
    bad_lines: int = 0
    cut: tuple[str, ...] = ()


class Pieces(Protocol):
    """A text in pieces, which can be gone through again; its length is about their number."""

    def __iter__(self) -> Iterator[str]: ...

    def __len__(self) -> int: ...


Read = Callable[[int], Iterator[tuple[int, str]]]
"""Yields the pieces of a text from a place on, each with its own place: a byte of a file or a row of a dataset."""


class Text:
    """The characters from `first` to before `last` of a text, which is read again each time it is gone through.

    begins: of each piece, the characters before it and its place.
    """

    def __init__(self, read: Read, begins: Sequence[tuple[int, int]], first: int, last: int) -> None:
        self._read, self._begins, self._first, self._last = read, begins, first, last
        self._from = max(0, bisect_right(begins, (first, math.inf)) - 1)

    @classmethod
    def whole(cls, read: Read, track: ProgressBar = no_progress_bar, about: str = "", pieces: int = 0) -> "Text":
        """Return all of a text, which is read once to see how long it is."""
        begins, characters = [], 0
        for place, piece in track(read(0), about, pieces):
            begins.append((characters, place))
            characters += len(piece)
        return cls(read, begins, 0, characters)

    @property
    def characters(self) -> int:
        """Number of characters."""
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
        """Cut the text into train, then so many held-out parts of 5 % each."""
        begin = int(self.characters * (1 - held_out * HELD_OUT_SHARE))
        cuts = [0, *(begin + (self.characters - begin) * part // held_out for part in range(held_out + 1))]
        return [Text(self._read, self._begins, self._first + a, self._first + b) for a, b in pairwise(cuts)]

    def is_blank(self) -> bool:
        """Whether nothing is written in it."""
        return all(not piece or piece.isspace() for piece in self)


@dataclass(frozen=True, kw_only=True)
class TextCorpus:
    """Contiguous text: first 90 % train, next 5 % valid, last 5 % test (nanoGPT's validation split is valid + test).

    However long it is, only a piece of it is in memory at a time.
    """

    name: str
    sha256: str
    builtin: bool
    train: Pieces
    valid: Pieces
    test: Pieces


def load_pairs(path: Path | None, *, skip_bad_lines: bool = False, track: ProgressBar = no_progress_bar) -> PairCorpus:
    """Read `source<TAB>target[<TAB>ignored]` lines (None: the builtin grammar). UserError: what is wrong, and where.

    Pairs that are too long are left out after the split, so that the other pairs are where they would be with them.
    """
    if path is None:
        pairs = toy_corpus.pairs()
        name, text = "builtin English-Spanish grammar", "\n".join(map("\t".join, pairs))
        digest = hashlib.sha256(text.encode()).hexdigest()
    else:
        digest, text = _digest(path, PAIRS_FLAG), "".join(piece for _, piece in _pieces(path, PAIRS_FLAG))
        if not text.strip():
            raise _empty(path, PAIRS_FLAG)
        if "\t" not in text:
            remedy = "write each pair on a line as source<TAB>target (of two files: paste FILE.en FILE.es)"
            raise UserError(f"{PAIRS_FLAG}: {str(path)!r} has no tab between source and target: {remedy}")
        pairs = _parse(text, path, skip_bad_lines)
        name = path.name
    train, valid, test = map(short_pairs, split_pairs(pairs, track=track))
    left = len(train) + len(valid) + len(test)
    bad_lines = text.rstrip("\n").count("\n") + 1 - len(pairs)
    short = f" of at most {LONGEST_CHARACTERS:,} characters a side" if left < len(pairs) else ""
    if left < LEAST_PAIRS:
        beside = f" beside {bad_lines:,} bad lines" if bad_lines else ""
        raise UserError(
            f"{PAIRS_FLAG}: {str(path)!r} has {left} pairs{short}{beside}, fewer than a batch; "
            f"give a file of at least {LEAST_PAIRS} pairs"
        )
    if min(map(len, (train, valid, test))) < LEAST_HELD_OUT_PAIRS:
        raise UserError(
            f"{PAIRS_FLAG}: {str(path)!r} has too few distinct sentences{short} for train, valid and test, each of at "
            f"least {LEAST_HELD_OUT_PAIRS} pairs, to share none; give a file with more of them"
        )
    return PairCorpus(
        name=name,
        sha256=digest,
        builtin=path is None,
        too_long=len(pairs) - left,
        bad_lines=bad_lines,
        train=train,
        valid=valid,
        test=test,
    )


def short_pairs(pairs: list[Pair]) -> list[Pair]:
    """Return the pairs of which neither sentence is too long."""
    return [pair for pair in pairs if max(map(len, pair)) <= LONGEST_CHARACTERS]


def load_text(path: Path | None, *, track: ProgressBar = no_progress_bar) -> TextCorpus:
    """Look through a text file (None: the source of Python's standard library). UserError: what is wrong with it."""
    if path is None:
        source = _standard_library()
        name, digest = "builtin Python standard library", hashlib.sha256(source.encode()).hexdigest()
        text = Text.whole(lambda place: ((at, source[at : at + PIECE]) for at in range(place, len(source), PIECE)))
    else:
        name, digest = path.name, _digest(path, TEXT_FLAG)
        pieces = math.ceil(path.stat().st_size / PIECE)
        text = Text.whole(partial(_pieces, path, TEXT_FLAG), track, "reading", pieces)
        if text.is_blank():
            raise _empty(path, TEXT_FLAG)
    if text.characters < LEAST_CHARACTERS:
        raise UserError(
            f"{TEXT_FLAG}: {str(path)!r} has {text.characters} characters, fewer than a batch; "
            f"give a file of at least {LEAST_CHARACTERS} characters"
        )
    train, valid, test = text.cut()
    if valid.is_blank() or test.is_blank():
        raise UserError(
            f"{TEXT_FLAG}: {str(path)!r} has nothing but blanks in a half of its last tenth, on which models are "
            f"judged; cut off its blank end"
        )
    return TextCorpus(name=name, sha256=digest, builtin=path is None, train=train, valid=valid, test=test)


def normalised(sentence: str) -> str:
    """Return the form by which sentences are compared: lower case, NFC, single spaces, no punctuation at either end."""
    words = unicodedata.normalize("NFC", sentence.lower()).split()
    text = " ".join(words)
    first, last = 0, len(text)
    while first < last and not text[first].isalnum():
        first += 1
    while last > first and not text[last - 1].isalnum():
        last -= 1
    while last < len(text) and unicodedata.category(text[last])[0] == "M":  # a vowel sign is of the letter before it
        last += 1
    return text[first:last] or text


def split_pairs(pairs: list[Pair], *, held_out: int = 2, track: ProgressBar = no_progress_bar) -> list[list[Pair]]:
    """Split pairs into train and so many held-out splits; no normalised sentence of either language is in two of them.

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


def _components(pairs: list[Pair], track: ProgressBar) -> list[list[Pair]]:
    """Return the connected components of the graph of normalised sentences whose edges are pairs, by union-find."""
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
    """Return the sha256 of a file's bytes. UserError: it is a pipe or a device, or cannot be read."""
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


def _pieces(path: Path, flag: str, index: int = 0) -> Iterator[tuple[int, str]]:
    """Yield a file's text (NFC, LF) in pieces, each with its first byte, from a byte on that a piece begins at.

    Pieces are cut before a character that does not depend on the one before: none that NFC joins to that, no line end
    after `\\r`. UserError: the file is not UTF-8.
    """
    decoder, rest = codecs.getincrementaldecoder("utf-8")(), ""
    with path.open("rb") as file:
        file.seek(index)
        raw = file.read(PIECE)
        if index == 0 and raw.startswith(codecs.BOM_UTF8):
            index, raw = len(codecs.BOM_UTF8), raw[len(codecs.BOM_UTF8) :]
        while True:
            try:
                text = rest + decoder.decode(raw, final=not raw)
            except UnicodeDecodeError as error:
                good = index + len(rest.encode()) + error.start
                raise UserError(
                    f"{flag}: {str(path)!r} is not UTF-8 at line {_line(path, good)}; unpack it if it is packed, else "
                    f"convert it with iconv -f ENCODING -t UTF-8, where ENCODING is its own, such as LATIN1 or UTF-16"
                ) from None
            new = range(len(text) - 1, max(0, len(rest) - 1), -1)  # earlier places were tried with the last piece
            cut = next((at for at in new if _apart(text[at - 1], text[at])), 0) if raw else len(text)
            piece, rest = text[:cut], text[cut:]
            if piece:
                yield index, unicodedata.normalize("NFC", piece.replace("\r\n", "\n"))
                index += len(piece.encode())
            if not raw:
                return
            raw = file.read(PIECE)


def _apart(before: str, character: str) -> bool:
    """Whether text may be cut between two characters, so that NFC of the parts is that of the whole (UAX #15: before a
    starter whose quick check says yes)."""
    if character < "\x80":
        return before + character != "\r\n"
    starts = not unicodedata.combining(character) and character not in _joining()
    return starts and unicodedata.is_normalized("NFC", character)


@cache
def _joining() -> frozenset[str]:
    """Return what NFC may join to the character before it: second parts of compositions, Hangul vowels and finals."""
    parts = (unicodedata.decomposition(chr(code)).split() for code in range(0x80, 0x20000))  # beyond are ideographs
    seconds = (chr(int(each[1], 16)) for each in parts if len(each) == 2 and not each[0].startswith("<"))
    return frozenset([*seconds, *map(chr, range(0x1160, 0x1200))])


def _line(path: Path, byte: int) -> int:
    """Return the number of the line that a byte of a file is in."""
    with path.open("rb") as file:
        return 1 + sum(file.read(min(PIECE, byte - at)).count(b"\n") for at in range(0, byte, PIECE))


def _empty(path: Path, flag: str) -> UserError:
    return UserError(f"{flag}: {str(path)!r} is empty; give a file with text in it")


def _parse(text: str, path: Path, skip_bad_lines: bool) -> list[Pair]:
    """Return the pairs of all good lines. UserError: a line is bad, and bad lines are not to be skipped."""
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
    """Return the top-level ASCII modules of the running Python's standard library, in the order of their names."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    texts: list[str] = []
    characters = 0
    for path in sorted(folder.glob("*.py")):
        raw = path.read_bytes()
        if raw.isascii() and characters + len(raw) <= BUILTIN_CHARACTERS:
            texts.append(raw.decode("ascii"))
            characters += len(raw)
    return "\n".join(texts)
