"""What the winners write, and how well they translate: kept in the journal, and paid for like everything else."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from model.bleu import CHUNK, Score, chunks, score, translated
from model.checkpoint import load_model
from model.config import Data
from model.prepared import PairData
from model.samples import TOKENS, Sample, samples
from model.tokenizer import Tokenizer
from model.translator import Translator
from tune.books import Books
from tune.winners import Winner

MOST = 4
"""Samples of a winner."""
STEPS_A_TOKEN = 0.1
"""A token written costs less than this share of an optimizer step, which is for hundreds and their gradients."""
LOADING_SECONDS = 0.3
"""Ten times what the weights of such a model take from a local disk, as measured."""
MARGIN = 1.5
"""Nothing begins unless this many times its price is left."""

Left = Callable[[], float]
"""Device-seconds that may still be used."""
Item = TypeVar("Item")


def write_samples(
    found: Mapping[str, Winner], books: Books, study: Path, data: Mapping[str, Data], *, kind: str
) -> dict[str, Score]:
    """Of each winner that had its decay, as many as the rest of the cap pays for; the driver's core writes them.

    Where devices are GPUs (`kind` is cuda) that core is none, and nothing is charged. Returns the scores of those that
    translate, where the rest pays for these too.
    """
    torch.set_num_threads(1)
    kept: dict[str, list[Sample]] = {}
    scores: dict[str, Score] = {}
    for family, winner in found.items():
        (row,) = books.journal.rows("SELECT MAX(step_seconds) AS step FROM reports WHERE trial = ?", winner.trial)
        price = TOKENS * STEPS_A_TOKEN * (row["step"] or 0.0)
        charged = kind != "cuda"
        if not winner.decayed or (charged and books.affordable <= MARGIN * (LOADING_SECONDS + price)):
            continue
        free: AbstractContextManager[Left] = nullcontext(lambda: math.inf)
        with books.visit(winner.trial, "evaluation") if charged else free as left:
            model, tokenizer = load_model(study / f"best-{family}")
            kept[family], price = taken(samples(model, tokenizer, data[family], MOST), left, price, MOST)
            score_of_all = scored(model, tokenizer, data[family], left, price)
        if score_of_all is not None:
            scores[family] = score_of_all
    bleu = {family: {"trial": found[family].trial} | asdict(each) for family, each in scores.items()}
    books.journal.note(samples=kept, bleu=bleu)
    return scores


def scored(model: nn.Module, tokenizer: Tokenizer, data: Data, left: Left, price: float) -> Score | None:
    """How well a model translates; None where the rest of the cap is not sure to pay for all sentences.

    price: device-seconds of one sentence alone.
    """
    if not (isinstance(data, PairData) and isinstance(model, Translator)):
        return None
    found, _ = taken(translated(model, tokenizer, data), left, CHUNK * price, chunks(data), whole=True)
    return score([pair for chunk in found for pair in chunk]) if found and len(found) == chunks(data) else None


def taken(
    written: Iterator[Item], left: Left, price: float, most: int, *, whole: bool = False
) -> tuple[list[Item], float]:
    """At most so many items, for as long as another is sure to fit; and what the last one took, in device-seconds.

    price: of the first, until it is known; whole: once it is, all that are to come must fit, else there is no more.
    """
    items: list[Item] = []
    while len(items) < most:
        ahead = most - len(items) if whole and items else 1
        if left() <= MARGIN * price * ahead:
            break
        began = time.monotonic()
        item = next(written, None)
        if item is None:
            break
        items.append(item)
        price = time.monotonic() - began
    return items, price
