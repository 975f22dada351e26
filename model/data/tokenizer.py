"""Text to token numbers and back, exactly: single characters, or byte-level BPE by the tokenizers library."""

import json
import re
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Iterator

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from model.data.corpus import PIECE

LONGEST_LINE = 1 << 16
"""Most characters of a line that is tokenized whole: longer ones are cut, so that a text without line ends fits in
memory."""
WORD = re.compile(
    r"'(?:[sdmt]|ll|ve|re)| ?(?:[A-Za-z]++|[0-9]++|[!-/:-@\[-`{-~]++)(?![^\t-\r -~])"
    r"| ?[\S\x1c-\x1f]+|[^\S\x1c-\x1f]+(?![\S\x1c-\x1f])|[^\S\x1c-\x1f]+"
)
"""Splits a text only where the library's pre-tokenizer does too: ASCII by the library's own pattern, and anything that
touches other characters only at spaces. No token spans such a split."""
KNOWN_CHARACTERS = 1 << 22
"""Characters of the words whose tokens are cached: some 60 MB."""
MOST_CHARACTERS = 256
UNKNOWN_CHARACTER = "\ufffd"


class Tokenizer(ABC):
    """Turns text into numbers below `vocabulary`; pad, bos, eos and unknown are None where there is no such token."""

    vocabulary: int
    pad: int | None = None
    bos: int | None = None
    eos: int | None = None
    unknown: int | None = None

    @abstractmethod
    def encode_all(self, texts: list[str]) -> list[np.ndarray]:
        """Return the tokens of each text as a uint16 array, without bos and eos."""

    @abstractmethod
    def stream(self, pieces: Iterable[str]) -> Iterator[np.ndarray]:
        """Yield the tokens of a text in pieces, as uint16 arrays that follow one another."""

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of the ids; pad, bos and eos give nothing."""

    @abstractmethod
    def token_bytes(self) -> list[bytes]:
        """Return what each token spells, in UTF-8; characters of several bytes may be cut."""

    @abstractmethod
    def to_json(self) -> str:
        """Return all that `from_json` needs."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of one text, without bos and eos."""
        ids: list[int] = self.encode_all([text])[0].tolist()
        return ids

    @staticmethod
    def from_json(text: str) -> "Tokenizer":
        """Return the tokenizer that `to_json` described. ValueError, LookupError: the JSON is damaged."""
        facts = json.loads(text)
        if facts["kind"] == "characters":
            return CharacterTokenizer(facts["characters"])
        try:
            bpe = tokenizers.Tokenizer.from_str(json.dumps(facts["bpe"]))
        except Exception as error:  # the library raises no other
            raise ValueError(f"no tokenizer of bytes: {error}") from error
        return SubwordTokenizer(bpe, marks=facts["marks"])


class CharacterTokenizer(Tokenizer):
    """A token for each listed character, and one for all characters that are not listed."""

    def __init__(self, characters: str) -> None:
        self.characters = "".join(sorted(set(characters)))
        self.unknown = len(self.characters)
        self.vocabulary = self.unknown + 1
        self._codes = _code_points(self.characters)

    def encode_all(self, texts: list[str]) -> list[np.ndarray]:
        return [self._look_up(_code_points(text)) for text in texts]

    def stream(self, pieces: Iterable[str]) -> Iterator[np.ndarray]:
        return (self._look_up(_code_points(piece)) for piece in pieces)

    def _look_up(self, codes: np.ndarray) -> np.ndarray:
        places = np.searchsorted(self._codes, codes).clip(max=len(self._codes) - 1)
        return np.where(self._codes[places] == codes, places, len(self.characters)).astype(np.uint16)

    def decode(self, ids: Iterable[int]) -> str:
        known = np.append(self._codes, np.uint32(ord(UNKNOWN_CHARACTER)))
        return known[np.fromiter(ids, dtype=np.int64)].tobytes().decode("utf-32-le", "surrogatepass")

    def token_bytes(self) -> list[bytes]:
        return [each.encode(errors="surrogatepass") for each in self.characters + UNKNOWN_CHARACTER]

    def to_json(self) -> str:
        return json.dumps({"kind": "characters", "characters": self.characters})


_SEEN_AS_THEY_ARE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_BYTE_OF = {chr(byte): byte for byte in _SEEN_AS_THEY_ARE}
_BYTE_OF |= {chr(256 + n): byte for n, byte in enumerate(sorted({*range(256)}.difference(_SEEN_AS_THEY_ARE)))}
"""Byte that a character in a token of byte-level BPE stands for: bytes that are not visible characters have those
behind the first 256, as in GPT-2's code."""


class SubwordTokenizer(Tokenizer):
    """Byte-level BPE (Sennrich et al. 2016, arXiv:1508.07909): every text has tokens, so there is no unknown.

    The marks pad, bos and eos lie behind the library's own tokens: no text can spell them.
    """

    def __init__(self, bpe: tokenizers.Tokenizer, *, marks: bool) -> None:
        self._bpe = bpe
        self._marks = marks
        self._known: dict[str, bytes] = {}
        self._room = KNOWN_CHARACTERS
        self.vocabulary = bpe.get_vocab_size()
        if marks:
            self.pad, self.bos, self.eos = range(self.vocabulary, self.vocabulary + 3)
            self.vocabulary += 3

    @classmethod
    def train(cls, texts: Iterable[str], vocabulary: int, *, marks: bool) -> "SubwordTokenizer":
        """Learn at most `vocabulary` tokens, marks included, from the texts."""
        bpe = tokenizers.Tokenizer(models.BPE())
        bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        bpe.decoder = decoders.ByteLevel()
        bpe.train_from_iterator(
            texts,
            trainers.BpeTrainer(
                vocab_size=vocabulary - 3 * marks,
                initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
                special_tokens=[],
                show_progress=False,
            ),
        )
        return cls(bpe, marks=marks)

    def encode_all(self, texts: list[str]) -> list[np.ndarray]:
        return [np.frombuffer(ids, dtype=np.uint16) for ids in self._encoded([WORD.findall(text) for text in texts])]

    def stream(self, pieces: Iterable[str]) -> Iterator[np.ndarray]:
        for lines in in_lines(pieces):
            (ids,) = self._encoded([[word for line in lines for word in WORD.findall(line)]])
            yield np.frombuffer(ids, dtype=np.uint16)

    def _encoded(self, texts: list[list[str]]) -> list[bytes]:
        """Encode texts that are split into words; the library gets each new word once, as most words of a text
        repeat."""
        if self._room < 0:
            self._known, self._room = {}, KNOWN_CHARACTERS
        new = list(set[str]().union(*texts).difference(self._known))
        self._room -= sum(map(len, new))
        encodings = self._bpe.encode_batch_fast(new)
        self._known.update(zip(new, (array("H", each.ids).tobytes() for each in encodings), strict=True))
        return [b"".join(map(self._known.__getitem__, words)) for words in texts]

    def decode(self, ids: Iterable[int]) -> str:
        text: str = self._bpe.decode(list(map(int, ids)), skip_special_tokens=False)
        return text

    def token_bytes(self) -> list[bytes]:
        names = sorted(self._bpe.get_vocab().items(), key=lambda named: named[1])
        found = [bytes(map(_BYTE_OF.__getitem__, name)) for name, _ in names]
        return found + [b""] * (self.vocabulary - len(found))

    def to_json(self) -> str:
        return json.dumps({"kind": "bpe", "marks": self._marks, "bpe": json.loads(self._bpe.to_str())})


def in_lines(pieces: Iterable[str]) -> Iterator[list[str]]:
    """Yield the lines of a text, some at a time, wherever its pieces are cut; lines above LONGEST_LINE in parts."""
    rest = ""
    for piece in pieces:
        for at in range(0, len(piece), PIECE):  # the last line may go on
            lines = [part for line in (rest + piece[at : at + PIECE]).splitlines(keepends=True) for part in _cut(line)]
            rest = lines.pop() if lines else ""
            if lines:
                yield lines
    if rest:
        yield [rest]


def _cut(line: str) -> Iterator[str]:
    """Cut a line into parts of at most LONGEST_LINE, before a space where there is one."""
    while len(line) > LONGEST_LINE:
        space = line.rfind(" ", 1, LONGEST_LINE)
        cut = space if space > 0 else LONGEST_LINE
        yield line[:cut]
        line = line[cut:]
    yield line


def _code_points(text: str) -> np.ndarray:
    """Return the code points of a text as uint32; a lone surrogate passes."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
