"""How a run ends, whatever ends it: a last word that is true, a code that is not 0, and a folder to go on with."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

STUB = """
import os, signal, sys
from contextlib import contextmanager
from types import SimpleNamespace
from tune import cli, study
from tune.backend import session  # noqa: F401
from tune.search.engine import Engine
from tune.backend.trainable import STOP_FILE
from tune.settings import Settings

def waits(where):
    print(where, flush=True, file=SCREEN)
    sys.stdin.readline()

SCREEN = os.fdopen(os.dup(1), "w")
IN = {where!r}

@contextmanager
def local_ray(slots, gpus):
    if IN == "starts":
        waits(IN)
    yield

def run_trials(engine, *rest):
    if IN == "runs":
        waits(IN)
    if IN == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if IN == "fails":
        raise ValueError("cannot reshape")
    print("searching", file=SCREEN, flush=True)
    while engine.next():
        raise AssertionError("a trial begins though all is to end")

def corpora(settings):
    waits(IN)

study.local_ray, study.run_trials = local_ray, run_trials
if IN == "looks":
    from tune import search_context
    search_context.load_corpora = corpora
sys.exit(cli.main(Settings, sys.argv[1:]))
"""
ASKED = ["--budget", "60s", "--families", "nanogpt", "--devices", "1", "--text-corpus", "builtin", "--out", "study"]


@contextmanager
def search(folder: Path, where: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A search without Ray and trials, up to where it waits for a line, or ends."""
    with subprocess.Popen(
        [sys.executable, "-c", STUB.replace("{where!r}", repr(where)), *(words or ASKED)],
        cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        yield process


def told(folder: Path, where: str, *signals: int) -> tuple[int, list[str], list[str]]:
    """The code and the lines of a search that gets signals where it waits."""
    with search(folder, where) as process:
        assert process.stdout is not None
        while process.stdout.readline() not in (f"{where}\n", ""):
            pass
        for number in signals:
            process.send_signal(number)
        out, error = process.communicate("\n", timeout=600)
    return process.returncode, out.splitlines(), error.splitlines()


IN_ORDER = [("starts", signal.SIGTERM), ("runs", signal.SIGINT)]


@pytest.mark.parametrize(("where", "number"), IN_ORDER)
def test_a_signal_while_ray_starts_or_runs_ends_in_order_and_says_how_to_go_on(
    tmp_path: Path, where: str, number: signal.Signals
) -> None:
    code, out, error = told(tmp_path, where, number)
    folder = tmp_path / "study"
    assert code == 128 + number and error == []
    assert f"{number.name}: ends in order; told once more it ends at once" in out
    assert out[-1] == f"ended by {number.name}; go on with: python tune/run.py --resume {folder}"
    assert ("searching" in out) == (where == "runs")


def test_told_twice_while_ray_starts_it_ends_at_once_and_can_be_gone_on_with(tmp_path: Path) -> None:
    """Two signals of one kind may reach a process as one."""
    code, _, error = told(tmp_path, "starts", signal.SIGINT, signal.SIGTERM)
    how = f"go on with: python tune/run.py --resume {tmp_path / 'study'}"
    assert code == 128 + signal.SIGTERM and error[-1] == f"ended by SIGTERM; {how}"
    with search(tmp_path, "", "--resume", str(tmp_path / "study")) as again:
        out, _ = again.communicate(timeout=600)
    assert "searching" in out.splitlines(), "it cannot be gone on with"


def test_a_signal_before_anything_was_written_says_so(tmp_path: Path) -> None:
    assert told(tmp_path, "looks", signal.SIGINT) == (130, [], ["ended by SIGINT; nothing was written"])
    assert list(tmp_path.iterdir()) == []


def test_an_end_from_outside_of_python_says_how_to_go_on(tmp_path: Path) -> None:
    """Ray ends its driver so too, where its raylet was killed."""
    with search(tmp_path, "is killed") as process:
        _, error = process.communicate(timeout=600)
    assert process.returncode == -signal.SIGKILL
    assert error.count("\n") == 1 and error.endswith(f"--resume {tmp_path / 'study'}\n")


def test_a_fault_of_ours_keeps_its_traceback_on_the_screen_and_in_the_log(tmp_path: Path) -> None:
    with search(tmp_path, "fails") as process:
        _, error = process.communicate(timeout=600)
    assert process.returncode == 1
    for text in (error, (tmp_path / "study" / "log.txt").read_text()):
        assert "Traceback (most recent call last)" in text and "ValueError: cannot reshape" in text
