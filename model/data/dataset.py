"""A corpus as token numbers, made once and shared read-only by all trials."""

import hashlib
import json
import re
import sys
import tempfile
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path

import numpy as np

from model.data.corpus import PIECE, Pair, PairCorpus, ProgressBar, TextCorpus, chunks, no_progress_bar
from model.data.packing import Rows, Shape, pack, row_shape
from model.data.stored import Stored, write
from model.data.tokenizer import MOST_CHARACTERS, CharacterTokenizer, SubwordTokenizer, Tokenizer, in_lines
from tune.errors import UserError

SHORT_TEXT = 1 << 24
"""Most characters of a text with a token for each character. A longer text gets tokens of several, however few
different characters it has: with so much text the context is to reach far, and an epoch to end. nanoGPT, too, reads 1
MB by character and gigabytes in larger tokens."""
SAMPLE_CHARACTERS = 1 << 26
"""Most characters to learn a vocabulary from. Of a longer corpus, evenly spread pieces of at least half as many are
taken: more would change only the rarest tokens, and not fit in memory."""
SAMPLE_BYTES = 1 << 23
"""Most bytes of rare words in these pieces: the library needs a hundred times as much memory for different words, as
most words are in a script without spaces."""
FIRST_CLASS = 0xE000
"""Code point of a class's token: the first behind the surrogates, of which JSON makes one character of two."""
MOST_CLASSES = sys.maxunicode - FIRST_CLASS + 2
"""All code points from there on, and the unknown character."""
LONG_WORD = 32
"""Characters above which a word counts as rare."""
LEARNED_CHARACTERS = 1_000
"""Most characters without a space to learn a vocabulary from at a time: the library's time grows with the square."""
SMALL_CORPUS_PAIRS = 500_000
SMALL_VOCABULARY = 4_096
LARGE_VOCABULARY = 8_192


@dataclass(frozen=True, kw_only=True)
class Sentences:
    """Sentences as tokens: sentence i is `tokens[offsets[i]:offsets[i + 1]]`, tokens uint16, offsets int64."""

    tokens: np.ndarray
    offsets: np.ndarray

    def tokens_of(self, number: int) -> np.ndarray:
        """Return the tokens of a sentence."""
        return self.tokens[self.offsets[number] : self.offsets[number + 1]]


@dataclass(frozen=True, kw_only=True)
class PairSplit:
    """The pairs of one split, each target between bos and eos; characters and words of each target, int32."""

    source: Sentences
    target: Sentences
    characters: np.ndarray
    words: np.ndarray

    def __len__(self) -> int:
        return len(self.words)

    @property
    def lengths(self) -> np.ndarray:
        """(pairs, 2): tokens of the source, and those of the target that are predicted, which end with eos."""
        return np.stack([np.diff(self.source.offsets), np.diff(self.target.offsets) - 1], axis=1)


@dataclass(frozen=True, kw_only=True)
class PairData(Stored):
    """Tokenized pairs; tokenizer: as JSON, with the tokens of the longest source that is trained on; row: source and
    target tokens of a row; rows: the training pairs of each row; too_long, bad_lines, cut: as of PairCorpus.
    """

    name: str
    sha256: str
    builtin: bool
    tokenizer: str
    vocabulary: int
    pad: int
    row: Shape
    rows: Rows
    train: PairSplit
    valid: PairSplit
    test: PairSplit
    too_long: int = 0
    bad_lines: int = 0
    cut: tuple[str, ...] = ()

    @cached_property
    def training_tokens(self) -> int:
        """Target tokens of the training split."""
        return int(self.train.lengths[:, 1].sum())


def fewer_pairs(data: PairData, pairs: int) -> PairData:
    """Return the same data with so many of its training pairs, evenly spread over all of them."""
    kept = np.unique(np.linspace(0, len(data.train) - 1, min(pairs, len(data.train))).astype(int))
    train = PairSplit(
        source=_some(data.train.source, kept), target=_some(data.train.target, kept),
        characters=data.train.characters[kept], words=data.train.words[kept],
    )  # fmt: skip
    return replace(data, train=train, rows=pack(train.lengths, data.row))


def _some(sentences: Sentences, kept: np.ndarray) -> Sentences:
    return _sentences([(sentences.tokens_of(number),) for number in kept])


@dataclass(frozen=True, kw_only=True)
class TokenCounts:
    """What each token spells (V,): its characters, the words that begin inside it, and whether it begins or ends with a
    space. A character of several bytes counts where it begins; one that is split over tokens is not seen as a space."""

    characters: np.ndarray
    words: np.ndarray
    begins: np.ndarray
    ends: np.ndarray

    @classmethod
    def of_tokenizer(cls, tokenizer: Tokenizer) -> "TokenCounts":
        """Return the counts of a tokenizer's tokens."""
        pieces = tokenizer.token_bytes()
        texts = [piece.decode(errors="replace") for piece in pieces]
        return cls(
            characters=np.array([sum(byte & 0xC0 != 0x80 for byte in piece) for piece in pieces]),
            words=np.array([*map(count_words, texts)]),
            begins=np.array([text[:1].isspace() for text in texts]),
            ends=np.array([text[-1:].isspace() for text in texts]),
        )

    def count(self, before: np.ndarray, tokens: np.ndarray) -> tuple[int, int]:
        """Return the characters of tokens (N,), and how many words begin in them; before (N,): the token before
        each."""
        parted = self.ends[before] & ~self.begins[tokens]
        return int(self.characters[tokens].sum()), int(self.words[tokens].sum() + parted.sum())


@dataclass(frozen=True, kw_only=True)
class TextData(Stored):
    """Tokenized text, one uint16 array a split; tokenizer: as JSON."""

    name: str
    sha256: str
    builtin: bool
    tokenizer: str
    vocabulary: int
    train: np.ndarray
    valid: np.ndarray
    test: np.ndarray

    @property
    def training_tokens(self) -> int:
        """Tokens of the training split."""
        return len(self.train)

    @cached_property
    def token_counts(self) -> TokenCounts:
        """What each token spells."""
        return TokenCounts.of_tokenizer(Tokenizer.from_json(self.tokenizer))

    @property
    def unknown_share(self) -> float:
        """Share of the validation split's tokens that stand for an unknown character."""
        unknown = Tokenizer.from_json(self.tokenizer).unknown
        return 0.0 if unknown is None else float(np.mean(self.valid == unknown))


@dataclass(frozen=True, kw_only=True)
class OwnData(Stored):
    """Data that a user's own family reads itself, such as images: an array of records a split, one target a record.

    vocabulary: number of classes of a target; name, sha256 and builtin are set by the caller of `Family.read`.
    UserError: there are more classes than a winner's tokenizer can name.
    """

    name: str = ""
    sha256: str = ""
    builtin: bool = False
    vocabulary: int
    train: np.ndarray
    valid: np.ndarray
    test: np.ndarray

    def __post_init__(self) -> None:
        object.__setattr__(self, "vocabulary", int(self.vocabulary))  # NumPy's integers are no JSON
        if self.vocabulary > MOST_CLASSES:
            raise UserError(f"vocabulary: {self.vocabulary:,} classes: at most {MOST_CLASSES:,}; write fewer")

    @property
    def training_tokens(self) -> int:
        """Targets of the training split."""
        return len(self.train)

    @property
    def tokenizer(self) -> str:
        """A tokenizer with a token for each class, as JSON, so that a winner is kept like any other."""
        return CharacterTokenizer("".join(map(chr, range(FIRST_CLASS, FIRST_CLASS + self.vocabulary - 1)))).to_json()

    def digest(self) -> str:
        """Return the sha256 of the splits."""
        whole = hashlib.sha256()
        for split in (self.train, self.valid, self.test):
            whole.update(f"{len(split)} {split.dtype}".encode())
            whole.update(np.ascontiguousarray(split).view(np.uint8).data)
        return whole.hexdigest()


def prepare_pairs(corpus: PairCorpus, track: ProgressBar = no_progress_bar) -> PairData:
    """Learn one vocabulary for both languages from a sample of the training split, and tokenize all splits with it."""
    pairs = len(corpus.train) + len(corpus.valid) + len(corpus.test)
    parts = chunks(corpus.train, track, "learning a vocabulary")
    texts = ("".join(f"{sentence}\n" for pair in part for sentence in pair) for part in parts)
    _, _, sample = _looked_through(text[at : at + PIECE] for text in texts for at in range(0, len(text), PIECE))
    tokenizer = _subwords(sample, SMALL_VOCABULARY if pairs < SMALL_CORPUS_PAIRS else LARGE_VOCABULARY, marks=True)
    assert tokenizer.pad is not None
    train, valid, test = (_pair_split(split, tokenizer, track) for split in (corpus.train, corpus.valid, corpus.test))
    row = row_shape(train.lengths)
    rows = pack(train.lengths, row)
    longest = {"longest": int(train.lengths[rows.pairs, 0].max())}
    return PairData(
        name=corpus.name,
        sha256=corpus.sha256,
        builtin=corpus.builtin,
        tokenizer=json.dumps(json.loads(tokenizer.to_json()) | longest),
        vocabulary=tokenizer.vocabulary,
        pad=tokenizer.pad,
        row=row,
        rows=rows,
        train=train,
        valid=valid,
        test=test,
        too_long=corpus.too_long,
        bad_lines=corpus.bad_lines,
        cut=corpus.cut,
    )


def prepare_text(corpus: TextCorpus, track: ProgressBar = no_progress_bar, folder: Path | None = None) -> TextData:
    """Tokenize text: by character where the training split is short and has few different ones, else by byte-level BPE
    learned from it.

    The tokens are written to the folder as they come, and mapped into memory from there; None: to a temporary one.
    """
    length, characters, sample = _looked_through(track(corpus.train, "learning a vocabulary", len(corpus.train)))
    tokenizer: Tokenizer
    if length <= SHORT_TEXT and len(characters) <= MOST_CHARACTERS:
        tokenizer = CharacterTokenizer("".join(characters))
    else:
        tokenizer = _subwords(sample, LARGE_VOCABULARY, marks=False)
    with tempfile.TemporaryDirectory(prefix="ration-") if folder is None else nullcontext(folder) as place:
        train, valid, test = (
            write(
                Path(place, f"{name}.npy"),
                tokenizer.stream(track(getattr(corpus, name), "tokenizing", len(getattr(corpus, name)))), np.uint16,
            )
            for name in ("train", "valid", "test")
        )  # fmt: skip
    return TextData(
        name=corpus.name,
        sha256=corpus.sha256,
        builtin=corpus.builtin,
        tokenizer=tokenizer.to_json(),
        vocabulary=tokenizer.vocabulary,
        train=train,
        valid=valid,
        test=test,
    )


def count_words(text: str) -> int:
    """Return how many words begin after the text's first character."""
    return len(re.findall(r"(?<=\s)\S", text))


def _looked_through(pieces: Iterable[str]) -> tuple[int, set[str], list[str]]:
    """Return a text's length, its different characters (all where they are few), and every 2^n-th piece as a sample."""
    characters: set[str] = set()
    sample: list[str] = []
    rare: list[int] = []
    length, every = 0, 1
    for number, piece in enumerate(pieces):
        length += len(piece)
        if len(characters) <= MOST_CHARACTERS:
            characters.update(piece)
        if number % every == 0:
            sample.append(piece)
            rare.append(_rare_bytes(piece))
            if sum(map(len, sample)) > SAMPLE_CHARACTERS or sum(rare) > SAMPLE_BYTES:
                sample, rare, every = sample[::2], rare[::2], 2 * every
    return length, characters, sample


def _rare_bytes(piece: str) -> int:
    """Return the bytes of a piece's different words, without short ASCII words, which are frequent."""
    words = {word for word in piece.split() if len(word) > LONG_WORD or not word.isascii()}
    return len("".join(words).encode())


def _subwords(sample: list[str], vocabulary: int, *, marks: bool) -> SubwordTokenizer:
    """Learn at most `vocabulary` tokens, marks included, from the lines of a text's pieces."""
    lines = chain.from_iterable(in_lines(sample))
    return SubwordTokenizer.train(chain.from_iterable(map(_learned, lines)), vocabulary, marks=marks)


def _learned(line: str) -> list[str]:
    """Return a line to learn from, cut into parts where it has words that are too long."""
    long = any(len(word) > LEARNED_CHARACTERS for word in line.split())
    return re.split(rf"(\S{{{LEARNED_CHARACTERS}}})", line) if long else [line]


def _pair_split(pairs: list[Pair], tokenizer: SubwordTokenizer, track: ProgressBar) -> PairSplit:
    marks = np.array([[tokenizer.bos], [tokenizer.eos]], dtype=np.uint16)
    sources, targets = [], []
    for chunk in chunks(pairs, track, "tokenizing"):
        ids = tokenizer.encode_all([source for source, _ in chunk])
        sources.append(_sentences([(each,) for each in ids]))
        ids = tokenizer.encode_all([target for _, target in chunk])
        targets.append(_sentences([(marks[0], each, marks[1]) for each in ids]))
    return PairSplit(
        source=_joined(sources),
        target=_joined(targets),
        characters=np.array([len(target) for _, target in pairs], dtype=np.int32),
        words=np.array([len(target.split()) for _, target in pairs], dtype=np.int32),
    )


def _sentences(parts: list[tuple[np.ndarray, ...]]) -> Sentences:
    """Join the parts of each sentence."""
    lengths = np.array([sum(map(len, sentence)) for sentence in parts], dtype=np.int64)
    tokens = np.concatenate([part for sentence in parts for part in sentence])
    return Sentences(tokens=tokens, offsets=_offsets(lengths))


def _joined(chunks: list[Sentences]) -> Sentences:
    """Join the sentences of all chunks."""
    lengths = np.concatenate([np.diff(chunk.offsets) for chunk in chunks])
    return Sentences(tokens=np.concatenate([chunk.tokens for chunk in chunks]), offsets=_offsets(lengths))


def _offsets(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)])
