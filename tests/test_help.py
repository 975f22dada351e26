"""--help, and what is wrong with a flag, are told at once: what does the work is not loaded for them."""

import json
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from tests.test_architecture import ENTRIES
from tests.tune.search.world import add_trial
from tune.flags import flag_name
from tune.search_flags import FAMILY_ONLY_SETTINGS, LOOP_ONLY_SETTINGS
from tune.settings import Settings
from tune.store.journal import Journal

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

asked = json.loads(sys.argv.pop(1))
sys.argv = sys.argv[1:]
print(json.dumps([[ended(*words) for words in asked], sorted(sys.modules)]))
"""
ELSEWHERE = "import errno, os, sys; del errno.EREMOTEIO, os.sched_getaffinity; sys.platform = 'darwin'"
"""Makes the present system one that lacks what only Linux has."""


def told(entry: str, folder: Path, *asked: list[str], first: str = "") -> list[tuple[int, str, str]]:
    """The code, what is printed and the error of each, where nothing heavy was loaded for them. first: code to run."""
    words = [sys.executable, "-c", first + CALL, json.dumps(asked), entry]
    said = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True)
    answers, loaded = json.loads(said.stdout)
    assert "tune.cli" in loaded and HEAVY.isdisjoint(loaded)
    return answers


@pytest.mark.parametrize("entry", ENTRIES)
def test_help_and_a_wrong_flag(entry: str, repository: Path, tmp_path: Path) -> None:
    typed = os.path.relpath(repository / entry, tmp_path)
    (code, out, error), (wrong, said, line) = told(typed, tmp_path, ["--help"], ["--no-such-flag"])
    assert code == 0 and out.startswith(f"usage: python {typed}") and error == ""
    assert wrong == 2 and said == "" and line.count("\n") == 1
    if entry == "tune/run.py":
        assert [each.name for each in fields(Settings) if flag_name(each.name) not in out] == []
        _, loops, families = (block.partition(":\n")[2] for block in out.split("\n\n")[-3:])
        assert all(f"\n  {flag_name(name)} " in f"\n{loops}" for name in LOOP_ONLY_SETTINGS)
        assert all(f"\n  {flag_name(name)}" in f"\n{families}" for name in FAMILY_ONLY_SETTINGS)


def test_another_system_than_linux_gets_help_and_its_search_one_line(repository: Path, tmp_path: Path) -> None:
    entries = {"tune/run.py": [["--budget", "60s"], ["--budget", "60s", "--plan"]], "analysis/rank.py": []}
    for entry, asked in entries.items():
        (code, out, _), *refused = told(str(repository / entry), tmp_path, ["--help"], *asked, first=ELSEWHERE)
        assert code == 0 and out.startswith("usage: ")
        for wrong, printed, line in refused:
            assert (wrong, printed) == (2, "") and line.startswith("this system: 'darwin': a search needs Linux: ")
            assert line.count("\n") == 1 and not list(tmp_path.iterdir())


def test_a_missing_file_and_a_study_that_is_over(repository: Path, tmp_path: Path) -> None:
    """No cluster is asked. Over is a study under the cap that it ended with; one that was given more is searched on."""
    study = tmp_path / "study"
    study.mkdir()
    (study / "study.json").write_text(json.dumps({"settings": Settings(budget=3600).stored()}))
    with Journal(study, new=True) as journal:
        add_trial(journal)
        journal.insert("reports", {"trial": "t001", "at": 1.0, "rung": 0, "valid_loss": 1.0})
        journal.write_facts(ended={"reason": "cap", "spent": 3598.04, "cap": 3600.0})
    refused, over = told(
        str(repository / "tune" / "run.py"), tmp_path,
        ["--budget", "8h", "--address", "127.0.0.1:1", "--text-corpus", "/no", "--out", "new"],
        ["--resume", str(study)],
    )  # fmt: skip
    why = "--text-corpus: '/no' cannot be read (No such file or directory): name a file\n"
    assert refused == [2, "", why] and not (tmp_path / "new").exists()
    assert over[0] == 0
    assert over[1].startswith(f"{study}: it is over: spent 59m58s of 1h; a larger --budget goes on, and python")
    assert Settings.of_study(study, budget="2h").nothing_to_do() is None
