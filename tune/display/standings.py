"""The ranking of a family as TensorBoard shows it: a table and a picture."""

import io
import json
import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from sqlite3 import Row

import numpy as np
from tensorboard.compat.proto.summary_pb2 import Summary

from tune.errors import script_command
from tune.reports import MOST_OF_LOG, Metric
from tune.search.front import Point, front
from tune.search_space import label
from tune.store.queries import level_text, measured_text
from tune.table_text import Table, markdown

TOP = 20
"""Rows of a table at most; analysis/rank.py has all."""
DOTS_PER_INCH = 100
SIZE = (6.4, 4.0)
"""Width and height of a picture in inches."""
AXES = (0.11, 0.13, 0.87, 0.79)
"""Left, bottom, width and height of the axes as shares of that; a layout by matplotlib costs a second drawing."""
DECADE = 10
ORANGE = (0.84, 0.37, 0.0)


def levels(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the sound trials of a ranking by level and by what they were measured on there, the furthest level
    first."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if row["level"] is not None:
            found.setdefault(f"{level_text(row)} {measured_text(row)}".rstrip(), []).append(row)
    return found


def ranking_table(rows: Sequence[Row], study: Path) -> str:
    """Return one family's ranking by perplexity per parameter as Markdown. Failed trials stand last, in a table of
    their own."""
    ranked = [
        (
            level, str(number), row["trial"], label(json.loads(row["config"])), f"{row['perplexity_per_million']:.4g}",
            f"{row['perplexity']:.4g}", f"{row['parameters']:,}",
            *("-" if row[name] is None else f"{row[name]:.4g}" for name in ("bits_per_character", "test_perplexity")),
        )
        for level, found in levels(rows).items() for number, row in enumerate(found, 1)
    ]  # fmt: skip
    columns = "level", "#", "trial", "config", "perplexity /M", "perplexity", "parameters", "bits/char", "test"
    return "\n\n".join([_top(columns, ranked, study), *_broken(rows, study)])


def loop_ranking_table(rows: Sequence[Row], study: Path, metric: Metric) -> str:
    """Return the ranking of a user's loop as Markdown: its metric, and the other numbers that it reported then."""
    ranked = [row for row in rows if row["loss"] is not None]
    reported = [json.loads(row["numbers"] or "{}") for row in ranked]
    names = [name for name in dict.fromkeys(name for numbers in reported for name in numbers) if name != metric.name]
    cells = []
    for place, (row, numbers) in enumerate(zip(ranked, reported, strict=True), 1):
        others = [f"{numbers[name]:.4g}" if name in numbers else "-" for name in names]
        first = str(place), row["trial"], label(json.loads(row["config"])), f"{metric.to_reported(row['loss']):.4g}"
        cells.append((*first, f"{row['steps']:,}", *others))
    heads = "#", "trial", "config", f"best {metric.name}", "steps", *names
    return "\n\n".join([_top(heads, cells, study), *_broken(rows, study)])


def _broken(rows: Sequence[Row], study: Path) -> list[str]:
    """Return the failed trials in a table of their own, if there are any."""
    failed = [row for row in rows if row["section"] == "failed"]
    broken = [(row["trial"], label(json.loads(row["config"])), row["reason"] or row["state"]) for row in failed]
    return [_top(("failed or diverged", "config", "why"), broken, study)] if broken else []


def _top(columns: Sequence[str], rows: Sequence[Sequence[str]], study: Path) -> str:
    """Return the first TOP rows as Markdown, and how many more there are."""
    rank = f"{script_command('analysis/rank.py')} {shlex.quote(str(study))} --top 0"
    more = f"{len(rows) - TOP} more: `{rank}`" if len(rows) > TOP else ""
    return markdown(Table(title="", columns=columns, rows=rows[:TOP], note=more))


def draw_front(family: str, rows: Sequence[Row]) -> Summary.Value:
    """Draw size against perplexity: each sound trial at its furthest level, and the front of the furthest level of
    all."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullLocator

    figure = Figure(figsize=SIZE, dpi=DOTS_PER_INCH)
    plot = figure.add_axes(AXES)
    by_level = levels(rows)
    for shade, (level, found) in zip(np.linspace(0, 0.75, len(by_level)), by_level.items(), strict=True):
        marker, size, color = ("*", 130, ORANGE) if found[0]["final"] else ("o", 26, _blue(shade))
        across, up = zip(*map(_place, found), strict=True)
        plot.scatter(across, up, label=level, marker=marker, s=size, color=color)
    first, furthest = next(iter(by_level.items()))
    places = {_place(row): row for row in reversed(furthest)}
    none_better = front(places, (math.inf, math.inf))
    plot.step(*zip(*none_better, strict=True), where="post", c="black", lw=1)
    best = places[none_better[-1]]
    sizes = [row["parameters"] for found in by_level.values() for row in found]
    side, shift = ("left", 7) if best["parameters"] ** 2 < min(sizes) * max(sizes) else ("right", -7)
    plot.annotate(
        f"{best['trial']} {label(json.loads(best['config']))}", none_better[-1], (shift, -12),
        fontsize=8, ha=side, textcoords="offset points",
    )  # fmt: skip
    plot.set(xscale="log", yscale="log", xlabel="parameters", ylabel="validation perplexity")
    plot.set_title(f"{family}: the front {first}", fontsize=10)
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


def _place(row: Row) -> Point:
    """Return a trial's parameters, and its perplexity as far as an axis shows it."""
    return row["parameters"], min(max(row["perplexity"], 1 / MOST_OF_LOG), MOST_OF_LOG)


def _blue(shade: float) -> tuple[float, float, float]:
    """Return a blue, the lighter the lower the rung."""
    return (shade, 0.45 + 0.5 * shade, 0.7 + 0.25 * shade)
