"""What the rows of the estimates experiment come to, in a few sentences."""

from collections.abc import Sequence
from itertools import chain

from tune.experiments.estimates.tables import (
    PUBLISHED,
    REPORTED_PARAMETERS,
    REPORTED_SLOPES,
    STEP,
    of,
    slope,
    slopes_of,
)
from tune.experiments.experiment import Row
from tune.experiments.tables import figure

HELD = 0.02
"""The right formula holds where its slope is 1 to within this."""


def conclusions(rows: Sequence[Row]) -> list[str]:
    """What held and what did not."""
    return list(chain(_parameters(rows), _right(rows), _reported(rows), _memory(rows)))


def _parameters(rows: Sequence[Row]) -> list[str]:
    found = next((row for row in rows if "layered" in row), None)
    if found is None:
        return []
    told, left = "is" if found["layered"] == REPORTED_PARAMETERS else "is NOT", found["parameters"] - found["layered"]
    return [f"The model has {found['parameters']:,} parameters. The report's {REPORTED_PARAMETERS:,} {told} what is "
            f"left without the {left:,} of the attention's input projection, which have names of their own and are no "
            "layer's weight and bias."]  # fmt: skip


def _right(rows: Sequence[Row]) -> list[str]:
    series = slopes_of(rows)
    found = slope(*series[STEP][1:]) if STEP in series else None
    if found is None:
        return []
    held = "holds" if abs(found - 1) <= HELD else "does NOT hold"
    others = {name: slope(right, measured) for name, (_, right, measured) in series.items() if name != STEP}
    told = "; ".join(f"{name} {figure(each, '{:.3f}')}" for name, each in others.items())
    return [f"The right formula {held}: the slope of what is counted against it is {found:.3f} ({told})."]


def _reported(rows: Sequence[Row]) -> list[str]:
    series = slopes_of(rows)
    if STEP not in series or len(series[STEP][2]) < 2:
        return []
    ours, own = (slope(series[name][0], series[name][2]) for name in (STEP, PUBLISHED))
    formula, _, counted = series["forward, FlopCounterMode"]
    over = formula[0] / counted[0]
    return [f"The report's formula is of a forward ({over:.2f} times what is counted of one), and what it measured is "
            f"a training step: the slope against it is {ours:.2f} here, {own:.2f} there ({REPORTED_SLOPES})."]


def _memory(rows: Sequence[Row]) -> list[str]:
    kept = [row["kept_bytes"] / row["paper_kept_bytes"] for what in ("block", "model") for row in of(rows, what)]
    step = [row["step_bytes"] / row["paper_step_bytes"] for row in of(rows, "model")]
    found = ("Saved tensors take", kept), ("the most that a step of the model holds is", step)
    said = [f"{name} {min(each):.3f} to {max(each):.3f} times what is on paper" for name, each in found if each]
    return ["; ".join(said) + "."] if said else []
