"""A table in each format can be read back, and LaTeX has no sign that it would read as its own."""

import csv
import re

import pytest

from tune.errors import UserError
from tune.table_text import Table, TableFlags, escaped, latex, markdown, screen_lines, to_csv

TABLE = Table(
    title="50 % of a_b",
    columns=("what", "a|b", "±"),
    rows=[["x & y", "1", "<2"], ['say "z",', "#3", "~{4}^\\"]],
    note="n",
)


@pytest.mark.parametrize("width", [12, 24, 40, 80])
def test_on_a_screen_a_cell_is_whole_or_its_column_is_named(width: int) -> None:
    rows = [["1", "1,234", "a word and another", "0.25"], ["22", "5", "more", "-1.5"]]
    table = Table(title="T", columns=("#", "count", "words", "share"), rows=rows, note="some words of a note")
    title, *lines = screen_lines(table, width, first=["share"])
    named = [line for line in lines if line.startswith("no room")]
    hidden = named[0].partition("for: ")[2].partition(" (")[0].split(", ") if named else []
    shown = " ".join(line for line in lines if line not in named).split()
    assert title == "T" and "share" not in hidden and (hidden == [] if width == 80 else width == 40 or hidden)
    assert max(map(len, [line for line in lines if line not in named])) <= width
    for place, name in enumerate(table.columns):
        words = " ".join([name, *(row[place] for row in rows)]).split()
        assert all((word in shown) != (name in hidden) for word in words if word not in table.note)


@pytest.mark.parametrize("width", [28, 40, 56, 200])
def test_columns_that_may_be_folded_all_stay_where_their_words_fit(width: int) -> None:
    rows = [["winner", "p.2 width11 rate.01 batch16", "p.1 width12 rate.003 norm"], ["spent", "2m", "3m"]]
    lines = screen_lines(Table(title="", columns=("", "one", "other"), rows=rows), width, fold=("one", "other"))
    assert max(map(len, lines)) <= width
    assert {"one", "other"}.union(*(cell.split() for row in rows for cell in row)) == set(" ".join(lines).split())


def test_markdown_has_a_cell_for_each_column() -> None:
    lines = [line for line in markdown(TABLE).splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {4} and len(lines) == 4
    assert markdown(TABLE).startswith("**50 % of a_b**\n\n|") and markdown(TABLE).endswith("|\n\nn")


def test_csv_is_read_back() -> None:
    title, *lines = csv.reader(to_csv(TABLE).splitlines())
    assert title == [TABLE.title] and lines == [list(TABLE.columns), *map(list, TABLE.rows)]


def test_what_is_a_number_in_csv_is_one_and_all_else_is_as_it_was() -> None:
    numbers = [f"{sign}{value:,.{places}f}" for sign in ("", "-", "+") for value in (1, 999, 14_250, 1_234_567)
               for places in (0, 3)]  # fmt: skip
    words = ["8.0 %", "1,2", "12,34", "1,234,56", "1,000 steps", "0,123 ", "3e4", "d_model, heads", "-", ""]
    table = Table(title="", columns=["cell"], rows=[[each] for each in (*numbers, *words)])
    _, *cells = (cell for (cell,) in csv.reader(to_csv(table).replace("\n\n", '\n""\n').splitlines()))
    read, others = cells[: len(numbers)], cells[len(numbers) :]
    assert [float(each) for each in read] == [float(each.replace(",", "")) for each in numbers]
    assert others == words


def test_latex_has_as_many_cells_as_columns_and_no_sign_of_its_own() -> None:
    rows = [line for line in latex(TABLE).splitlines() if line.endswith(r"\\")]
    assert [len(re.split(r"(?<!\\)&", row)) for row in rows] == [3, 3, 3]
    assert latex(TABLE).count(r"\begin{") == latex(TABLE).count(r"\end{") == 2
    for sign in "&%$#_{}~^<>|\\":
        assert re.fullmatch(r"\\(?:[&%$#_{}]|text\w+\{\})", escaped(sign)), sign


def test_one_form_at_a_time() -> None:
    assert TableFlags().format is None and TableFlags(latex=True).format == "latex"
    with pytest.raises(UserError, match=r"^--markdown: beside --csv: "):
        TableFlags(markdown=True, csv=True)


def test_a_single_table_in_csv_begins_with_its_columns() -> None:
    one, two = (TableFlags(csv=True).render([TABLE] * count) for count in (1, 2))
    assert one.startswith("what,") and two.startswith(TABLE.title)
