"""The pages are what their JSON gives; each figure says what it is of, and names a command that is there."""

import re
import subprocess
import sys
from collections import Counter

import pytest

from results.make import FIELDS, FOLDER, PAGES, files, page

MOST_LINES = 200
"""At most, of a page."""
LONGEST = {"claim": 150, "measured": 90}
"""Characters: a longer one tells several figures at once."""
ROWS = [(name, row) for names in PAGES.values() for name, file in files(names).items() for row in file["rows"]]


@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_made_of_the_files_and_short(path):
    made = page(files(PAGES[path]))
    assert path.read_text(encoding="utf-8") == made, "make results"
    assert len(made.splitlines()) <= MOST_LINES


def test_a_row_is_short():
    for _, row in ROWS:
        assert all(len(row[field]) <= most for field, most in LONGEST.items()), row


def test_each_row_has_its_fields():
    for _, row in ROWS:
        assert tuple(row) == FIELDS
        assert all(row[field] for field in ("claim", "measured", "command")), row
        assert all(text is None or re.fullmatch(r"[^|\n]+", text) for text in row.values()), row


def test_each_command_names_an_entry_that_exists(repository):
    makefile = (repository / "Makefile").read_text(encoding="utf-8")
    for _, row in ROWS:
        paths = [word for word in row["command"].split() if word.endswith(".py") or word.startswith(".ci/")]
        assert all((repository / path).is_file() for path in paths), row
        target = re.match(r"make (\w+)", row["command"])
        assert paths or (target and re.search(rf"^{target[1]}:", makefile, re.MULTILINE)), row


def test_a_claim_has_one_figure():
    said = Counter((name, row["claim"], row["against"]) for name, row in ROWS)
    assert [claim for claim, times in said.items() if times > 1] == []


def test_a_row_is_shown_whole_and_a_command_once():
    row = dict.fromkeys(FIELDS) | {"claim": "new", "measured": "3", "command": "make new", "machine": "a machine"}
    made = page({"new": {"title": "New", "about": None, "rows": [row, row | {"claim": "newer"}]}})
    assert "| new | 3 |  |  |  |  | A | `make new` |\n| newer | 3 |  |  |  |  | A | as above |\n" in made
    assert made.endswith("- A: a machine\n")


def test_it_needs_nothing_installed():
    command = [sys.executable, "-I", "-S", "-c", "import runpy; runpy.run_path('results/make.py')"]
    subprocess.run(command, cwd=FOLDER.parent, check=True)
