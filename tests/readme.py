"""The commands in README and docs, and how to run one as a user would, with the budget made small."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

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


def run(command: str, folder: Path, budget: str = SMALL_BUDGET) -> str:
    """Run one of these commands as a user would in their folder, with this repository's scripts and Python."""
    words = [sys.executable if word == "python" else word for word in shlex.split(command)]
    words = [str(REPOSITORY / word) if word.endswith(".py") else word for word in words]
    if "--budget" in words:
        words[words.index("--budget") + 1] = budget
    ran = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    assert ran.returncode == 0, f"{command}\n{ran.stdout}{ran.stderr}"
    return ran.stdout
