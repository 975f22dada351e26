"""The commands in README and docs, and how to run one as a user would, with the budget made small."""

import contextlib
import io
import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
DIARY = REPOSITORY / "docs" / "log.md"
DOCUMENTS = [
    *(REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md"),
    *sorted({*(REPOSITORY / "docs").glob("*.md")} - {DIARY}),
]
"""What tells how things are; the diary tells how they were."""
SMALL_BUDGET = "44s"
DONE_BY_MAKE = ("python3 -m venv", ". .venv", "pip install")


def blocks(kind: str) -> list[str]:
    """The documents' blocks of code of this kind."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in DOCUMENTS)
    return re.findall(rf"^```{kind}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    """The lines of their sh blocks, each once, without their comments."""
    lines = [line.partition("  #")[0].strip() for block in blocks("sh") for line in block.splitlines()]
    return [line for line in dict.fromkeys(lines) if line and not line.startswith(DONE_BY_MAKE)]


def of(start: str) -> list[str]:
    """Those that begin with these words."""
    return [command for command in commands() if command.startswith(start)]


def run_here(command: str, folder: Path, budget: str = SMALL_BUDGET) -> str:
    """What one of these prints that a user runs in their folder, with this repository's scripts: in this process, which
    has imported already what each of them needs."""
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as printed:
        patch.chdir(folder)
        patch.setattr("sys.argv", words_of(command, budget))
        patch.setattr("sys.path", [*sys.path])
        code: object = 0
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
        except SystemExit as ended:
            code = ended.code
    assert not code, command
    return printed.getvalue()


def words_of(command: str, budget: str) -> list[str]:
    """Of a command that begins with python: its script, where this repository has it, and its flags."""
    _, script, *words = shlex.split(command)
    if "--budget" in words:
        words[words.index("--budget") + 1] = budget
    return [str(REPOSITORY / script), *words]
