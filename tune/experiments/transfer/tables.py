"""The tables of the transfer experiment."""

import math
from collections.abc import Sequence

from model.experiments.intervals import Interval
from tune.experiments.experiment import Row, Table
from tune.experiments.tables import NOTHING
from tune.experiments.transfer.rows import AXES, Descent, along, base_of, measured
from tune.experiments.transfer.work import BASE

RULES = {True: "rules", False: "standard"}
NAMES = {"d_model": "width", "layers": "depth"}


def tables(rows: Sequence[Row]) -> list[Table]:
    """Drift and regret by width and by depth, and the losses that they are of."""
    made = [compared(rows, axis) for axis in AXES] + [losses(rows)]
    return [table for table in made if table.rows]


def compared(rows: Sequence[Row], axis: str) -> Table:
    """What both parametrizations do along one axis."""
    base = base_of(rows)
    ways = {ruled: {each.shape[axis]: each for each in along(rows, axis, ruled=ruled)} for ruled in RULES}
    sizes = sorted({size for found in ways.values() for size in found})
    found = [[str(size), *(cell for way in ways.values() for cell in figures(way.get(size), base))] for size in sizes]
    columns = axis, *(each for name in RULES.values() for each in (f"{name}: best rate", "loss", "drift", "regret"))
    title = f"One learning rate for all: {NAMES[axis]}"
    return Table(title=title, columns=columns, rows=found if base else [], note=note(rows, axis))


def figures(descent: Descent | None, base: Descent | None) -> list[str]:
    """A shape's best rate and its loss, how far the rate moved, and what the base's own costs here."""
    if descent is None or base is None:
        return [NOTHING] * 4
    best = descent.mean.best
    regret = descent.regret(base)
    lost = NOTHING if regret is None else "diverged" if math.isinf(regret[0]) else signed(regret, "{:.3f}")
    if regret is not None and math.isfinite(regret[0]) and not descent.mean.bracketed:
        lost = f">= {lost}"
    moved = beyond(descent) + signed(descent.drift(base), "{:+.2f}")
    return [f"{descent.rate(best):.2e}", f"{descent.mean.losses[best]:.4f}", moved, lost]


def beyond(descent: Descent) -> str:
    """Where the best rate lies at an end of those that were tried, the true one lies beyond."""
    if descent.mean.bracketed:
        return ""
    return "> " if descent.mean.best + 1 not in descent.mean.losses else "< "


def signed(value: Interval, form: str) -> str:
    """-1.42 (-1.5 to -1.3); one seed has no interval."""
    figure, low, high = (form.format(each) for each in value)
    return figure if low == high else f"{figure} ({low} to {high})"


def note(rows: Sequence[Row], axis: str) -> str:
    """What the table is of."""
    asked = next((row["asked"] for row in measured(rows)), None)
    if asked is None:
        return ""
    other, seeds = AXES[axis], asked["seeds"]
    return (
        f"{other} {BASE[other]}, {asked['steps']:,} steps, rates {asked['octaves']:g} octaves apart, "
        f"{seeds} seed{'s' * (seeds > 1)}; drift: octaves from the best rate of {axis} {BASE[axis]}; regret: nats that "
        "this rate loses against the best one tried; where that is the last one tried, bounds: the best lies beyond. "
        "standard: one rate for all tensors, and no branch or logit is scaled. No report did this."
    )


def losses(rows: Sequence[Row]) -> Table:
    """Mean validation loss of each shape at each rate."""
    base = base_of(rows)
    descents = ([base] if base else []) + [
        each for axis in AXES for ruled in RULES for each in along(rows, axis, ruled=ruled) if each.shape != BASE
    ]
    steps = sorted({step for each in descents for step in each.mean.losses})
    cells = [[name(each), *(loss(each, step) for step in steps)] for each in descents]
    columns = "shape", *(f"{descents[0].rate(step):.1e}" for step in steps)
    return Table(title="Validation loss by base learning rate", columns=columns, rows=cells, note="*: the best")


def name(descent: Descent) -> str:
    """d64 l4 standard"""
    shape = f"d{descent.shape['d_model']} l{descent.shape['layers']}"
    return f"{shape} base" if descent.shape == BASE else f"{shape} {RULES[descent.ruled]}"


def loss(descent: Descent, step: int) -> str:
    """A cell; what was not trained is empty."""
    found = descent.mean.losses.get(step)
    if found is None:
        return NOTHING
    mark = "*" if step == descent.mean.best else ""
    return f"{found:.3f}{mark}" if math.isfinite(found) else "diverged"
