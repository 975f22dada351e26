"""The documents: README stays short, links lead somewhere, the schema is told whole, Python stands in examples/."""

import re
import runpy
import sqlite3
from unittest.mock import patch

import pytest

from model.config import RECIPES
from model.families import FAMILIES
from tests.readme import DIARY, DOCUMENTS, REPOSITORY, blocks
from tune.search_space import SPACES
from tune.store.journal import JOURNAL_FILE, Journal

README_LINES = 150
WAY_FILES = 12


def test_the_readme_is_short():
    assert len((REPOSITORY / "README.md").read_text(encoding="utf-8").splitlines()) <= README_LINES


@pytest.mark.parametrize("document", [*DOCUMENTS, DIARY], ids=lambda path: path.name)
def test_links_lead_somewhere(document):
    text = document.read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text) if "://" not in link]
    assert [link for link in links if not (document.parent / link).exists()] == []
    shown = re.findall(r"`((?:docs|examples|results)/[\w.-]+\.\w+)`", text)
    assert [path for path in shown if not (REPOSITORY / path).exists()] == []


def test_the_way_of_the_budget_is_short():
    """From the flag to the charge: files that are there, each named once."""
    way = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8").split("\n## ")[1]
    files = re.findall(r"^\| .* \| `([\w/]+\.py)` \|$", way, re.MULTILINE)
    assert files and len(files) == len(set(files)) <= WAY_FILES
    assert [path for path in files if not (REPOSITORY / path).exists()] == []


def test_python_stands_in_the_examples():
    assert blocks("python") == []


def test_every_table_and_column_of_the_journal_is_told(tmp_path):
    Journal(tmp_path, new=True).close()
    told = {}
    for line in (REPOSITORY / "docs" / "journal.md").read_text(encoding="utf-8").splitlines():
        if cells := re.fullmatch(r"\| `(\w+)` \| (.*) \|", line):
            told[cells[1]] = set(re.findall(r"`(\w+)`", cells[2]))
    with sqlite3.connect(tmp_path / JOURNAL_FILE) as journal:
        tables = [name for (name,) in journal.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        columns = {name: {row[1] for row in journal.execute(f"PRAGMA table_info({name})")} for name in tables}
    assert [(name, column) for name in tables for column in columns[name] - told.get(name, set())] == []


def test_an_example_does_nothing_when_it_is_imported(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    with patch.dict(SPACES), patch.dict(FAMILIES), patch.dict(RECIPES):
        for path in (REPOSITORY / "examples").glob("*.py"):
            runpy.run_path(str(path), run_name="imported")
    assert capfd.readouterr() == ("", "") and list(tmp_path.iterdir()) == []
