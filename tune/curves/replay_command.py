"""The command behind the replay: it runs cells, each of many searches that differ in their seed, and keeps and prints
their rows."""

import hashlib
import json
import math
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from tune.curves.benchmark import IDEAS, OF_FRONT, WITHOUT, Cell, Outcome, searches
from tune.curves.recorded import Table, load_table
from tune.curves.replay_settings import ALL, ReplaySettings
from tune.errors import UserError
from tune.flags import invalid
from tune.table_text import Table as TextTable
from tune.table_text import screen_lines, screen_width

Row = dict[str, Any]
"""What a cell was asked for, and what was found."""
ROW_BEGINS = '{"table": "'
"""How the line of each row begins: `cell_inputs` names its table first."""


class Rows:
    """The rows that are known. With a path, each new one is appended to that file at once, as a line of JSON."""

    def __init__(self, path: Path | None) -> None:
        """Read the rows of the file at `path`. UserError: it cannot be read or written, or holds something else."""
        self._path = path
        self._rows: list[Row] = []
        if path is None:
            return
        try:
            path.touch()
            text = path.read_text(encoding="utf-8")
            whole, newline, cut_off = text.rpartition("\n")
            if not cut_off.startswith(ROW_BEGINS[: len(cut_off)]):
                raise ValueError(cut_off)
            for line in whole.splitlines():
                row = json.loads(line)
                row["scheduler"], row["code"]  # KeyError, TypeError: it is no row
                self._rows.append(row)
            if cut_off:
                path.write_text(whole + newline, encoding="utf-8")
        except OSError as error:
            raise UserError(
                f"--rows: '{path}' cannot be used ({error.strerror}); name a file to keep rows in"
            ) from error
        except (ValueError, TypeError, KeyError) as error:
            raise UserError(f"--rows: '{path}' holds something else than rows; name another file") from error

    def find(self, asked: Row) -> Row | None:
        """Return the row that was kept for what is asked, if any."""
        return next((row for row in self._rows if asked.items() <= row.items()), None)

    def keep(self, row: Row) -> None:
        """Keep a row, at once. UserError: the file cannot be written."""
        self._rows.append(row)
        if self._path:
            try:
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
            except OSError as error:
                raise UserError(f"--rows: '{self._path}' cannot be written ({error.strerror}); make room") from None


def replay(tables: Sequence[Table], settings: ReplaySettings, earlier: Table | None = None) -> list[Row]:
    """Return a row for each table, budget, number of workers and scheduler. earlier: as of a Cell."""
    kept = Rows(settings.rows)
    without = IDEAS if ALL in settings.ablations else settings.ablations
    schedulers = (*settings.schedulers, *(f"{WITHOUT}{idea}" for idea in without))
    rows = []
    cells = list(product(tables, settings.budget, settings.workers, schedulers))
    screen = Console(stderr=True)  # shows progress, on a terminal only
    tracked = track(cells, f"{len(cells)} cells", console=screen, transient=True, disable=not screen.is_terminal)
    for table, budget, workers, scheduler in tracked:
        cell = Cell(table=table, scheduler=scheduler, budget=budget, workers=workers, earlier=earlier)
        row = kept.find(cell_inputs(cell, settings))
        if row is None:
            row = cell_inputs(cell, settings) | summarize_outcomes(searches(cell, settings))
            kept.keep(row)
        rows.append(row)
    return rows


def cell_inputs(cell: Cell, settings: ReplaySettings) -> Row:
    """Return what a cell was asked for."""
    return {
        "table": cell.table.name, "content": cell.table.content, "scheduler": cell.scheduler,
        "budget": cell.budget.text, "cap_seconds": cell.cap, "workers": cell.workers,
        "deadline": settings.deadline and settings.deadline.text, "patient": settings.patient, "seeds": settings.seeds,
        "suggest": settings.suggest, "learn_from": cell.earlier and cell.earlier.content, "code": code(),
        "start_up": settings.start_up, "thaw": settings.thaw, "diverge": settings.diverge,
        "memory_limit": settings.memory_limit if math.isfinite(settings.memory_limit) else None,
    }  # fmt: skip


@cache
def code() -> str:
    """Return a digest of the code that decides, so that rows of other code are measured again."""
    here = Path(__file__).resolve().parents[1]
    files = sorted(path for folder in (".", "search", "store", "curves") for path in (here / folder).glob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]


def summarize_outcomes(outcomes: Sequence[Outcome]) -> Row:
    """Return what the searches of a cell come to; regrets are 0.05 where the perplexity is 5 % above the best."""
    values = {each.name: [getattr(outcome, each.name) for outcome in outcomes] for each in fields(Outcome)}
    means, regrets = {name: statistics.fmean(each) for name, each in values.items()}, sorted(values["regret"])

    def error(name: str) -> float:
        return statistics.stdev(values[name]) / math.sqrt(len(outcomes)) if len(outcomes) > 1 else 0.0

    return {
        "mean_regret": means.pop("regret"), "standard_error": error("regret"),
        "p90_regret": regrets[max(0, math.ceil(0.9 * len(regrets)) - 1)],
        "wall_seconds": means.pop("wall"), "hypervolume_error": error("hypervolume"), **means,
    }  # fmt: skip


OURS, BOUND = "ration", "oracle"
NO_BASELINES = (OURS, OF_FRONT, BOUND)
GRIDS = ("table", "budget", "workers")


def report(rows: Sequence[Row]) -> list[TextTable]:
    """Return the tables to print. Regret is perplexity above the best of the table, in %; the hypervolume, of what
    trials came to in (log parameters, loss), is a share of that of all curves to their ends."""
    seeds = rows[0]["seeds"]
    note = f"Means in % of the best perplexity, {seeds} search{'es' if seeds > 1 else ''} a cell."
    tables = [_by(rows, key, "regret", lambda row: 100 * row["mean_regret"], note=note) for key in GRIDS]
    tables += [_by(rows, key, "hypervolume", lambda row: row["hypervolume"], ".3f") for key in GRIDS]
    tables.append(_over_all(rows))
    if OURS in _names(rows, "scheduler") and _baselines(rows):
        tables += [_ratios(rows, f"{OURS}'s regret over each baseline's, by {key}", key) for key in GRIDS]
        if at_half := _with_half(rows):
            tables.append(_ratios(at_half, f"{OURS}'s regret with half the budget over each baseline's", "budget"))
    return tables


def _means(rows: Sequence[Row], value: Callable[[Row], float], key: str | None = None) -> dict[str, list[float]]:
    """Return by scheduler the means over the cells of each value of `key`, and over all."""
    parts = [[row for row in rows if row[key] == name] for name in _names(rows, key)] if key else []
    return {
        name: [statistics.fmean(value(row) for row in part if row["scheduler"] == name) for part in (*parts, rows)]
        for name in _names(rows, "scheduler")
    }


def _by(
    rows: Sequence[Row], key: str, what: str, value: Callable[[Row], float], form: str = ".2f", note: str = ""
) -> TextTable:
    """Return a table of means: one line for each scheduler, one column for each value of `key`, and one for all."""
    lines = [[name, *(f"{mean:{form}}" for mean in means)] for name, means in _means(rows, value, key).items()]
    columns = ["scheduler", *map(str, _names(rows, key)), "all"]
    return TextTable(title=f"{what} by {key}", columns=columns, rows=lines, note=note)


def _with_half(rows: Sequence[Row]) -> list[Row]:
    """Return the baselines' rows, and ours with half of their budgets in place of ours with all, where both are
    there."""

    def place(row: Row, times: float) -> tuple[str, int, str]:
        return row["table"], row["workers"], f"{times * row['cap_seconds']:.6g}"

    halves = {place(row, 2.0): row for row in rows if row["scheduler"] == OURS}
    baselines = [row for row in rows if row["scheduler"] in _baselines(rows) and place(row, 1.0) in halves]
    ours = {(place(row, 1.0), row["budget"]): halves[place(row, 1.0)] | {"budget": row["budget"]} for row in baselines}
    return [*ours.values(), *baselines]


def _ratios(rows: Sequence[Row], title: str, key: str) -> TextTable:
    """Return our regret over each baseline's, and over that of the best baseline in each column; below 1 is a win."""
    regrets = _means(rows, lambda row: row["mean_regret"], key)
    others = {name: regrets[name] for name in _baselines(rows)}
    others["best baseline"] = [min(each) for each in zip(*others.values(), strict=True)]
    lines = [
        [name, *(f"{ours / of:.2f}" if of else "-" for ours, of in zip(regrets[OURS], theirs, strict=True))]
        for name, theirs in others.items()
    ]
    return TextTable(title=title, columns=["baseline", *map(str, _names(rows, key)), "all"], rows=lines)


def _over_all(rows: Sequence[Row]) -> TextTable:
    """Return a table of means over all cells. bound: regret of the best configuration alone, with .6 of the cap; wall:
    seconds to the end, in multiples of cap / workers."""
    columns: dict[str, Callable[[Row], float]] = {
        "regret": lambda row: 100 * row["mean_regret"],
        "bound": lambda row: 100 * row["bound"],
        "+-": lambda row: 100 * row["standard_error"],
        "p90": lambda row: 100 * row["p90_regret"],
        "unspent %": lambda row: 100 * row["unspent"],
        "diverged %": lambda row: 100 * row["after_divergence"],
        "unfit %": lambda row: 100 * row["unfit"],
        "trials": lambda row: row["trials"],
        "hypervolume": lambda row: row["hypervolume"],
        "+-hv": lambda row: row["hypervolume_error"],
        "wall": lambda row: row["wall_seconds"] * row["workers"] / row["cap_seconds"],
    }
    means = [_means(rows, value) for value in columns.values()]
    lines = [[name, *(f"{each[name][0]:.2f}" for each in means)] for name in _names(rows, "scheduler")]
    return TextTable(title="means over all cells (+- is that of a cell)", columns=["scheduler", *columns], rows=lines)


def _baselines(rows: Sequence[Row]) -> list[str]:
    return [name for name in _names(rows, "scheduler") if name not in NO_BASELINES and not name.startswith(WITHOUT)]


def _names(rows: Sequence[Row], key: str) -> list[str]:
    return list(dict.fromkeys(row[key] for row in rows))


def earlier_table(settings: ReplaySettings, tables: Sequence[Table]) -> Table | None:
    """Return the table of --learn-from, if there is one. UserError: it tells the searches of these tables nothing."""
    if settings.learn_from is None:
        return None
    if settings.suggest != "prior":
        raise invalid("learn-from", "a search that is told of an earlier one has a prior: add --suggest prior")
    earlier = load_table(settings.learn_from)
    families = {curve.family for table in (earlier, *tables) for curve in table.curves}
    if not earlier.is_own_mode or len(families) > 1:
        rule = "is no table in own mode, of the family of those that are searched: name such a one"
        raise invalid("learn-from", f"'{settings.learn_from}' {rule}")
    return earlier


def run(settings: ReplaySettings) -> int:
    """Run a replay, and print its results. UserError: a table does not serve, or an idea is not known."""
    if unknown := [idea for idea in settings.ablations if idea not in (*IDEAS, ALL)]:
        raise invalid("ablations", f"{unknown[0]!r} is not known: choose from {', '.join(IDEAS)}, or {ALL}")
    once = {path.resolve(): path for path in settings.tables}
    loaded = [(path, load_table(path)) for path in once.values()]
    named = Counter(table.name for _, table in loaded)
    tables = [
        replace(table, name=str(path.parent / table.name)) if named[table.name] > 1 else table for path, table in loaded
    ]
    rows = replay(tables, settings, earlier_table(settings, tables))
    empty = list(dict.fromkeys(row["budget"] for row in rows if not row["trials"]))
    if not any(row["trials"] for row in rows):
        raise invalid("budget", f"'{','.join(empty)}' pays for no report of any curve: write more")
    if empty:
        print(
            f"warning: not each cell of {', '.join(empty)} pays for a report: some rows are of no trial",
            file=sys.stderr,
        )
    shown = report(rows)
    if settings.json:
        print(json.dumps(rows, indent=1))
    elif settings.format:
        print(settings.render(shown))
    else:
        print("\n\n".join("\n".join(screen_lines(each, screen_width(sys.maxsize))) for each in shown))
    return 0
