"""What the winners write, kept in the journal, and paid for like everything else."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch

from model.config import Data
from model.samples import TOKENS, Sample, samples
from tune.books import Books
from tune.winners import Winner

MOST = 4
"""Samples of a winner."""
STEPS_A_TOKEN = 0.1
"""A token written costs less than this share of an optimizer step, which is for hundreds and their gradients."""
LOADING_SECONDS = 1.0
MARGIN = 1.5
"""No sample begins unless this many times its price is left."""


def write_samples(
    found: Mapping[str, Winner], books: Books, study: Path, data: Mapping[str, Data], *, kind: str
) -> None:
    """Of each winner that had its decay, as many as the rest of the cap pays for; the driver's core writes them.

    Where devices are GPUs (`kind` is cuda) that core is none, and nothing is charged.
    """
    torch.set_num_threads(1)
    kept = {}
    for family, winner in found.items():
        if not winner.decayed:
            continue
        (row,) = books.journal.rows("SELECT MAX(step_seconds) AS step FROM reports WHERE trial = ?", winner.trial)
        price = LOADING_SECONDS + TOKENS * STEPS_A_TOKEN * (row["step"] or 0.0)
        written = samples(study / f"best-{family}", data[family], MOST)
        if kind == "cuda":
            kept[family] = taken(written, lambda: math.inf, price)
        elif books.affordable > MARGIN * price:
            with books.visit(winner.trial, "evaluation") as left:
                kept[family] = taken(written, left, price)
    books.journal.note(samples=kept)


def taken(written: Iterator[Sample], left: Callable[[], float], price: float) -> list[Sample]:
    """Samples, for as long as another is sure to fit in the device-seconds left; `price`: of the first."""
    rows: list[Sample] = []
    while len(rows) < MOST and left() > MARGIN * price:
        began = time.monotonic()
        row = next(written, None)
        if row is None:
            break
        rows.append(row)
        price = time.monotonic() - began
    return rows
