"""Figures as text, and the tables of an experiment on the screen."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from tune.arithmetic import Interval, mean_interval
from tune.experiments.base import Experiment, Row
from tune.published import contradiction_tables
from tune.search_space import label
from tune.table_text import EMPTY_CELL, Table, screen_lines

WIDTH = 160
MIB = 2**20
Key = TypeVar("Key")


def with_interval(value: Interval | None, form: str = "{:.3g}", factor: float = 1.0) -> str:
    """Return a value with its interval as text: 1.42 (1.40-1.44)."""
    if value is None:
        return EMPTY_CELL
    figure, low, high = (form.format(factor * each) for each in value)
    return f"{figure} ({low}-{high})"


def signed(value: Interval, form: str = "{:+.3f}", factor: float = 1.0) -> str:
    """Return a signed value with its interval as text: -0.12 (-0.15 to -0.09); one seed has no interval."""
    middle, low, high = (form.format(factor * each) for each in value)
    return middle if value[1] == value[2] else f"{middle} ({low} to {high})"


def figure(value: float | None, form: str = "{:.4g}", factor: float = 1.0) -> str:
    """Return a number as text; EMPTY_CELL for None."""
    return EMPTY_CELL if value is None else form.format(factor * value)


def marked(row: Row) -> str:
    """Return the mark of a figure that was disturbed by other processes, also in the repetition if there was time for
    one."""
    return " *" if row.get("disturbed") else ""


def noted(rows: Iterable[Row], note: str = "") -> str:
    """Return a note; where a row has the mark, also what the mark means and how many cores others took."""
    taken = [row["others_cores"] for row in rows if row.get("disturbed")]
    mark = f"*: others took up to {max(taken):.1f} cores, also when it was measured again" if taken else ""
    return "; ".join(filter(None, (note, mark)))


def grouped(rows: Iterable[Row], key: Callable[[Row], Key]) -> dict[Key, list[Row]]:
    """Return the rows by key, such as those that differ only in their seed, in the order in which the keys first
    occur."""
    found: dict[Key, list[Row]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


def by_seed(rows: Iterable[Row], others: Iterable[Row]) -> list[tuple[Row, Row]]:
    """Return each row with the other row of its seed, where there is one."""
    known = {other["config"].get("seed"): other for other in others}
    return [(row, known[seed]) for row in rows if (seed := row["config"].get("seed")) in known]


def step_ratios(pairs: Iterable[tuple[Row, Row]]) -> list[float]:
    """Return how many times as long as the other's a step of each pair takes, of those that were both timed in turns
    with the plain training of their shape."""
    timed = [(row.get("step_ratio"), other.get("step_ratio")) for row, other in pairs]
    return [one / other for one, other in timed if one and other]


def over_seeds(
    values: Iterable[float | None], form: str = "{:.4g}", factor: float = 1.0,
    interval: Callable[[Interval, str, float], str] = with_interval,
) -> str:  # fmt: skip
    """Return the mean of the values that are not None, one a seed, as text; of several with its 95 % interval."""
    known = [value for value in values if value is not None]
    whole = mean_interval(known)
    if whole is None:
        return figure(known[0] if known else None, form, factor)
    return interval(whole, form, factor)


def final_tables(experiment: Experiment, rows: Sequence[Row]) -> list[Table]:
    """Return the tables that an experiment ends with: those of its own that have rows, that of the trainings that
    diverged and are in no other, and that of what is wrong with the published figures beside them."""
    whole = rows if experiment.diverging or experiment.work else [row for row in rows if row["valid_loss"] is not None]
    made = [table for table in experiment.tables(whole) if table.rows]
    made += [] if len(whole) == len(rows) else [diverged(rows)]
    return [*made, *(contradiction_tables(experiment.name) if made else [])]


def diverged(rows: Sequence[Row]) -> Table:
    """Return the table of the configurations of a list with trainings that diverged."""
    each = grouped(rows, lambda row: label({name: of for name, of in row["config"].items() if name != "seed"}))
    lost = {name: sum(row["valid_loss"] is None for row in seeds) for name, seeds in each.items()}
    found = [[name, str(count), str(len(each[name]))] for name, count in lost.items() if count]
    note = "They are in no table above: means there are of the others alone."
    return Table(title="Diverged", columns=("", "trainings that diverged", "of"), rows=found, note=note)


def lines_of(tables: Iterable[Table]) -> Iterator[str]:
    """Yield the tables line by line, an empty line after each."""
    for table in tables:
        yield from (*screen_lines(table, WIDTH), "")
