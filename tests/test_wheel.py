"""The wheel, installed where no checkout is: its command, its data and what it depends on."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.analysis.conftest import Written
from tests.test_architecture import FOLDERS

NAME = re.compile(r"[\w-]+(\[[\w,]+\])?")
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")


def names(requirements: list[str]) -> list[str]:
    """Of packages with their extras, and where they are wanted; without versions."""
    found = [(NAME.match(line), line.partition(";")[2].replace("'", '"').strip()) for line in requirements]
    return [f"{name[0]};{where}" for name, where in found if name is not None]


def test_the_wheel_depends_on_what_is_tried(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    pinned = (repository / "requirements.txt").read_text().splitlines()
    assert names(project["dependencies"]) == names([line for line in pinned if not line.startswith("-e")])


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Path:
    """A folder with the wheel's files, and nothing else of ours."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for name in FOLDERS:
        shutil.copytree(repository / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(repository / name, source)
    built = ("install", "--no-build-isolation", "--no-deps", "--target", folder / "installed", source)
    subprocess.run([*PIP, *built], check=True)
    return folder / "installed"


def run(installed: Path, *words: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(installed)}
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_its_modules_and_published_figures_are_there(installed: Path, tmp_path: Path) -> None:
    """In place of those of the checkout that the tests run in."""
    asked = "import tune; from analysis.study import PUBLISHED; print(tune.__file__, PUBLISHED, sep='\\n')"
    code, published = run(installed, "-c", asked, folder=tmp_path).stdout.splitlines()
    assert code == str(installed / "tune" / "__init__.py")
    assert published == str(installed / "analysis" / "published")
    assert (installed / "analysis" / "page.html").is_file()
    checkout = Path(__file__).resolve().parents[1] / "analysis" / "published"
    assert {path.name for path in Path(published).glob("*.csv")} == {path.name for path in checkout.glob("*.csv")}


def test_the_command_calls_each_entry_by_its_name(installed: Path, tmp_path: Path) -> None:
    command = installed / "bin" / "ration"
    told = run(installed, command, "--help", folder=tmp_path)
    listed = re.findall(r"^  (\w+) ", told.stdout, re.MULTILINE)
    assert told.returncode == 0 and {"run", "plan", "rank", "report", "experiment", "replay", "kernels"} == set(listed)
    for name in listed:
        done = run(installed, command, name, "--help", folder=tmp_path)
        assert done.stdout.startswith(f"usage: ration {name.replace('plan', 'run')} "), done.stderr
    wrong = run(installed, command, "rnk", folder=tmp_path)
    assert (wrong.returncode, wrong.stdout, wrong.stderr.count("\n")) == (2, "", 1)


def test_a_study_is_ranked_and_a_missing_one_is_made_with_the_command(installed: Path, tmp_path: Path) -> None:
    command, study = installed / "bin" / "ration", Written(tmp_path / "runs" / "one")
    for trial, perplexity in (("t1", 9.0), ("t2", 8.0)):
        study.trial(trial)
        study.report(trial, perplexity)
    study.journal.close()
    done = run(installed, command, "rank", "--json", folder=tmp_path)
    assert [row["trial"] for row in json.loads(done.stdout)] == ["t2", "t1"]
    (tmp_path / "empty").mkdir()
    none = run(installed, command, "rank", folder=tmp_path / "empty")
    assert none.returncode == 2 and none.stderr.endswith("make one: ration run --budget 4m\n")
