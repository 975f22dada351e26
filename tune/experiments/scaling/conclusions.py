"""What the rows of the scaling experiment come to, in a few sentences."""

from collections.abc import Sequence
from itertools import chain

from tune.experiments.experiment import Row, Table
from tune.experiments.scaling.model import on_paper, predicted, prediction
from tune.experiments.scaling.tables import measured_tables, pairs, speed_up, steps_of
from tune.experiments.tables import with_interval

IDENTITY = 0.05
"""A step is one without communication and what is exposed of it, to within this share."""


def tables(rows: Sequence[Row]) -> list[Table]:
    """All that there are rows for."""
    return [table for table in (*measured_tables(rows), prediction(rows), on_paper(rows)) if table.rows]


def conclusions(rows: Sequence[Row]) -> list[str]:
    """What held and what did not."""
    return list(chain(_speed_ups(rows), _identity(rows), _accumulated(rows), _predictions(rows), _losses(rows)))


def _speed_ups(rows: Sequence[Row]) -> list[str]:
    said = []
    for name, weak_ in (("Weak", True), ("Strong", False)):
        found = [(speed_up(single, row, weak=weak_), batch, row["devices"])
                 for batch, single, row in pairs(steps_of(rows), weak=weak_) if row["devices"] > 1]  # fmt: skip
        if found:
            best, batch, devices = max(found, key=lambda each: each[0][0] / each[2])
            said.append(f"{name} scaling is best at a batch of {batch}: {with_interval(best, '{:.2f}')} times as fast "
                        f"on {devices} devices, {best[0] / devices:.0%} of {devices}.")  # fmt: skip
    return said


def _identity(rows: Sequence[Row]) -> list[str]:
    found = [row["identity"][0] for row in rows if "identity" in row]
    if not found:
        return []
    held = sum(abs(each - 1) <= IDENTITY for each in found)
    return [f"A step is one without communication and what is exposed of it, to {IDENTITY:.0%}, in {held} of "
            f"{len(found)} points ({min(found):.3f} to {max(found):.3f})."]  # fmt: skip


def _accumulated(rows: Sequence[Row]) -> list[str]:
    return [
        f"On {row['devices']} devices accumulating 4 batches is {with_interval(dict(row['gain'])[4], '{:.2f}')} times "
        "as fast a row as none."
        for row in rows if "gain" in row
    ]  # fmt: skip


def _predictions(rows: Sequence[Row]) -> list[str]:
    errors = [seconds / row["step_seconds"][0] - 1 for _, _, seconds, row in predicted(rows)]
    return [f"The model of the step errs by {max(map(abs, errors)):.1%} at most on a batch left out."] if errors else []


def _losses(rows: Sequence[Row]) -> list[str]:
    found = [row["valid_loss"] for row in rows if "valid_loss" in row]
    if len(found) < 2:
        return []
    return [f"The same batches on 1 to {max(row['devices'] for row in rows)} devices end with losses that differ by "
            f"{max(found) - min(found):.1e}."]  # fmt: skip
