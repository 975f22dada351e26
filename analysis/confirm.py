"""A search's last comparison: its last two configurations trained anew with other seeds, and whether they differ by
more than luck."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis import tables
from analysis.study import Study
from tune.arithmetic import student
from tune.search_space import label, seedless

FEWEST_SEEDS, FEWEST_BLOCKS = 2, 2
MOST_UNEQUAL = 1.25
"""How many times as long one of two configurations may have trained for the two to compare: they are planned to train
equally long, but on a busy machine a speed is misjudged."""


def difference(first: NDArray[np.float64], second: NDArray[np.float64]) -> tuple[float, float]:
    """Return by how many nats a token a second configuration is above a first one, and half the width of the 95 %
    interval. Each was trained with several seeds and measured on the same blocks of text: (seeds, blocks), nats a
    token; the mean of a row is the loss of a training.

    Two sources of variance add up: the seeds, by how far those of one configuration are apart; and the text, by how far
    the paired differences of the blocks are apart. Seeds have one variance, pooled of both configurations, so that the
    one with fewer does not make it small by luck. Degrees of freedom are those of Welch and Satterthwaite.
    """
    freedom_of_seeds = len(first) + len(second) - 2
    pooled = sum((len(each) - 1) * each.mean(axis=1).var(ddof=1) for each in (first, second)) / freedom_of_seeds
    seeds = pooled * (1 / len(first) + 1 / len(second))
    paired = second.mean(axis=0) - first.mean(axis=0)  # (blocks,)
    text = paired.var(ddof=1) / len(paired)
    terms = seeds**2 / freedom_of_seeds + text**2 / (len(paired) - 1)
    freedom = (seeds + text) ** 2 / terms if terms else math.inf
    return float(paired.mean()), student(float(freedom)) * math.sqrt(seeds + text)


def last_comparison_lines(study: Study, family: str) -> list[str]:
    """Return a line that says whether a search's last two of a family differ significantly; none if they were not
    trained anew."""
    pair = last_two(study, family)
    if len(pair) < 2:
        return []
    (one, first), (other, second) = pair.items()
    done = [each[each["test_blocks"].notna()] for each in (first, second)]
    counts = [len(each) for each in done]
    if min(counts) < FEWEST_SEEDS:
        ends = f"{counts[0]} and {counts[1]} trainings with other seeds came to an end and to the test split"
        return [f"no significance test: of {one} and {other} {ends}, and it takes {FEWEST_SEEDS} each."]
    losses = [np.array([_blocks(row) for row in each.to_dict("records")]) for each in done]
    if losses[0].shape[1:] != losses[1].shape[1:]:
        return [f"no significance test: {one} and {other} were not measured on the same blocks of the test split."]
    if losses[0].shape[1] < FEWEST_BLOCKS:
        remedy = "more data, or in a family of your own smaller batches"
        rule = f"the test split is one block, and it takes {FEWEST_BLOCKS}: it needs {remedy}"
        return [f"no significance test: of {one} and {other} {rule}."]
    nats, half = difference(*losses)
    trained = " and ".join(
        f"{each['steps'].mean():,.0f} steps ({tables.duration(float(each['training_seconds'].mean()))})"
        for each in done
    )
    seeds = f"{counts[0]}" if counts[0] == counts[1] else f"{counts[0]} and {counts[1]}"
    how = f"nats a token of the test split (95 %), trained again for {trained} with {seeds} other seeds"
    by = f"{abs(nats):.3f} ± {half:.3f} {how}"
    seconds = sorted(float(each["training_seconds"].mean()) for each in done)
    if seconds[1] > MOST_UNEQUAL * seconds[0]:
        longer = f"one had {seconds[1] / seconds[0]:.1f} times the training seconds of the other"
        return [f"no significance test: {one} and {other} differ by {by}; {longer}."]
    if abs(nats) > half:
        better, worse = (one, other) if nats > 0 else (other, one)
        return [f"significant difference: {better} is better than {worse} by {by}."]
    return [f"no significant difference: {one} and {other} differ by {by}."]


def last_two(study: Study, family: str) -> Mapping[str, pd.DataFrame]:
    """Return the trainings with other seeds, and the results of those that ended, by the trial (named with its
    configuration) that they repeat; those of the last comparison that was measured, else of the last one."""
    trials = study.read("SELECT trial, config FROM trials WHERE family = ? ORDER BY created, trial", family)
    points = {row.trial: json.loads(row.config) for row in trials.itertuples()}
    anew = study.read(
        """
        SELECT trial, decision, test_blocks, test_loss, steps, training_seconds
        FROM (SELECT trial, MIN(decision) AS decision FROM decisions WHERE action = 'confirm' GROUP BY trial)
        JOIN trials USING (trial)
        LEFT JOIN (SELECT trial, test_blocks, test_loss, steps, training_seconds, MAX(report) FROM reports
                   WHERE final AND test_loss IS NOT NULL GROUP BY trial) USING (trial)
        WHERE family = ? ORDER BY decision""",
        family,
    )
    if anew.empty:
        return {}
    caps = study.facts.get("caps", [])
    agreed = [each.get("decision") or 0 for each in caps if each.get("families", True)]  # by which one is made anew
    terms = anew["decision"].map(lambda decision: sum(each < decision for each in agreed))
    whose = anew["trial"].map(lambda trial: _confirmed_trial(points, trial))
    ended = anew["test_blocks"].notna().groupby([terms, whose]).sum().groupby(level=0).agg(["min", "size"])
    measured = ended[(ended["min"] >= FEWEST_SEEDS) & (ended["size"] == 2)].index
    anew = anew[terms == (measured if len(measured) else terms).max()]
    return {f"{of} ({label(points[of])})": rows for of, rows in anew.groupby(whose, sort=False)}


def _confirmed_trial(points: Mapping[str, Mapping[str, Any]], trial: str) -> str:
    """Return the trial that another one repeats with another seed; itself where the journal has lost that."""
    config = seedless(points[trial])
    return next((name for name, point in points.items() if point == config), trial)


def _blocks(row: Mapping[str, Any]) -> Sequence[float]:
    """Return the nats a token of each block, scaled as if all were equally long: their mean is the loss."""
    nats = np.array(json.loads(row["test_blocks"]), dtype=float)
    return list(nats * row["test_loss"] / nats.mean())
