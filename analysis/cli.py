"""What the entries share: the studies to open, the exit codes."""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tune.errors import UserError, called

WIDTH = 160
"""Characters a line, where the output is not a terminal."""


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


def table(title: str, *, caption: str | None = None) -> Table:
    """An empty table in the one style."""
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        caption=caption,
        caption_justify="left",
        box=None,
        pad_edge=False,
        header_style="dim",
    )


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
