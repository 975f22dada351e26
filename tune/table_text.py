"""Tables of text, as printed on a screen, and the formats in which any command writes them for a report: Markdown,
LaTeX, CSV. Standard library only.
"""

import csv
import io
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from tune.flags import Flags, flag_field, invalid


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table to print: the first column and columns of words are aligned left, the others right."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def __post_init__(self) -> None:
        assert all(len(cells) == len(self.columns) for cells in self.rows), f"{self.title}: a cell for each column"


EMPTY_CELL = "-"
"""Text of a cell without a figure."""
GAP = 2
"""Characters between two columns on a screen."""


def screen_width(otherwise: int) -> int:
    """Return the characters of a line of the terminal; `otherwise` where the output is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else otherwise


def screen_lines(
    table: Table, width: int, *, first: Sequence[str] = (), fold: Sequence[str] = (), more: str = "--csv has them"
) -> list[str]:
    """Return a table's lines on a screen of so many characters. No cell is cut: columns without room are left out, and
    named.

    Columns of `fold`, else the last one of words, may be folded between words. first: columns to keep before the
    others, which are kept in their order; more: what to type to see all columns.
    """
    columns = [[name, *cells] for name, *cells in zip(table.columns, *table.rows, strict=True)]
    worded_ones = {place for place in range(len(columns)) if not place or is_text_column(table, place)}
    folded = {place for place, name in enumerate(table.columns) if name in fold} or {max(worded_ones)}
    worded_ones |= folded
    widths, lacking = [max(map(len, cells)) for cells in columns], {}
    for place in folded:
        narrow = max((len(word) for cell in columns[place] for word in cell.split()), default=0)
        lacking[place], widths[place] = widths[place] - narrow, narrow
    left, shown = width + GAP, set()
    ranks = {name: rank for rank, name in enumerate(first)}
    for place in sorted(range(len(columns)), key=lambda place: ranks.get(table.columns[place], len(ranks))):
        if widths[place] + GAP <= left:
            left -= widths[place] + GAP
            shown.add(place)
    growing = sorted(folded & shown, key=lacking.__getitem__)
    for after, place in zip(range(len(growing), 0, -1), growing, strict=True):
        more_room = min(lacking[place], left // after)
        widths[place], left = widths[place] + more_room, left - more_room
    lines = [table.title] if table.title else []
    for row in zip(*columns, strict=True):
        cells = {place: wrap_text(cell, widths[place]) if place in folded else [cell]
                 for place, cell in enumerate(row) if place in shown}  # fmt: skip
        for parts in zip_longest(*cells.values(), fillvalue=""):
            placed = [part.ljust(widths[place]) if place in worded_ones else part.rjust(widths[place])
                      for place, part in zip(cells, parts, strict=True)]  # fmt: skip
            lines.append((" " * GAP).join(placed).rstrip())
    if len(shown) < len(columns):
        hidden = ", ".join(name for place, name in enumerate(table.columns) if place not in shown)
        lines.append(f"no room in {width} columns for: {hidden} ({more})")
    return [*lines, *(line for each in table.note.splitlines() for line in wrap_text(each, width))]


def wrap_text(text: str, width: int) -> list[str]:
    """Return a text's lines, folded between words."""
    return textwrap.wrap(text, max(1, width), break_long_words=False, break_on_hyphens=False) or [""]


def markdown(table: Table) -> str:
    """Return a table in Markdown, under its title, where it has one."""
    lines = [list(table.columns), ["---"] * len(table.columns), *table.rows]
    rows = "\n".join(f"| {' | '.join(each.replace('|', chr(92) + '|') for each in line)} |" for line in lines)
    return "\n\n".join(filter(None, (f"**{table.title}**" if table.title else "", rows, table.note)))


ESCAPED = {
    **{each: f"\\{each}" for each in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "±": r"$\pm$"},
}


def latex(table: Table) -> str:
    """Return a table in LaTeX that needs no package."""

    def line(cells: Iterable[str]) -> str:
        return " & ".join(map(escaped, cells)) + r" \\"

    caption = escaped(" ".join(filter(None, (f"{table.title}." if table.note else table.title, table.note))))
    places = ["l" if not place or is_text_column(table, place) else "r" for place in range(len(table.columns))]
    return "\n".join([
        r"\begin{table}", r"\centering", rf"\caption{{{caption}}}",
        rf"\begin{{tabular}}{{{''.join(places)}}}", r"\hline", line(table.columns), r"\hline",
        *map(line, table.rows), r"\hline", r"\end{tabular}", r"\end{table}",
    ])  # fmt: skip


def is_text_column(table: Table, column: int) -> bool:
    """Whether most cells of a column that are not empty begin with a letter, so that it is aligned left."""
    cells = [row[column] for row in table.rows if row[column]]
    return 2 * sum(cell[0].isalpha() for cell in cells) > len(cells)


def escaped(text: str) -> str:
    """Return a text with LaTeX's special characters escaped."""
    return "".join(ESCAPED.get(each, each) for each in text)


SEPARATED = re.compile(r"[-+]?[0-9]{1,3}(,[0-9]{3})+(\.[0-9]+)?")
"""A number with thousands separators, which most programs do not read."""


def to_csv(table: Table) -> str:
    """Return a table in CSV: a line with the title, where it has one, then the columns and the rows, without the note.
    Cells that are numbers have no thousands separators."""
    written = io.StringIO()
    lines = csv.writer(written, lineterminator="\n")
    rows = [[cell.replace(",", "") if SEPARATED.fullmatch(cell) else cell for cell in row] for row in table.rows]
    lines.writerows([*([[table.title]] if table.title else []), table.columns, *rows])
    return written.getvalue().rstrip("\n")


TABLE_FORMATS: dict[str, Callable[[Table], str]] = {"markdown": markdown, "latex": latex, "csv": to_csv}


@dataclass(frozen=True, kw_only=True)
class TableFlags(Flags):
    """Flags for the format in which a command writes its tables; without one, as printed on a screen."""

    markdown: bool = flag_field("the tables in Markdown", default=False, stored=False, on_resume=True)
    latex: bool = flag_field("the tables in LaTeX", default=False, stored=False, on_resume=True)
    csv: bool = flag_field("the tables in CSV", default=False, stored=False, on_resume=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        asked = [name for name in ("json", *TABLE_FORMATS) if getattr(self, name, False)]
        if len(asked) > 1:
            raise invalid(asked[0], f"beside --{asked[1]}: a table has one format: write one of the two")

    @property
    def format(self) -> str | None:
        """Return the format that is asked for; None: as printed on a screen."""
        return next((name for name in TABLE_FORMATS if getattr(self, name)), None)

    def render(self, tables: Iterable[Table]) -> str:
        """Return all tables in the format that is asked for; a single table in CSV has no line with its title."""
        assert self.format is not None, "on a screen a table is drawn"
        made = list(tables)
        if self.csv and len(made) == 1:
            made = [replace(made[0], title="")]
        return "\n\n".join(map(TABLE_FORMATS[self.format], made))
