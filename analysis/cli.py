"""What the entries share: the studies to open, the exit codes."""

import argparse
import os
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Literal

import pandas as pd
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from tune.errors import UserError, called

WIDTH = 160
"""Characters a line, where the output is not a terminal."""
GAP = 2
"""Characters between two columns of a table."""


def parser(entry: str, summary: str, *, studies: str | int = "*") -> argparse.ArgumentParser:
    """A parser of the study folders; `studies` as argparse's nargs."""
    made = argparse.ArgumentParser(prog=called(f"analysis/{entry}.py"), description=summary)
    made.add_argument(
        "studies",
        nargs=studies,
        type=Path,
        metavar="runs/STUDY",
        help="folder of a study (default: the newest in runs/)",
    )
    return made


def console() -> Console:
    """Where tables go; lines are not folded where the output is not a terminal."""
    return Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else WIDTH)


def table() -> Table:
    """An empty table in the one style."""
    return Table(box=None, pad_edge=False, header_style="dim")


def draw(
    console: Console, title: str, rows: pd.DataFrame, *, words: Collection[str], first: Sequence[str] = (), more: str
) -> None:
    """Print a table of text without cutting any of it: columns that do not fit are left out, and named in a line.

    words: columns that stand at the left; the last of them may be folded between words. first: the columns to keep
    before others, which come in their order. more: what shows all columns.
    """
    least = {name: max(map(cell_len, [name, *rows[name]])) for name in rows}
    folds = [name for name in rows if name in words][-1:]
    least |= {name: max(map(cell_len, " ".join([name, *rows[name]]).split())) for name in folds}
    left, shown = console.width + GAP, set()
    for name in dict.fromkeys([*(name for name in first if name in rows), *rows]):
        if least[name] + GAP <= left:
            left -= least[name] + GAP
            shown.add(name)
    console.print(title, style="bold", soft_wrap=True)
    drawn = table()
    for name in (name for name in rows if name in shown):
        justify: Literal["left", "right"] = "left" if name in words else "right"
        drawn.add_column(name, justify=justify, no_wrap=name not in folds, min_width=least[name])
    for row in rows[[name for name in rows if name in shown]].itertuples(index=False):
        drawn.add_row(*row)
    console.print(drawn)
    if len(shown) < len(least):
        hidden = ", ".join(name for name in rows if name not in shown)
        console.print(f"no room in {console.width} columns for: {hidden} ({more})", soft_wrap=True, style="dim")


def run(command: Callable[[list[str]], None]) -> int:
    """0; 2 for input that the user can put right, with one line that says how."""
    try:
        command(sys.argv[1:])
        sys.stdout.flush()
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader, such as `head`, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
