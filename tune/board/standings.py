"""Where each trial of a family stands, read from the journal; and what TensorBoard shows of it: a table, a picture."""

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullLocator
from tensorboard.compat.proto.summary_pb2 import Summary

from tune.dimensions import label
from tune.errors import called
from tune.journal import Journal
from tune.ranking import FAILED, REACHED

TOP = 20
"""Rows of a table; analysis/rank.py has all."""
DOTS_PER_INCH = 100
SIZE = (6.4, 4.0)
"""Inches."""
AXES = (0.11, 0.13, 0.87, 0.79)
"""Left, bottom, width and height as shares of it; a layout that matplotlib works out costs a second drawing."""
DECADE = 10
DECAYED = "after the decay"
ORANGE = (0.84, 0.37, 0.0)


@dataclass(frozen=True, kw_only=True)
class Place:
    """A trial at the furthest level that it completed: a rung, or its decay."""

    trial: str
    config: dict[str, Any]
    level: str
    parameters: int
    perplexity: float
    bits_per_character: float
    test_perplexity: float | None

    @property
    def quotient(self) -> float:
        """Perplexity per million parameters."""
        return self.perplexity / (self.parameters / 1e6)


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A trial that diverged or broke, which has no place."""

    trial: str
    config: dict[str, Any]
    reason: str


def standings(journal: Journal, family: str) -> dict[str, list[Place]]:
    """By level, the furthest first, the lowest perplexity first; what was measured twice counts as measured last.

    What diverged or broke is left out.
    """
    rows = journal.rows(
        f"""
        SELECT trial, config, parameters, final, rung, perplexity, bits_per_character, test_perplexity
        FROM ({REACHED}) JOIN trials USING (trial) WHERE family = ? AND NOT ({FAILED})
        ORDER BY final DESC, rung DESC, perplexity""",
        family,
    )
    found: dict[str, list[Place]] = {}
    for row in rows:
        level = DECAYED if row["final"] else f"rung {row['rung']}"
        place = Place(
            trial=row["trial"], config=json.loads(row["config"]), level=level, parameters=row["parameters"],
            perplexity=row["perplexity"], bits_per_character=row["bits_per_character"],
            test_perplexity=row["test_perplexity"],
        )  # fmt: skip
        found.setdefault(level, []).append(place)
    return found


def failures(journal: Journal, family: str) -> list[Failure]:
    """In the order in which they began."""
    query = f"SELECT trial, config, state, reason FROM trials WHERE family = ? AND ({FAILED}) ORDER BY created, trial"
    return [
        Failure(trial=row["trial"], config=json.loads(row["config"]), reason=row["reason"] or row["state"])
        for row in journal.rows(query, family)
    ]


def table(levels: dict[str, list[Place]], failed: Sequence[Failure]) -> str:
    """The ranking as Markdown: inside each level by perplexity per million parameters, as analysis/rank.py does.

    What failed stands last, in a table of its own.
    """
    ranked = [(number, place) for level in levels.values() for number, place in enumerate(_by_quotient(level), 1)]
    rows = [
        (
            place.level, str(number), place.trial, label(place.config), f"{place.quotient:.4g}",
            f"{place.perplexity:.4g}", f"{place.parameters:,}", f"{place.bits_per_character:.4g}",
            "-" if place.test_perplexity is None else f"{place.test_perplexity:.4g}",
        )
        for number, place in ranked
    ]  # fmt: skip
    columns = "level", "#", "trial", "config", "perplexity /M", "perplexity", "parameters", "bits/char", "test"
    tables = [_markdown(columns, rows)]
    if failed:
        broken = [(each.trial, label(each.config), each.reason) for each in failed]
        tables.append(_markdown(("failed or diverged", "config", "why"), broken))
    return "\n\n".join(tables)


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The first TOP rows, and how many more there are."""
    shown = ([cell.replace("|", "\\|") for cell in cells] for cells in (columns, ["---"] * len(columns), *rows[:TOP]))
    lines = [f"| {' | '.join(cells)} |" for cells in shown]
    if len(rows) > TOP:
        lines.append(f"\n{len(rows) - TOP} more: `{called('analysis/rank.py')} --top 0`")
    return "\n".join(lines)


def picture(family: str, levels: dict[str, list[Place]]) -> Summary.Value:
    """Size against perplexity: each trial where it got to, and the front of the furthest level."""
    figure = Figure(figsize=SIZE, dpi=DOTS_PER_INCH)
    plot = figure.add_axes(AXES)
    for shade, (level, places) in zip(np.linspace(0, 0.75, len(levels)), levels.items(), strict=True):
        marker, size, color = ("*", 130, ORANGE) if level == DECAYED else ("o", 26, _blue(shade))
        plot.scatter(*_points(places), label=level, marker=marker, s=size, color=color)
    furthest = _front(next(iter(levels.values())))
    plot.step(*_points(furthest), where="post", c="black", lw=1)
    best = furthest[-1]
    sizes = [place.parameters for places in levels.values() for place in places]
    side, shift = ("left", 7) if best.parameters**2 < min(sizes) * max(sizes) else ("right", -7)
    plot.annotate(
        f"{best.trial} {label(best.config)}", (best.parameters, best.perplexity), (shift, -12), fontsize=8, ha=side,
        textcoords="offset points",
    )  # fmt: skip
    plot.set(xscale="log", yscale="log", xlabel="parameters", ylabel="validation perplexity")
    plot.set_title(f"{family}: the front {best.level}", fontsize=10)
    plot.margins(0.12)
    for axis in (plot.xaxis, plot.yaxis):
        low, high = axis.get_view_interval()
        axis.set_major_locator(MaxNLocator(5) if high < DECADE * low else LogLocator(subs=(1, 2, 5)))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(EngFormatter(sep=""))
    plot.legend(fontsize=8, frameon=False)
    image = io.BytesIO()
    figure.savefig(image, format="png")
    width, height = (round(inches * DOTS_PER_INCH) for inches in SIZE)
    encoded = Summary.Image(width=width, height=height, colorspace=4, encoded_image_string=image.getvalue())
    return Summary.Value(tag=f"front/{family}", image=encoded)


def _points(places: Sequence[Place]) -> tuple[list[int], list[float]]:
    return [place.parameters for place in places], [place.perplexity for place in places]


def _by_quotient(places: Sequence[Place]) -> list[Place]:
    return sorted(places, key=lambda place: place.quotient)


def _front(places: Sequence[Place]) -> list[Place]:
    """Those that none is both smaller and better than, the smallest first."""
    front: list[Place] = []
    for place in sorted(places, key=lambda place: (place.parameters, place.perplexity)):
        if not front or place.perplexity < front[-1].perplexity:
            front.append(place)
    return front


def _blue(shade: float) -> tuple[float, float, float]:
    """The lighter, the lower the rung."""
    return (shade, 0.45 + 0.5 * shade, 0.7 + 0.25 * shade)
