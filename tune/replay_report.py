"""Replays for reading: mean regrets by table, budget and workers, losses as plainly as wins."""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

Row = dict[str, Any]


def report(rows: Sequence[Row]) -> str:
    """Tables in plain text. Regret is perplexity above the best of the table, in %."""
    seeds = rows[0]["seeds"]
    parts = [f"mean regret in % of the best perplexity, {seeds} search{'es' if seeds > 1 else ''} a cell"]
    for key in ("table", "budget", "workers"):
        parts.append(_grid(rows, key, lambda row: 100 * row["mean_regret"], "regret"))
    columns: dict[str, Callable[[Row], float]] = {
        "regret": lambda row: 100 * row["mean_regret"],
        "+-": lambda row: 100 * row["standard_error"],
        "p90": lambda row: 100 * row["p90_regret"],
        "unspent %": lambda row: 100 * row["unspent"],
        "diverged %": lambda row: 100 * row["after_divergence"],
        "unfit %": lambda row: 100 * row["unfit"],
        "trials": lambda row: row["trials"],
        "hypervolume": lambda row: row["hypervolume"],
    }
    lines = [["means over all cells", *columns]]
    for scheduler in _names(rows, "scheduler"):
        own = [row for row in rows if row["scheduler"] == scheduler]
        lines.append([scheduler, *(f"{statistics.fmean(value(row) for row in own):.2f}" for value in columns.values())])
    parts.append(_align(lines))
    return "\n\n".join(parts)


def _grid(rows: Sequence[Row], key: str, value: Callable[[Row], float], what: str) -> str:
    """One line a scheduler, one column for each value of `key`."""
    names = _names(rows, key)
    lines = [[f"{what} by {key}", *(str(name) for name in names)]]
    for scheduler in _names(rows, "scheduler"):
        cells = [
            statistics.fmean(value(row) for row in rows if row["scheduler"] == scheduler and row[key] == name)
            for name in names
        ]
        lines.append([scheduler, *(f"{cell:.2f}" for cell in cells)])
    return _align(lines)


def _names(rows: Sequence[Row], key: str) -> list[Any]:
    return list(dict.fromkeys(row[key] for row in rows))


def _align(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )
