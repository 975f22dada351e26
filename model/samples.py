"""What a winner writes, beside what stands in the validation split: sentences translated, text gone on with."""

from collections.abc import Callable, Iterator

import numpy as np
from torch import nn

from model.config import Data
from model.gpt import GPT
from model.prepared import PairData, PairSplit, Sentences, TextData
from model.tokenizer import Tokenizer
from model.translator import Translator
from model.use import continuation, translations

PROMPT_TOKENS = 48
TOKENS = 96
"""Of each text that goes on; a translation is rarely longer."""

Sample = dict[str, str]
"""Its input, the model's output, and the reference."""


def samples(
    model: nn.Module, tokenizer: Tokenizer, data: Data, count: int, before_step: Callable[[], None] = lambda: None
) -> Iterator[Sample]:
    """One at a time, spread over the validation split; none of a model that can neither translate nor go on.

    before_step: as for model.use.translations.
    """
    if not isinstance(model, GPT | Translator):
        return
    for source, reference in spread(data.valid, count) if isinstance(data, PairData) else _text(data, count):
        given, wanted = tokenizer.decode(source.tolist()), tokenizer.decode(reference.tolist())
        if isinstance(data, PairData):
            (written,) = translations(model, tokenizer, [given], row=data.row, before_step=before_step)
        else:
            written = continuation(model, tokenizer, given, TOKENS, before_step=before_step)
        yield {"input": given, "output": written, "reference": wanted}


def spread(split: PairSplit, count: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The tokens of pairs from its first to its last: source, and target without its bos and eos."""
    for pair in np.linspace(0, len(split) - 1, count).astype(int):
        yield _sentence(split.source, pair), _sentence(split.target, pair)[1:-1]


def _sentence(sentences: Sentences, number: int) -> np.ndarray:
    return sentences.tokens[sentences.offsets[number] : sentences.offsets[number + 1]]


def _text(data: TextData, count: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """A prompt, and as many tokens as the model writes."""
    whole = PROMPT_TOKENS + TOKENS
    for start in np.linspace(0, max(0, len(data.valid) - whole), count).astype(int):
        text = data.valid[start : start + whole]
        yield text[:PROMPT_TOKENS], text[PROMPT_TOKENS:]
