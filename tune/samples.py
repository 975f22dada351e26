"""What the winners write, and how well they translate: kept in the journal, and paid for like everything else."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict
from typing import TypeVar

import torch
from torch import nn

from model.bleu import CHUNK, Score, chunks, score, translated
from model.checkpoint import load_model
from model.config import Data
from model.lease import MARGIN, Lease
from model.prepared import PairData
from model.samples import TOKENS, Sample, samples
from model.tokenizer import Tokenizer
from model.translator import Translator
from tune.holds import Hold, affordable
from tune.planner import Planner
from tune.winners import Winner

PURPOSE = "decoding"
MOST = 4
"""Samples of a winner."""
STEPS_A_TOKEN = 0.1
"""A token written costs less than this share of an optimizer step, which is for hundreds and their gradients."""
LOADING_SECONDS = 0.3
"""Ten times what the weights of such a model take from a local disk, as measured."""

Item = TypeVar("Item")


class TimeIsUp(Exception):
    """Another step of decoding might not fit in its lease."""


def write_samples(
    found: Mapping[str, Winner], planner: Planner, data: Mapping[str, Data], *, kind: str
) -> dict[str, Score]:
    """Of each winner that had its decay, as many as the rest of the cap pays for; the driver's core writes them.

    Where devices are GPUs (`kind` is cuda) that core is none, and nothing is charged. Either way it ends before the
    deadline. Returns the scores of those that translate, where the rest pays for these too.
    """
    torch.set_num_threads(1)
    books = planner.books
    kept: dict[str, list[Sample]] = {}
    scores: dict[str, Score] = {}
    for family, winner in found.items():
        (row,) = books.journal.rows("SELECT MAX(step_seconds) AS step FROM reports WHERE trial = ?", winner.trial)
        price = TOKENS * STEPS_A_TOKEN * (row["step"] or 0.0)
        charged, wall = kind != "cuda", planner.wall_left()
        seconds = min(affordable(books, 1) if charged else math.inf, math.inf if wall is None else wall)
        if not winner.decayed or seconds <= MARGIN * (LOADING_SECONDS + price):
            continue
        with Hold(books, winner.trial, PURPOSE, devices=1, seconds=seconds) if charged else nullcontext() as hold:
            lease = Lease(seconds, books.clock)
            model, tokenizer = load_model(books.journal.folder / f"best-{family}")
            written = samples(model, tokenizer, data[family], MOST, asking(lease))
            kept[family], price = taken(written, lease, price, MOST)
            score_of_all = scored(model, tokenizer, data[family], lease, price)
            if hold is not None:
                hold.charge("evaluation")
        if score_of_all is not None:
            scores[family] = score_of_all
    bleu = {family: {"trial": found[family].trial} | asdict(each) for family, each in scores.items()}
    books.journal.note(samples=kept, bleu=bleu)
    return scores


def scored(model: nn.Module, tokenizer: Tokenizer, data: Data, lease: Lease, price: float) -> Score | None:
    """How well a model translates; None where the lease does not pay for all sentences.

    price: device-seconds of one sentence alone.
    """
    if not (isinstance(data, PairData) and isinstance(model, Translator)):
        return None
    written = translated(model, tokenizer, data, asking(lease))
    found, _ = taken(written, lease, CHUNK * price, chunks(data), whole=True)
    return score([pair for chunk in found for pair in chunk]) if found and len(found) == chunks(data) else None


def asking(lease: Lease) -> Callable[[], None]:
    """To be called before each step of decoding. TimeIsUp: one as long as the longest so far might not fit."""
    before = lease.clock()

    def ask() -> None:
        nonlocal before
        now = lease.clock()
        lease.observe("step", now - before)
        before = now
        if lease.left() <= MARGIN * lease.expected("step", 0.0):
            raise TimeIsUp

    return ask


def taken(
    written: Iterator[Item], lease: Lease, price: float, most: int, *, whole: bool = False
) -> tuple[list[Item], float]:
    """At most so many items, for as long as another is sure to fit; and what the last one took, in device-seconds.

    price: of the first, until it is known; whole: once it is, all that are to come must fit, else there is no more.
    """
    items: list[Item] = []
    while len(items) < most:
        ahead = most - len(items) if whole and items else 1
        if lease.left() <= MARGIN * price * ahead:
            break
        began = lease.clock()
        try:
            item = next(written, None)
        except TimeIsUp:
            break
        if item is None:
            break
        items.append(item)
        price = lease.clock() - began
    return items, price
