"""Figures as people read them, the tables of an experiment on the screen, and the published figures beside them:
analysis/published/ says of each where it is from.
"""

import csv
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from tune.arithmetic import Interval
from tune.experiments.base import Experiment, Row
from tune.published import PUBLISHED, against_itself
from tune.table_text import NOTHING, Table, on_screen


@cache
def published(name: str) -> tuple[dict[str, Any], ...]:
    """The rows of a table: numbers, words where the report has words, None where it has nothing."""
    with (PUBLISHED / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return tuple({column: _value(text) for column, text in row.items()} for row in csv.DictReader(file))


def published_by(name: str, *keys: str) -> dict[tuple[str, ...], dict[str, Any]]:
    """The same by columns of words, without these."""
    return {
        tuple(row[key] for key in keys): {column: row[column] for column in row.keys() - set(keys)}
        for row in published(name)
    }


def _value(text: str) -> float | str | None:
    try:
        return float(text) if text else None
    except ValueError:
        return text


WIDTH = 160
MIB = 2**20


def with_interval(value: Interval | None, form: str = "{:.3g}", factor: float = 1.0) -> str:
    """1.42 (1.40-1.44)"""
    if value is None:
        return NOTHING
    figure, low, high = (form.format(factor * each) for each in value)
    return f"{figure} ({low}-{high})"


def signed(value: Interval, form: str = "{:+.3f}", factor: float = 1.0) -> str:
    """-0.12 (-0.15 to -0.09)"""
    middle, low, high = (form.format(factor * each) for each in value)
    return f"{middle} ({low} to {high})"


def figure(value: float | None, form: str = "{:.4g}", factor: float = 1.0) -> str:
    """A number, or that there is none."""
    return NOTHING if value is None else form.format(factor * value)


def ending(experiment: Experiment, rows: Sequence[Row]) -> list[Table]:
    """What an experiment ends with: its tables, and what is wrong with the published one beside them."""
    made = experiment.tables(rows)
    return [*made, *(against_itself(experiment.name) if made else [])]


def show(tables: Sequence[Table], write: Callable[[str], None]) -> None:
    """Write the tables line by line."""
    for table in tables:
        for line in (*on_screen(table, WIDTH), ""):
            write(line)
