"""How good a model is on a split: un-smoothed loss and what follows from it; BLEU and chrF of a translator."""

import json
import math
import time
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from model.config import Config, Data
from model.data.dataset import PairData, PairSplit
from model.data.tokenizer import Tokenizer
from model.families import FAMILIES
from model.inference import spread_pairs, translations
from tune.reports import Evaluation

IN_FLIGHT = 8
"""Batches queued on a GPU before the host waits for it, so that `go_on` is never asked far ahead of the device."""


@torch.inference_mode()
def evaluate(
    model: nn.Module,
    config: Config,
    data: Data,
    split: str,
    *,
    tokens: int | None = None,
    device: torch.device | str = "cpu",
    go_on: Callable[[], bool] = lambda: True,
    clock: Callable[[], float] = time.monotonic,
) -> Evaluation | None:
    """Measure `split` ("train", "valid", "test"), all of it or its fixed subset of about `tokens` target tokens.

    `go_on` is asked before each batch; where it says no the result is None. The model is in training mode afterwards.
    Data that spells no text has no figures a character or a word.
    """
    began = clock()
    nats, hits = list[Tensor](), list[Tensor]()
    counted = 0
    family = FAMILIES[config.family]
    model.eval()
    try:
        for batch in family.evaluation_batches(config, data, split, tokens, device):
            if not go_on():
                return None
            loss, right = family.sums(model, batch)
            nats.append(loss.reshape(-1))
            hits.append(right.reshape(-1))
            counted += batch.tokens
            if len(nats) % IN_FLIGHT == 0:
                nats[-1][0].item()
    finally:
        model.train()
    _, characters, words = family.evaluated_span(config, data, split, tokens, counted)
    each: list[float] = torch.cat(nats).tolist()
    blocks = json.dumps([round(one, 3) for one in each]) if split == "test" else None
    total = sum(each)
    return Evaluation(
        loss=total / counted,
        bits_per_character=total / math.log(2) / characters if characters else None,
        nats_per_word=total / words if words else None,
        accuracy=sum(torch.cat(hits).tolist()) / counted,
        tokens=counted,
        seconds=clock() - began,
        blocks=blocks,
    )


SENTENCES = 128
"""Sentences that are translated, spread over the split; all of it where it has fewer."""
SPACELESS = "CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN"
"""First words of the Unicode names of letters of scripts without spaces between words."""
CHUNK = 8
"""Sentences translated at once: few, so that the rest of the lease can be checked in between."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """Corpus BLEU (Papineni et al. 2002) and chrF (Popovic 2015), 0 to 100, by sacrebleu, whose signature says how."""

    bleu: float
    chrf: float
    sentences: int
    signature: str


def chunk_count(data: PairData) -> int:
    """Return the number of chunks of the test split to translate."""
    return -(-min(SENTENCES, len(data.test)) // CHUNK)


def translate_in_chunks(
    model: nn.Module, tokenizer: Tokenizer, data: PairData, split: PairSplit, sentences: int,
    before_step: Callable[[], None] = lambda: None,
) -> Iterator[list[tuple[str, str]]]:  # fmt: skip
    """Yield so many sentences of a split chunk by chunk, each as the model's translation and the reference; what is
    longer than a row of training is cut.

    before_step: as for model.inference.translations.
    """
    pairs = [
        (tokenizer.decode(source.tolist()), tokenizer.decode(target.tolist()))
        for source, target in spread_pairs(split, min(sentences, len(split)))
    ]
    for first in range(0, len(pairs), CHUNK):
        sources, references = zip(*pairs[first : first + CHUNK], strict=True)
        written = translations(model, tokenizer, list(sources), row=data.row, before_step=before_step)
        yield list(zip(written, references, strict=True))


def score(found: list[tuple[str, str]]) -> Score:
    """Score pairs of a translation and its reference; BLEU is of words, or of characters where most letters of the
    references are of scripts without spaces."""
    from sacrebleu.metrics import BLEU, CHRF  # a slow import, which no start of a search has to wait for

    outputs, references = (list(side) for side in zip(*found, strict=True))
    spaceless = [unicodedata.name(each, "").startswith(SPACELESS) for each in "".join(references) if each.isalpha()]
    bleu = BLEU(tokenize="char" if 2 * sum(spaceless) > len(spaceless) else "13a")
    return Score(
        bleu=bleu.corpus_score(outputs, [references]).score, chrf=CHRF().corpus_score(outputs, [references]).score,
        sentences=len(found), signature=str(bleu.get_signature()),
    )  # fmt: skip
