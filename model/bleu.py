"""How well a translator translates: BLEU and chrF on the same sentences of a split for all models of a study."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sacrebleu.metrics import BLEU, CHRF
from torch import nn

from model.prepared import PairData, PairSplit
from model.samples import spread
from model.tokenizer import Tokenizer
from model.use import translations

SENTENCES = 128
"""Spread over the split; all of it, where it has fewer."""
CHUNK = 8
"""Sentences translated at once: few, so that what is left of a lease can be looked at between."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """Corpus BLEU (Papineni et al. 2002) and chrF (Popovic 2015), 0 to 100, by sacrebleu, whose signature says how."""

    bleu: float
    chrf: float
    sentences: int
    signature: str


def chunks(data: PairData) -> int:
    """How many there are to translate."""
    return -(-min(SENTENCES, len(data.test)) // CHUNK)


def translated(
    model: nn.Module, tokenizer: Tokenizer, data: PairData, before_step: Callable[[], None] = lambda: None
) -> Iterator[list[tuple[str, str]]]:
    """Sentences of the test split, chunk by chunk: each as the model translates it, and its reference."""
    return translated_of(model, tokenizer, data, data.test, SENTENCES, before_step)


def translated_of(
    model: nn.Module, tokenizer: Tokenizer, data: PairData, split: PairSplit, sentences: int,
    before_step: Callable[[], None] = lambda: None,
) -> Iterator[list[tuple[str, str]]]:  # fmt: skip
    """As many sentences of a split, chunk by chunk; what is longer than a row of training is cut.

    before_step: as for model.use.translations.
    """
    pairs = [
        (tokenizer.decode(source.tolist()), tokenizer.decode(target.tolist()))
        for source, target in spread(split, min(sentences, len(split)))
    ]
    for first in range(0, len(pairs), CHUNK):
        sources, references = zip(*pairs[first : first + CHUNK], strict=True)
        written = translations(model, tokenizer, list(sources), row=data.row, before_step=before_step)
        yield list(zip(written, references, strict=True))


def score(found: list[tuple[str, str]]) -> Score:
    """Of translations and their references."""
    outputs, references = (list(side) for side in zip(*found, strict=True))
    bleu = BLEU()
    return Score(
        bleu=bleu.corpus_score(outputs, [references]).score, chrf=CHRF().corpus_score(outputs, [references]).score,
        sentences=len(found), signature=str(bleu.get_signature()),
    )  # fmt: skip
