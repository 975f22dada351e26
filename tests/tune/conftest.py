"""An empty folder to be in, a text to learn from, and what a test registered forgotten."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from model.config import RECIPES
from model.families import FAMILIES
from tune.search_space import SPACES


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text("to be or not to be, that is the question. " * 5000)
    return tmp_path / "text.txt"


@pytest.fixture
def forgotten() -> Iterator[None]:
    before = set(SPACES)
    yield
    for name in set(SPACES) - before:
        del SPACES[name], FAMILIES[name], RECIPES[name]
