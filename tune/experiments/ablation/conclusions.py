"""What the rows of the ablation come to, in a few sentences."""

import math
from collections.abc import Iterator, Sequence
from itertools import chain, combinations

from model.estimates import plain_parameters
from tune.experiments.ablation.rows import (
    COMPARE,
    REPORT,
    TABLE,
    Losses,
    average,
    by_shape,
    long_and_short,
    lowest_point,
    named,
    of_set,
    shape_of,
    their_losses,
    theirs,
)
from tune.experiments.ablation.tables import STORED, TRAINED, WORDS
from tune.experiments.experiment import Row

COLLAPSED = 100.0
"""A perplexity of words above it is that of a model that learned next to nothing."""
FIGURES = 0.01
"""Parameters agree where they do to within this share."""
FACTOR = 1.5
"""A rule of thumb for memory is good to within it."""
OVERFITTING = 0.02
"""Nats a token by which a loss has risen from its lowest: more than it does from one evaluation to the next."""


def conclusions(rows: Sequence[Row]) -> list[str]:
    """What held and what did not."""
    done = [row for row in rows if "valid_loss" in row]
    return [*chain(_ranking(done), _collapse(done), _sizes(done), _longer(done), _devices(done))]


def agreement(ours: Losses, others: Losses) -> float:
    """The share of all pairs of configurations that stand in the same order in both."""
    pairs = list(combinations(sorted(ours.keys() & others.keys()), 2))
    return sum((ours[a] < ours[b]) == (others[a] < others[b]) for a, b in pairs) / len(pairs)


def _ranking(done: Sequence[Row]) -> Iterator[str]:
    ours = {shape: average(rows, "valid_loss") for shape, rows in by_shape(done, REPORT).items()}
    their = their_losses(ours)
    if len(ours) > 1:
        first, best = min(ours, key=ours.__getitem__), min(their, key=their.__getitem__)
        place = sorted(ours.values()).index(ours[best]) + 1
        yield (
            f"Of {len(ours)} configurations {named(first)} learned most in these tokens; the report's best of them, "
            f"{named(best)}, is number {place}, and {agreement(ours, their):.0%} of all pairs stand in its order."
        )


def _collapse(done: Sequence[Row]) -> Iterator[str]:
    found = {shape: math.exp(average(rows, "nats_per_word")) for shape, rows in by_shape(done, REPORT).items()}
    known = theirs()
    failed = [shape for shape in found if (known[shape]["valid_perplexity"] or 0.0) > COLLAPSED]
    if failed:
        high, worst = [shape for shape in failed if found[shape] > COLLAPSED], max(failed, key=found.__getitem__)
        yield (f"Of the {len(failed)} of them whose perplexity of words is above {COLLAPSED:g} in the report, "
               f"{len(high)} are here; the worst, {named(worst)}, is at {found[worst]:.4g}.")  # fmt: skip


def _sizes(done: Sequence[Row]) -> Iterator[str]:
    off = [
        plain_parameters(d_model=shape.d_model, layers=shape.layers, vocabulary=WORDS)
        / 1e6 / (row["parameters_million"] or math.nan) - 1 for shape, row in theirs().items()
    ]  # fmt: skip
    within, rows = sum(abs(each) <= FIGURES for each in off), of_set(done, *TABLE)
    if rows:
        stored, held = ([row[name] / row["parameters"] for row in rows] for name in ("stored_bytes", "memory_bytes"))
        near = sum(TRAINED / FACTOR <= each <= FACTOR * TRAINED for each in held)
        yield (
            f"Counted, the parameters of {within} of the report's {len(off)} rows agree to {FIGURES:.0%} (at most "
            f"{max(map(abs, off)):.2%} off). Of its rule for memory, {STORED} bytes a parameter to store were "
            f"{min(stored):.1f} to {max(stored):.1f}; {TRAINED} to train were {min(held):.0f} to {max(held):,.0f}, "
            f"within a factor of {FACTOR:g} in {near} of {len(held)}: it leaves out activations and logits."
        )


def _longer(done: Sequence[Row]) -> Iterator[str]:
    found = long_and_short(done)
    if len(found) == 2:
        short, long = found
        steps, lowest = lowest_point(long)
        risen = long["valid_loss"] - lowest
        rose = f"overfitted: up by {risen:.3f} from its lowest, at {steps / long['steps']:.0%} of the way"
        gaps = [f"{row['valid_loss'] - row['train_loss']:.3f}" for row in found]
        yield (f"{long['steps'] / short['steps']:g} times as long took the validation loss of "
               f"{named(shape_of(long['config']))} from {short['valid_loss']:.3f} to {long['valid_loss']:.3f} and its "
               f"gap to the training loss from {gaps[0]} to {gaps[1]}: it "
               f"{rose if risen > OVERFITTING else 'did not overfit'}.")  # fmt: skip


def _devices(done: Sequence[Row]) -> Iterator[str]:
    compared = of_set(done, COMPARE)
    if len(compared) == 2:
        one, other = compared
        times = other["tokens_per_second"] / one["tokens_per_second"]
        there = [f"{row['kind']} with {row['threads']} thread{'s' * (row['threads'] > 1)}" for row in compared]
        yield f"On {there[1]} {named(shape_of(one['config']))} is {times:.2f} times as fast as on {there[0]}."
