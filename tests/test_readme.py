"""Every command in README and docs does what it says, with the budget made small."""

import re
import shlex
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.readme import REPOSITORY, commands, of, run

WINNER = "python examples/use_winner.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder, with a text and pairs of their own, made of the builtin ones."""
    from model.data.corpus import load_pairs, load_text

    folder = tmp_path_factory.mktemp("user")
    (folder / "pairs.tsv").write_text(
        "".join(f"{a}\t{b}\n" for a, b in load_pairs(None).train[:5000]), encoding="utf-8"
    )
    (folder / "text.txt").write_text(load_text(None).train[:200_000], encoding="utf-8")
    return folder


def test_there_is_nothing_but_what_is_tried_here() -> None:
    scripts = ("python tune/", "python analysis/", "python model/", "python kernels/run.py", WINNER)
    tried = ("make ", *scripts, "tensorboard --logdir runs")
    assert [command for command in commands() if not command.startswith(tried)] == []


@pytest.mark.parametrize("command", of("make "))
def test_make_knows_the_target(command: str) -> None:
    subprocess.run([*shlex.split(command), "--dry-run"], cwd=REPOSITORY, capture_output=True, check=True)


@pytest.fixture(scope="module")
def searched(folder: Path) -> dict[str, str]:
    """What each search printed; two run at a time."""
    commands = {command: f"{command} --out runs/{number}" for number, command in enumerate(of("python tune/run.py"))}
    with ThreadPoolExecutor(2) as together:
        printed = together.map(lambda command: run(command, folder), commands.values())
        return dict(zip(commands, printed, strict=True))


@pytest.mark.parametrize("command", of("python tune/run.py"))
def test_searches(command: str, searched: dict[str, str]) -> None:
    assert "usage" in searched[command] if "--help" in command else "spent " in searched[command]


@pytest.mark.parametrize("command", sorted({*of("python analysis/")} - {*of("python analysis/plot.py roofline")}))
def test_analysis_of_the_newest_study(command: str, folder: Path, searched: dict[str, str]) -> None:
    assert run(command.replace("[runs/<study>]", ""), folder)


@pytest.mark.parametrize("command", of("python tune/experiment.py"))
def test_experiments_are_told_and_planned(command: str, folder: Path) -> None:
    assert "s here" in run(command, folder, "30m") if "--list" in command else "of 30m" in run(command, folder, "30m")


@pytest.mark.parametrize("command", [*of("python model/"), *of(WINNER)])
def test_winners_are_of_use(command: str, folder: Path, searched: dict[str, str]) -> None:
    family = re.search(r"best-\w+", command)
    assert family is not None
    study = next(folder.glob(f"runs/*/{family[0]}")).parent.name
    written = run(command.replace("STUDY", study), folder)
    assert written.count("\n") >= command.count('"') // 2  # a line each; so young a winner may write empty ones


@pytest.mark.parametrize("command", of("tensorboard"))
def test_tensorboard_serves_the_studies(command: str, folder: Path, searched: dict[str, str]) -> None:
    program = str(Path(sys.executable).parent / "tensorboard")
    words = [program, *shlex.split(command)[1:], "--port", "0", "--host", "127.0.0.1"]
    with subprocess.Popen(words, cwd=folder, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            address = next(found[1] for line in server.stderr if (found := re.search(r"at (http://\S+)", line)))
            deadline = time.monotonic() + 60
            while "nanogpt/t" not in (page := get(f"{address}data/runs")) and time.monotonic() < deadline:
                pass
            assert "nanogpt/t" in page and "ledger" in page
        finally:
            server.kill()


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())
