"""--help, and what is wrong with a flag, are told at once: what does the work is not loaded for them."""

import json
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from tests.test_architecture import ENTRIES
from tune.flags import flag_name
from tune.settings import Settings

HEAVY = {
    *("ray", "torch", "numpy", "optuna", "pandas", "matplotlib", "numba", "rich", "jinja2", "datasets"),
    "tensorboard",
}
CALL = """
import contextlib, io, json, runpy, sys

def ended(*words):
    sys.argv, out, error = [sys.argv[0], *words], io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
        except SystemExit as code:
            return code.code, out.getvalue(), error.getvalue()

sys.argv = sys.argv[1:]
print(json.dumps([ended("--help"), ended("--no-such-flag"), sorted(sys.modules)]))
"""


@pytest.mark.parametrize("entry", ENTRIES)
def test_help_and_a_wrong_flag_load_nothing_heavy(entry: str, repository: Path, tmp_path: Path) -> None:
    typed = os.path.relpath(repository / entry, tmp_path)
    words = [sys.executable, "-c", CALL, typed]
    told = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    (code, out, error), (wrong, said, line), loaded = json.loads(told.stdout)
    assert code == 0 and out.startswith(f"usage: python {typed}") and error == ""
    assert wrong == 2 and said == "" and line.count("\n") == 1
    assert "tune.cli" in loaded and HEAVY.isdisjoint(loaded)
    if entry == "tune/run.py":
        assert [each.name for each in fields(Settings) if flag_name(each.name) not in out] == []
