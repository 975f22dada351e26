"""The commands in the README, and how to run one as a user would, with the budget made small."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
SMALL_BUDGET = "44s"
DONE_BY_MAKE = ("python3 -m venv", ". .venv", "pip install")


def commands() -> list[str]:
    """The lines of the README's sh blocks, without their comments."""
    blocks = re.findall(r"^```sh\n(.*?)^```", (REPOSITORY / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    lines = [line.partition("  #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith(DONE_BY_MAKE)]


def of(start: str) -> list[str]:
    """Those that begin with these words."""
    return [command for command in commands() if command.startswith(start)]


def run(command: str, folder: Path, budget: str = SMALL_BUDGET) -> str:
    """Run a README's command as a user would in their folder, with this repository's scripts and Python."""
    words = [sys.executable if word == "python" else word for word in shlex.split(command)]
    words = [str(REPOSITORY / word) if word.endswith(".py") else word for word in words]
    if "--budget" in words:
        words[words.index("--budget") + 1] = budget
    ran = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, f"{command}\n{ran.stdout}{ran.stderr}"
    return ran.stdout
