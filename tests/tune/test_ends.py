"""How a run ends, whatever ends it: a last word that is true, a code that is not 0, and a folder to go on with."""

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO, FileIO, TextIOWrapper
from multiprocessing.connection import Connection, wait
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from model.cost import probe
from tests.forked import FORKING
from tune import cli, search_context, study
from tune.errors import ROOT
from tune.flags import Command, Flags
from tune.search import resume
from tune.search.engine import Engine
from tune.settings import Settings
from tune.signals import StopSignal, catch_stop_signals, interruptible

pytestmark = pytest.mark.usefixtures("text")
PATIENCE = 600.0
"""Seconds that a search may be silent."""
ASKED = ["--budget", "60s", "--families", "nanogpt", "--devices", "1", "--text-corpus", "text.txt", "--out", "study"]


def searches(folder: Path, where: str, words: Sequence[str], line: Connection, said: Sequence[Connection]) -> None:
    """A search without Ray and trials, up to where it waits for a word, or ends."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # as under a shell, though these tests may run under nohup
    os.chdir(folder)
    for number, end in enumerate(said, 1):
        os.dup2(end.fileno(), number)

    def comes_to(place: str) -> None:
        if place == where:
            line.send(place)
            line.recv()

    @contextmanager
    def local_ray(cpus: int, gpus: int, *, preload: bool) -> Iterator[None]:
        comes_to("starts")
        comes_to("is told twice")
        yield

    def run_trials(engine: Engine, *_: Any, **__: Any) -> None:
        comes_to("runs")
        if where == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if where == "fails":
            raise ValueError("cannot reshape")
        line.send("searching")
        assert not where or engine.next_assignment() is None, "a trial begins though all is to end"

    class Twice(Thread):
        """The second signal comes in the midst of hearing the first."""

        def start(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            super().start()

    def restore(*given: Any) -> list[str]:
        comes_to("is restored")
        return resume.restore(*given)

    probe.MEASURED_STEPS = 1
    study.local_ray, study.run_trials, study.restore = local_ray, run_trials, restore
    if where == "is told twice":
        study.Thread = Twice
    if where == "looks":
        search_context.load_corpora = lambda *_: comes_to(where)
    sys.exit(cli.main(Settings, words))


def told(
    folder: Path, where: str, *signals: int, words: Sequence[str] = ASKED
) -> tuple[int | None, list[str], list[str], list[str]]:
    """The code, the lines and the way of a search that gets signals where it waits."""
    ends, theirs = zip(FORKING.Pipe(), FORKING.Pipe(duplex=False), FORKING.Pipe(duplex=False), strict=True)
    line, *printed = ends
    process = FORKING.Process(target=searches, args=(folder, where, words, theirs[0], theirs[1:]), daemon=True)
    process.start()
    for end in theirs:
        end.close()
    way = []
    if signals:
        way.append(line.recv())
        for number in signals:
            os.kill(process.pid, number)
        line.send("go on")
    out, error = (read(end).decode().splitlines() for end in printed)
    process.join(PATIENCE)
    while line.poll():
        try:
            way.append(line.recv())
        except (EOFError, ConnectionError):
            break
    return process.exitcode, out, error, way


def read(end: Connection) -> bytes:
    """All that comes until nobody holds the other end."""
    said = b""
    while wait([end], PATIENCE) and (more := os.read(end.fileno(), 65536)):
        said += more
    return said


@dataclass(frozen=True, kw_only=True)
class Says(Flags):
    command = Command(script="tune/run.py", description="", entry_point="tests.tune.test_ends:says")


def says(settings: Flags) -> int:
    print("é" * 9)
    return 0


def test_a_screen_that_is_closed_full_or_of_other_letters_is_no_fault_of_ours(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with open("/dev/full", "w") as full, TextIOWrapper(BytesIO(), encoding="ascii") as ascii_only:
        at_once = TextIOWrapper(FileIO("/dev/full", "w"), write_through=True)  # as of PYTHONUNBUFFERED
        for screen, code in ((None, 0), (ascii_only, 0), (full, 2), (at_once, 2)):
            monkeypatch.setattr("sys.stdout", screen)
            assert cli.main(Says, []) == code
        assert ascii_only.buffer.getvalue() == b"\\xe9" * 9 + b"\n"
    error = capsys.readouterr().err
    assert error == "standard output: No space left on device: make room there, or write to another place\n" * 2


def test_who_reads_no_more_ends_a_command_as_a_shell_tells_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with TextIOWrapper(FileIO(writer, "w"), write_through=True) as gone:
        monkeypatch.setattr("sys.stdout", gone)
        assert cli.main(Says, []) == 128 + signal.SIGPIPE


@pytest.mark.parametrize(("where", "number"), [("starts", signal.SIGTERM), ("runs", signal.SIGHUP)])
def test_a_signal_while_ray_starts_or_runs_ends_in_order_and_says_how_to_go_on(
    tmp_path: Path, where: str, number: signal.Signals
) -> None:
    code, out, error, way = told(tmp_path, where, number)
    folder = tmp_path / "study"
    assert code == 128 + number and error == []
    assert f"{number.name}: ending in order; once more stops at once" in out
    assert out[-1] == f"ended by {number.name}; go on with: python {ROOT}/tune/run.py --resume {folder}"
    assert ("searching" in way) == (where == "runs")


@pytest.mark.parametrize(
    ("where", "signals"), [("starts", (signal.SIGINT, signal.SIGTERM)), ("is told twice", (signal.SIGINT,))]
)
def test_told_twice_while_ray_starts_it_ends_at_once_and_can_be_gone_on_with(
    tmp_path: Path, where: str, signals: tuple[int, ...]
) -> None:
    """Two signals of one kind may reach a process as one, and two of two kinds in any order."""
    code, _, error, _ = told(tmp_path, where, *signals)
    how = f"go on with: python {ROOT}/tune/run.py --resume {tmp_path / 'study'}"
    assert code in {128 + number for number in (*signals, signal.SIGTERM)}
    assert error[-1] == f"ended by {signal.Signals(code - 128).name}; {how}"
    *_, way = told(tmp_path, "", words=["--resume", str(tmp_path / "study")])
    assert way == ["searching"], "it cannot be gone on with"


def test_what_it_says_goes_on_under_the_terms_that_were_typed_though_it_ends_before_a_trial(tmp_path: Path) -> None:
    told(tmp_path, "")
    terms = ["--resume", str(tmp_path / "study"), "--budget", "120s", "--deadline", "1h"]
    *_, error, way = told(tmp_path, "is restored", signal.SIGINT, signal.SIGTERM, words=terms)
    assert way == ["is restored"] and error[-1].endswith(f"go on with: python {ROOT}/tune/run.py {' '.join(terms[:2])}")
    goes_on = Settings.of_study(tmp_path / "study")
    assert (goes_on.budget, goes_on.deadline) == (120.0, 3600.0)


def test_that_its_terminal_is_gone_a_process_is_told_twice_and_nohup_lets_it_ignore_that() -> None:
    """By the system, and by a shell."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with catch_stop_signals() as told:
            signal.raise_signal(signal.SIGHUP)
            assert told.name is None
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        with pytest.raises(KeyboardInterrupt, match="SIGTERM"), catch_stop_signals() as told:
            signal.raise_signal(signal.SIGHUP)
            signal.raise_signal(signal.SIGHUP)
            assert told.name == "SIGHUP"
            signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)


def test_in_a_thread_of_its_callers_a_search_leaves_signals_to_the_main_one() -> None:
    def listens() -> StopSignal:
        with catch_stop_signals() as stop, interruptible():
            heard.append(signal.getsignal(signal.SIGINT))
        return stop

    heard = [signal.getsignal(signal.SIGINT)]
    with ThreadPoolExecutor(1) as callers:
        assert callers.submit(listens).result().name is None
    assert heard[0] == heard[1] == signal.getsignal(signal.SIGINT)


def test_a_signal_before_anything_was_written_says_so(tmp_path: Path, text: Path) -> None:
    *ended, _ = told(tmp_path, "looks", signal.SIGINT)
    assert ended == [130, [], ["ended by SIGINT; nothing was written"]] and list(tmp_path.iterdir()) == [text]


def test_an_end_from_outside_of_python_says_how_to_go_on(tmp_path: Path) -> None:
    """Ray ends its driver so too, where its raylet was killed."""
    code, _, error, _ = told(tmp_path, "is killed")
    assert code == -signal.SIGKILL and len(error) == 1 and error[0].endswith(f"--resume {tmp_path / 'study'}")


def test_a_fault_of_ours_keeps_its_traceback_on_the_screen_and_in_the_log(tmp_path: Path) -> None:
    code, _, error, _ = told(tmp_path, "fails")
    assert code == 1
    for lines in (error, (tmp_path / "study" / "log.txt").read_text().splitlines()):
        assert "Traceback (most recent call last):" in lines and "ValueError: cannot reshape" in lines
