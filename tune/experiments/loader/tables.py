"""The tables of the loader experiment, and what they come to."""

from collections.abc import Sequence
from typing import Any

from tune.experiments.experiment import Row, Table
from tune.experiments.loader.work import OWN
from tune.experiments.tables import NOTHING, figure, with_interval

FASTEST, SLOWER_FROM = 2, 7
"""Workers, of the published report: the fastest number, and that from which on they are slower than none."""


def tables(rows: Sequence[Row]) -> list[Table]:
    """Workers of each kind of data, then the settings."""
    found = [row for row in rows if "sources" in row]
    return [(workers if row["asked"]["measure"] == "workers" else settings)(row) for row in found]


def workers(row: Row) -> Table:
    """What each number of workers takes."""
    epoch = row["items"] / row["rows"]
    cells = [
        [
            source["name"], with_interval(source["empty"], "{:.2f}", 1e3), f"{epoch * source['empty'][0]:.1f}",
            with_interval(source["wait"], "{:.2f}", 1e3), with_interval(source["whole"], "{:.2f}", 1e3),
            with_interval(source["gain"], "{:.2f}"), f"{1e3 * source['first'][0]:.1f}",
            f"{source['start_seconds']:.2f}", published(source["name"]),
        ]
        for source in row["sources"]
    ]  # fmt: skip
    columns = (
        *("workers", "empty loop, ms", "whole set, s", "running: wait, ms", "running: all, ms"),
        *("times as fast", "first batch, ms", "begin, s", "published"),
    )
    note = (
        f"{row['rows']} of {row['items']:,} at a time; medians of {rounds_of(row)} rounds of {row['batches']} batches, "
        "in turns; begin: until the very first batch, processes and all; first batch: of a later epoch"
    )
    return Table(title=f"Loading {row['asked']['of']}, a batch", columns=columns, rows=cells, note=note)


def settings(row: Row) -> Table:
    """What prefetching and keeping the workers takes."""
    cells = [
        [
            *reversed(source["name"].split()), f"{1e3 * source['first'][0]:.1f}",
            with_interval(source["wait"], "{:.2f}", 1e3), with_interval(source["whole"], "{:.2f}", 1e3),
        ]
        for source in row["sources"]
    ]  # fmt: skip
    columns = "batches ahead", "workers are", "first batch, ms", "running: wait, ms", "running: all, ms"
    count = row["asked"]["workers"]
    title = f"Settings with {count} worker{'s' * (count != 1)}, {row['asked']['of']}, a batch"
    return Table(title=title, columns=columns, rows=cells, note=f"epochs of {row['batches']} batches")


def published(name: str) -> str:
    """What the report tells of a number of workers."""
    if name == OWN:
        return NOTHING
    return "fastest" if int(name) == FASTEST else "slower than 0" if int(name) >= SLOWER_FROM else NOTHING


def rounds_of(row: Row) -> int:
    """How often each was measured."""
    return len(next(iter(row["rounds"].values())))


def loaders(row: Row) -> list[dict[str, Any]]:
    """The sources that are DataLoaders."""
    return [source for source in row["sources"] if source["name"] != OWN]


def fastest(row: Row, kind: str) -> dict[str, Any]:
    """The DataLoader that takes the least of a kind."""
    return min(loaders(row), key=lambda source: source[kind][0])


def listed(names: Sequence[object]) -> str:
    """1, 2, 3"""
    return ", ".join(map(str, names))


def conclusions(rows: Sequence[Row]) -> list[str]:
    """With how many workers a loop is fastest, and what our own batches take."""
    found = [row for row in rows if "sources" in row and row["asked"]["measure"] == "workers"]
    return [sentence for row in found for sentence in (_best(row), _own(row)) if sentence]


def _best(row: Row) -> str:
    of, best, most = row["asked"]["of"], fastest(row, "whole"), len(loaders(row)) - 1
    slower = [int(source["name"]) for source in loaders(row) if source["gain"][2] < 1]
    alike = [source["name"] for source in loaders(row) if source["of_best"][1] <= 1 and source is not best]
    return (
        f"{of.capitalize()}: of 0 to {most} workers {best['name']} are fastest in a running loop, "
        f"{with_interval(best['gain'], '{:.2f}')} times as fast as none"
        f"{f' (not told apart from {listed(alike)})' if alike else ''}, "
        f"and {fastest(row, 'empty')['name']} in an empty one; "
        f"{f'slower than none: {listed(slower)}' if slower else 'no number shows as slower than none'}."
    )


def _own(row: Row) -> str:
    own = next((source for source in row["sources"] if source["name"] == OWN), None)
    if own is None:
        return ""
    best = fastest(row, "wait")
    return (
        f"This project's own batches make the loop wait {figure(1e3 * own['wait'][0], '{:.2f}')} ms a batch, "
        f"the best DataLoader ({best['name']} workers) {figure(1e3 * best['wait'][0], '{:.2f}')} ms."
    )
