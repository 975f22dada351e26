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

path = [*sys.path]

def ended(*words):
    sys.argv, sys.path[:], out, error = [*words], path, io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
        except SystemExit as code:
            return code.code, out.getvalue(), error.getvalue()

answers = [ended(*words) for words in json.loads(sys.argv[1])]
print(json.dumps([answers, sorted(sys.modules)]))
"""
ELSEWHERE = "import errno, os, sys; del errno.EREMOTEIO, os.sched_getaffinity; sys.platform = 'darwin'"
"""Makes the present system one that lacks what only Linux has."""


Answer = tuple[int, str, str]


def told(folder: Path, *asked: list[str], first: str = "") -> list[Answer]:
    """The code, what is printed and the error of each, an entry with its flags, where nothing heavy was loaded for
    them. first: code to run."""
    words = [sys.executable, "-c", first + CALL, json.dumps(asked)]
    said = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True)
    answers, loaded = json.loads(said.stdout)
    assert "tune.cli" in loaded and HEAVY & {*loaded} == set()
    return answers


@pytest.fixture(scope="module")
def helped(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, Answer, Answer]]:
    """Of each entry: as it is typed in a folder, and what it says to --help and to a flag that there is not."""
    folder = tmp_path_factory.mktemp("user")
    typed = [os.path.relpath(repository / entry, folder) for entry in ENTRIES]
    said = told(folder, *([entry, flag] for entry in typed for flag in ("--help", "--no-such-flag")))
    return dict(zip(ENTRIES, zip(typed, said[::2], said[1::2], strict=True), strict=True))


@pytest.mark.parametrize("entry", ENTRIES)
def test_help_and_a_wrong_flag(entry: str, helped: dict[str, tuple[str, Answer, Answer]]) -> None:
    typed, (code, out, error), (wrong, said, line) = helped[entry]
    assert code == 0 and out.startswith(f"usage: python {typed}") and error == ""
    assert wrong == 2 and said == "" and line.count("\n") == 1
    if entry == "tune/run.py":
        assert [each.name for each in fields(Settings) if flag_name(each.name) not in out] == []
        _, loops, families = (block.partition(":\n")[2] for block in out.split("\n\n")[-3:])
        assert all(f"\n  {flag_name(name)} " in f"\n{loops}" for name in LOOP_ONLY_SETTINGS)
        assert all(f"\n  {flag_name(name)}" in f"\n{families}" for name in FAMILY_ONLY_SETTINGS)


def test_another_system_than_linux_gets_help_and_its_search_one_line(repository: Path, tmp_path: Path) -> None:
    search, rank = (str(repository / entry) for entry in ("tune/run.py", "analysis/rank.py"))
    asked = [rank, "--help"], [search, "--help"], [search, "--budget", "60s"], [search, "--budget", "60s", "--plan"]
    *helped, first, second = told(tmp_path, *asked, first=ELSEWHERE)
    assert all(code == 0 and out.startswith("usage: ") for code, out, _ in helped)
    for wrong, printed, line in (first, second):
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
    search = str(repository / "tune" / "run.py")
    asked = [search, "--budget", "8h", "--address", "127.0.0.1:1", "--text-corpus", "/no", "--out", "new"]
    refused, over = told(tmp_path, asked, [search, "--resume", str(study)])
    why = "--text-corpus: '/no' cannot be read (No such file or directory): name a file\n"
    assert refused == [2, "", why] and not (tmp_path / "new").exists()
    assert over[0] == 0
    assert over[1].startswith(f"{study}: it is over: spent 59m58s of 1h; a larger --budget goes on, and python")
    assert Settings.of_study(study, budget="2h").nothing_to_do() is None
