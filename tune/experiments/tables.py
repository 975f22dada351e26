"""Figures as people read them, and the tables of an experiment on the screen."""

from collections.abc import Callable, Sequence

from tune.arithmetic import Interval
from tune.experiments.base import Experiment, Row
from tune.published import against_itself
from tune.table_text import NOTHING, Table, on_screen

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
