"""What import-linter and ruff (pyproject.toml) cannot say: how an entry is written, names of files."""

import re
from collections import Counter
from pathlib import Path

FOLDERS = ("tune", "model", "kernels", "analysis")
# Entries by name; beside them, every file that runs as a script is one.
ENTRIES = (
    *("tune/run.py", "tune/experiment.py", "tune/replay.py", "model/translate.py", "model/generate.py"),
    *("kernels/run.py", "analysis/rank.py", "analysis/report.py", "analysis/spend.py", "analysis/plot.py"),
    *("analysis/export.py", "analysis/check_table.py"),
)
ENTRY = re.compile(
    r'''
"""[^\n]+"""

import sys
from pathlib import Path

sys\.path\[0] = str\(Path\(__file__\)\.resolve\(\)\.parents\[1]\)

(from tune\.cli import main\n)?from [\w.]+ import (?P<settings>\w+)\n(from tune\.cli import main\n)?
if __name__ == "__main__":
    sys\.exit\(main\((?P=settings)\)\)
'''.lstrip()
)
"""It sets the import path before it imports anything of ours, calls the one front, and defines nothing."""


def files(root: Path) -> list[Path]:
    found = sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.py"))
    assert root / "tune" / "run.py" in found
    return found


def test_an_entry_calls_the_front_and_does_nothing_else(repository: Path) -> None:
    texts = {path.relative_to(repository).as_posix(): path.read_text(encoding="utf-8") for path in files(repository)}
    scripts = {name for name, text in texts.items() if re.search(r"^if __name__ ==", text, re.MULTILINE)}
    assert scripts == set(ENTRIES)
    assert [name for name in ENTRIES if not ENTRY.fullmatch(texts[name])] == []


def test_no_two_files_of_a_folder_have_one_name_and_tests_are_no_package(repository: Path) -> None:
    names = Counter((path.relative_to(repository).parts[0], path.name) for path in files(repository))
    assert [name for name, count in names.items() if count > 1 and name[1] != "__init__.py"] == []
    assert list((repository / "tests").rglob("__init__.py")) == []
