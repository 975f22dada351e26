"""A study's own journal as recorded curves, one table a family: what would another cap, or more slots, have found?"""

import json
import math
import sqlite3
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tune.errors import UserError
from tune.virtual.curves import Curve, Table

TRIALS = """SELECT trial, family, config, parameters, state = 'finished' OR IFNULL(reason, '') LIKE 'diverged%'
    FROM trials ORDER BY trial"""
REPORTS = """SELECT trial, training_seconds, valid_loss, memory_bytes FROM reports
    WHERE valid_loss IS NOT NULL AND training_seconds > 0 ORDER BY report"""

Point = tuple[float, float]


def from_journal(path: Path) -> list[Table]:
    """The trials of a study that measured a loss. UserError where there are none, or no journal.

    A curve reports as often as its trial first did, as many times as its trial lasted; a step is a training second. It
    is cut short where its trial neither finished nor diverged: what more training would have made of it is not known.
    """
    try:
        with sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True) as connection:
            trials, reports = connection.execute(TRIALS).fetchall(), connection.execute(REPORTS).fetchall()
    except sqlite3.Error as error:
        raise UserError(
            f"table: '{path}' is not a study's journal ({error}); name the journal.db of a study's folder"
        ) from error
    points: dict[str, list[Point]] = {}
    memory: dict[str, float] = {}
    for trial, seconds, loss, used in reports:
        if trial not in points or seconds > points[trial][-1][0]:
            points.setdefault(trial, []).append((seconds, loss))
        memory[trial] = max(memory.get(trial, 0.0), used or 0.0)
    families: dict[str, list[Curve]] = {}
    cut_short: Counter[str] = Counter()
    for trial, family, config, parameters, whole in trials:
        if trial in points:
            every = points[trial][0][0]
            curve = Curve(
                config=json.loads(config), parameters=parameters or 0, seconds_per_report=every,
                losses=evenly(points[trial], every), steps_per_report=every, memory_bytes=memory[trial] or None,
            )  # fmt: skip
            families.setdefault(family, []).append(curve)
            cut_short[family] += not whole
    if not families:
        raise UserError(
            f"table: '{path}' has no trial with a validation loss; replay needs a study that has measured some"
        )
    study = path.resolve().parent.name
    return [
        Table(name=f"{study}-{family}", curves=tuple(curves), cut_short=cut_short[family])
        for family, curves in sorted(families.items())
    ]


def evenly(points: Sequence[Point], every: float) -> tuple[float, ...]:
    """Losses at `every`, twice `every`, ... up to the last of (seconds, loss): on lines over the log of the seconds."""
    losses, place = [], 0
    for count in range(1, round(points[-1][0] / every) + 1):
        while place < len(points) - 1 and points[place][0] < count * every:
            place += 1
        (before, high), (after, low) = points[max(place - 1, 0)], points[place]
        share = math.log(count * every / before) / math.log(after / before) if after > before else 1.0
        losses.append(high + (low - high) * min(1.0, share))
    return tuple(losses)
