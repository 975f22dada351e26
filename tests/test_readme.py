"""Every command in README and docs does what it says, with the budget made small."""

import shlex
import subprocess
from pathlib import Path

import pytest

from tests.conftest import know_step_speed
from tests.readme import REPOSITORY, commands, of, run_here, words_of
from tests.searches import Searched
from tune.cli import main
from tune.settings import Settings

WINNER = "python examples/use_winner.py"
PAIRS = 2000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder, with a text and pairs of their own, made of the builtin ones."""
    from model.data.corpus import load_pairs, load_text

    folder = tmp_path_factory.mktemp("user")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("model.data.toy_corpus.PAIRS", PAIRS)
        pairs = load_pairs(None).train[: PAIRS // 2]
    (folder / "pairs.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in pairs), encoding="utf-8")
    (folder / "study.yaml").write_text("budget: 8h\nfamilies: nanogpt\nset: {context: 64}\n")
    (folder / "text.txt").write_text("".join(load_text(None).train)[:200_000], encoding="utf-8")
    return folder


@pytest.fixture
def here(searched: Searched) -> Path:
    """The folder of a user whose only study is README's first search."""
    return searched.study.parents[1]


def test_there_is_nothing_but_what_is_tried_here() -> None:
    scripts = ("python tune/", "python analysis/", "python model/", "python kernels/run.py", WINNER)
    tried = ("make ", *scripts, "tensorboard --logdir runs")
    assert [command for command in commands() if not command.startswith(tried)] == []


@pytest.mark.parametrize("command", of("make "))
def test_make_knows_the_target(command: str) -> None:
    subprocess.run([*shlex.split(command), "--dry-run"], cwd=REPOSITORY, capture_output=True, check=True)


@pytest.fixture(autouse=True)
def quick_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """On little text, of few draws and in coarse pictures, and nothing of this machine is measured."""
    monkeypatch.setattr("tune.dry_run.step_seconds", lambda *_, **__: [0.1])
    monkeypatch.setattr("tune.search_context.step_seconds", lambda *_, **__: [0.1])
    know_step_speed(monkeypatch)
    monkeypatch.setattr("tune.search.suggest.DRAWS", 100)
    monkeypatch.setattr("tune.search.suggest.FAVOURED", 20)
    monkeypatch.setattr("model.data.toy_corpus.PAIRS", PAIRS)
    monkeypatch.setattr("analysis.style.DPI", 30)
    monkeypatch.setattr("analysis.plots.dimensions.DRAWS", 4)


SEARCHES = [command for command in of("python tune/run.py") if not command.endswith(("--plan", "--help"))]


@pytest.mark.parametrize("command", SEARCHES[1:])
def test_what_a_search_is_asked_for_serves(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    """Up to Ray a plan is the search. The first of them runs to its end in tests/tune/test_search.py."""
    monkeypatch.chdir(folder)
    if "runs/STUDY" in command:
        command = command.replace("runs/STUDY", str(request.getfixturevalue("searched").study))
    words = words_of(command, "10m")[1:]
    assert main(Settings, [*words, *([] if "--budget" in words else ["--budget", "10m"]), "--plan"]) == 0
    assert "of 10m" in capsys.readouterr().out


@pytest.mark.parametrize("command", sorted({*of("python tune/run.py")} - {*SEARCHES}))
def test_a_plan_and_help_are_told(command: str, folder: Path) -> None:
    assert ("usage" if "--help" in command else "of 44s") in run_here(command, folder)


@pytest.mark.parametrize("command", sorted({*of("python analysis/")} - {*of("python analysis/plot.py roofline")}))
def test_analysis_of_the_newest_study(command: str, here: Path) -> None:
    assert run_here(command, here)


@pytest.mark.parametrize("command", of("python tune/experiment.py"))
def test_experiments_are_told_and_planned(command: str, folder: Path) -> None:
    assert ("s here" if "--list" in command else "of 8h") in run_here(command, folder, "8h")


@pytest.mark.parametrize("command", [*of("python model/"), *of(WINNER)])
def test_winners_are_of_use(command: str, here: Path, searched: Searched) -> None:
    few = " --tokens 20" if "generate" in command else ""
    written = run_here(command.replace("STUDY", searched.study.name) + few, here)
    assert written.count("\n") >= command.count('"') // 2  # a line each; so young a winner may write empty ones
