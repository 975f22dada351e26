"""A corpus as token numbers: made once a study, then shared read-only by all of its trials."""

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from model.corpus import Pair, PairCorpus, TextCorpus
from model.shapes import Shape, choose_shapes
from model.tokenizer import MOST_CHARACTERS, CharacterTokenizer, SubwordTokenizer, Tokenizer

SMALL_CORPUS_PAIRS = 500_000
SMALL_VOCABULARY = 4_096
LARGE_VOCABULARY = 8_192


@dataclass(frozen=True, kw_only=True)
class Sentences:
    """Sentence i is `tokens[offsets[i]:offsets[i + 1]]`: tokens uint16, offsets int64."""

    tokens: np.ndarray
    offsets: np.ndarray


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
        """(pairs, 2): tokens of the source, and of the target with its eos: those that are predicted."""
        return np.stack([np.diff(self.source.offsets), np.diff(self.target.offsets) - 1], axis=1)


@dataclass(frozen=True, kw_only=True)
class PairData:
    """Tokenized pairs; `tokenizer` is its JSON, `shapes` the static (source, target) lengths for training."""

    name: str
    sha256: str
    builtin: bool
    tokenizer: str
    vocabulary: int
    pad: int
    bos: int
    eos: int
    shapes: list[Shape]
    train: PairSplit
    valid: PairSplit
    test: PairSplit
    family: str = "translation"

    @property
    def training_tokens(self) -> int:
        """Target tokens of the training split."""
        return int(self.train.lengths[:, 1].sum())


@dataclass(frozen=True, kw_only=True)
class TextData:
    """Tokenized text, one uint16 array a split; `tokenizer` is its JSON."""

    name: str
    sha256: str
    builtin: bool
    tokenizer: str
    vocabulary: int
    train: np.ndarray
    valid: np.ndarray
    test: np.ndarray
    family: str = "nanogpt"

    @property
    def training_tokens(self) -> int:
        """Tokens of the training split."""
        return len(self.train)

    @cached_property
    def held_out(self) -> np.ndarray:
        """The last 10 % of the text: nanoGPT's validation split."""
        return np.concatenate([self.valid, self.test])


def prepare_pairs(corpus: PairCorpus) -> PairData:
    """Learn one vocabulary for both languages from the training split, tokenize all splits."""
    pairs = len(corpus.train) + len(corpus.valid) + len(corpus.test)
    tokenizer = SubwordTokenizer.train(
        (sentence for pair in corpus.train for sentence in pair),
        SMALL_VOCABULARY if pairs < SMALL_CORPUS_PAIRS else LARGE_VOCABULARY, marks=True)
    assert tokenizer.pad is not None and tokenizer.bos is not None and tokenizer.eos is not None
    train = _pair_split(corpus.train, tokenizer)
    return PairData(
        name=corpus.name, sha256=corpus.sha256, builtin=corpus.builtin, tokenizer=tokenizer.to_json(),
        vocabulary=tokenizer.vocabulary, pad=tokenizer.pad, bos=tokenizer.bos, eos=tokenizer.eos,
        shapes=choose_shapes(train.lengths), train=train,
        valid=_pair_split(corpus.valid, tokenizer), test=_pair_split(corpus.test, tokenizer),
    )


def prepare_text(corpus: TextCorpus) -> TextData:
    """Characters where the training split has few different ones, else byte-level BPE learned from it."""
    characters = set(corpus.train)
    tokenizer: Tokenizer
    if len(characters) <= MOST_CHARACTERS:
        tokenizer = CharacterTokenizer("".join(characters))
    else:
        tokenizer = SubwordTokenizer.train(corpus.train.splitlines(keepends=True), LARGE_VOCABULARY, marks=False)
    train, valid, test = (np.concatenate(tokenizer.encode_all(text.splitlines(keepends=True)))
                          for text in (corpus.train, corpus.valid, corpus.test))
    return TextData(
        name=corpus.name, sha256=corpus.sha256, builtin=corpus.builtin, tokenizer=tokenizer.to_json(),
        vocabulary=tokenizer.vocabulary, train=train, valid=valid, test=test,
    )


def count_words(text: str) -> int:
    """Words that begin after the text's first character."""
    return len(re.findall(r"(?<=\s)\S", text))


def _pair_split(pairs: list[Pair], tokenizer: SubwordTokenizer) -> PairSplit:
    marks = np.array([[tokenizer.bos], [tokenizer.eos]], dtype=np.uint16)
    targets = tokenizer.encode_all([target for _, target in pairs])
    return PairSplit(
        source=_sentences([(ids,) for ids in tokenizer.encode_all([source for source, _ in pairs])]),
        target=_sentences([(marks[0], ids, marks[1]) for ids in targets]),
        characters=np.array([len(target) for _, target in pairs], dtype=np.int32),
        words=np.array([len(target.split()) for _, target in pairs], dtype=np.int32),
    )


def _sentences(parts: list[tuple[np.ndarray, ...]]) -> Sentences:
    """From the parts of each sentence."""
    offsets = np.zeros(len(parts) + 1, dtype=np.int64)
    np.cumsum([sum(map(len, sentence)) for sentence in parts], out=offsets[1:])
    return Sentences(tokens=np.concatenate([part for sentence in parts for part in sentence]), offsets=offsets)
