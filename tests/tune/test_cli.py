import json
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

from tune import cli
from tune.settings import Settings
from tune.store.journal import Journal

pytestmark = pytest.mark.usefixtures("empty_folder")
HEAVY = ("ray", "torch", "numpy", "pandas", "optuna", "rich")


@pytest.fixture
def searched(monkeypatch):
    """A search that only notes its settings."""
    calls: list[Settings] = []
    study = types.ModuleType("tune.study")
    study.run = lambda settings: calls.append(settings) or 143
    monkeypatch.setitem(sys.modules, "tune.study", study)
    return calls


@pytest.fixture
def study(tmp_path):
    """A folder that a study left behind."""
    folder = tmp_path / "runs" / "x"
    folder.mkdir(parents=True)
    settings = Settings(budget=3600, seed=3, fix={"heads": 4}, oversubscribe=True, devices=3, out=folder)
    (folder / "study.json").write_text(json.dumps({"settings": settings.stored()}))
    return folder


def parse(flags: str) -> Settings:
    return cli.parse(Settings, flags.split())


def test_a_missing_file_is_told_before_anything_heavy_is_loaded(repository, empty_folder):
    """Nor is a cluster asked."""
    flags = ("--budget", "8h", "--address", "127.0.0.1:1", "--text-corpus", "/no", "--out", str(empty_folder / "x"))
    refused = run(repository, "-X", "importtime", str(repository / "tune" / "run.py"), *flags)
    assert refused.returncode == 2
    assert refused.stderr.endswith("--text-corpus: '/no' cannot be read (No such file or directory): name a file\n")
    assert heavy(refused.stderr) == set() and not (empty_folder / "x").exists()


def test_a_study_that_is_over_is_told_before_anything_heavy_is_loaded(repository, study):
    """Under the cap that it ended with; one that was given more is searched on, also after a kill."""
    with Journal(study, new=True) as journal:
        trial = {"trial": "t001", "family": "nanogpt", "config": "{}", "state": "paused", "created": 0.0}
        journal.insert("trials", trial)
        journal.insert("reports", {"trial": "t001", "at": 1.0, "rung": 0, "valid_loss": 1.0})
        journal.note(ended={"reason": "cap", "spent": 3598.04, "cap": 3600.0})
    over = run(repository, "-X", "importtime", str(repository / "tune" / "run.py"), "--resume", str(study))
    assert over.returncode == 0
    assert over.stdout.startswith(f"{study}: it is over: spent 59m58s of 1h; a larger --budget goes on, and python")
    assert heavy(over.stderr) == set()
    assert Settings.of_study(study, budget="2h").nothing_to_do() is None


OVER = {"reason": "cap", "spent": 3598.0, "cap": 3600.0}


@pytest.mark.parametrize("ended", [OVER | {"reason": "SIGINT"}, {"reason": "cap", "spent": 1.0}, OVER])
def test_a_study_that_is_not_known_to_be_over_is_searched(searched, study, ended):
    """Told to end, of before the cap was written down with its end, or where nothing was found."""
    with Journal(study, new=True) as journal:
        journal.note(ended=ended)
    assert cli.main(Settings, ["--resume", str(study)]) == 143 and len(searched) == 1


def test_a_path_or_present_folder_that_is_not_utf_8_is_one_line(capsys, searched, empty_folder, monkeypatch):
    for flag in ("--out", "--text-corpus", "--resume"):
        assert cli.main(Settings, ["--budget", "8h", flag, "x\udcff"]) == 2
        assert capsys.readouterr().err.endswith("/x\\udcff' is not in UTF-8: rename it, or take another place\n")
        assert searched == [] and list(empty_folder.iterdir()) == []
    there = Path(os.fsdecode(os.fsencode(empty_folder) + b"/\xff"))
    there.mkdir()
    monkeypatch.chdir(there)
    assert cli.main(Settings, ["--budget", "8h"]) == 2
    assert re.fullmatch(r"--out: '.*udcff/runs/\S+' is not in UTF-8: .*\n", capsys.readouterr().err)
    assert searched == [] and list(there.iterdir()) == []


def test_a_resumed_study_keeps_its_own_settings_but_may_get_a_new_total_and_a_new_deadline(study):
    settings = parse("--resume runs/x")
    assert (settings.budget, settings.seed, settings.fix, settings.devices) == (3600, 3, {"heads": 4}, 3)
    assert settings.resume == settings.out == study
    settings = parse("--resume runs/x --budget 2h --deadline 3h --seed 3 --fix heads=4")
    assert (settings.budget, settings.deadline) == (7200, 10_800)


def test_flags_that_contradict_the_study_are_refused_by_name(study):
    with pytest.raises(ValueError, match=r"^--fix, --seed, --skip-bad-lines: not as in .*: leave --fix, .* out$"):
        parse("--resume runs/x --seed 4 --devices 3 --fix heads=8 --skip-bad-lines")
    with pytest.raises(ValueError, match=r"^--out: "):
        parse("--resume runs/x --out elsewhere")


def test_a_damaged_study_is_refused_in_one_line(study):
    for damaged in ("", "[", "[]", "{}", '{"settings": {"budget": "8"}}', "[" * 100_000, "\udcff"):
        (study / "study.json").write_text(damaged, errors="surrogateescape")
        with pytest.raises(ValueError, match=r"^--resume: '.*' has a damaged study.json \(.*\): name another study$"):
            parse("--resume runs/x")


def run(repository: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd="/", check=False)


def heavy(importtime: str) -> set[str]:
    """What of it was imported, as python -X importtime tells."""
    imported = {line.rsplit("|", 1)[-1].strip().partition(".")[0] for line in importtime.splitlines()}
    assert "tune" in imported
    return imported & set(HEAVY)
