"""Replays for reading: mean regrets and their ratios by table, budget and workers, losses as plainly as wins."""

import statistics
from collections.abc import Callable, Sequence

from tune.virtual.rows import Row
from tune.virtual.searches import WITHOUT

OURS, BOUND = "ration", "oracle"
GRIDS = ("table", "budget", "workers")


def report(rows: Sequence[Row]) -> str:
    """Tables in plain text. Regret is perplexity above the best of the table, in %."""
    seeds = rows[0]["seeds"]
    parts = [f"mean regret in % of the best perplexity, {seeds} search{'es' if seeds > 1 else ''} a cell"]
    parts += [_regrets(rows, key) for key in GRIDS]
    parts.append(_means(rows))
    if OURS in _names(rows, "scheduler") and _peers(rows):
        parts += [_ratios(rows, f"{OURS}'s regret / by {key}", key) for key in GRIDS]
        if at_half := _with_half(rows):
            parts.append(_ratios(at_half, f"{OURS}'s regret with half the budget / by budget", "budget"))
    return "\n\n".join(parts)


def _regrets(rows: Sequence[Row], key: str) -> str:
    """One line a scheduler, one column for each value of `key`, and one for all."""
    lines = [[f"regret by {key}", *map(str, _names(rows, key)), "all"]]
    for scheduler in _names(rows, "scheduler"):
        cells = [_regret(part, scheduler) for part in (*_parts(rows, key), rows)]
        lines.append([scheduler, *(f"{100 * cell:.2f}" for cell in cells)])
    return _align(lines)


def _with_half(rows: Sequence[Row]) -> list[Row]:
    """The peers' rows, and ours with half of their budgets in the place of ours, where both are there."""

    def place(row: Row, times: float) -> tuple[str, int, str]:
        return row["table"], row["workers"], f"{times * row['cap_seconds']:.6g}"

    halves = {place(row, 2.0): row for row in rows if row["scheduler"] == OURS}
    peers = [row for row in rows if row["scheduler"] in _peers(rows) and place(row, 1.0) in halves]
    ours = {place(row, 1.0): halves[place(row, 1.0)] | {"budget": row["budget"]} for row in peers}
    return [*ours.values(), *peers]


def _ratios(rows: Sequence[Row], title: str, key: str) -> str:
    """Our regret over each peer's, and over that of the best peer in each column; below 1 is a win."""
    parts = [*_parts(rows, key), rows]
    lines = [[title, *map(str, _names(rows, key)), "all"]]
    for peer in _peers(rows):
        lines.append([peer, *(_ratio(_regret(part, OURS), _regret(part, peer)) for part in parts)])
    best = [min(_regret(part, peer) for peer in _peers(rows)) for part in parts]
    lines.append(["best peer", *(_ratio(_regret(part, OURS), of) for part, of in zip(parts, best, strict=True))])
    return _align(lines)


def _means(rows: Sequence[Row]) -> str:
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
    return _align(lines)


def _regret(rows: Sequence[Row], scheduler: str) -> float:
    return statistics.fmean(row["mean_regret"] for row in rows if row["scheduler"] == scheduler)


def _ratio(ours: float, theirs: float) -> str:
    return f"{ours / theirs:.2f}" if theirs else "-"


def _peers(rows: Sequence[Row]) -> list[str]:
    return [name for name in _names(rows, "scheduler") if name not in (OURS, BOUND) and not name.startswith(WITHOUT)]


def _parts(rows: Sequence[Row], key: str) -> list[list[Row]]:
    return [[row for row in rows if row[key] == name] for name in _names(rows, key)]


def _names(rows: Sequence[Row], key: str) -> list[str]:
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
