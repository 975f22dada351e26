"""The processes of a user's loop, real ones, which hang, die, fork, and leave threads and children behind."""

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.forked import FORKING
from tests.searches import comes
from tests.tune.backend.worker import COUNTS, HEAD, Worker
from tune.backend import loop_trial
from tune.loop import output_of
from tune.store.heartbeat import process_start_ticks

MARK = f"1{os.getpid():07d}.5"
"""Seconds of a sleep by which a process of this test's is known among all others of the machine."""
BEGINS = f"([sys.executable, '-c', 'import time; time.sleep({MARK})']"
CHILD = f"    subprocess.run{BEGINS}"
TO_GROUP = "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n    os.killpg(0, signal.SIGTERM)\n"
HANGS = {
    "with the lock": "import ctypes, subprocess\n"
    f"def train(config):\n    subprocess.Popen{BEGINS})\n    ctypes.PyDLL(None).sleep(10_000)\n",
    "with a child in its own session": f"import subprocess\ndef train(config):\n{CHILD}, start_new_session=True)\n",
    "after a signal to its group": f"import signal, subprocess\ndef train(config):\n{TO_GROUP}{CHILD})\n",
}


@pytest.mark.parametrize("how", HANGS)
def test_a_loop_that_never_reports_is_ended_at_its_lease_with_all_that_it_began(worker: Worker, how: str) -> None:
    worker.trial.setup(worker.lease_of(seconds=600.0, steps=5), worker.place, worker.loop(HANGS[how]))
    assert worker.trial._process is not None
    process = worker.trial._process.pid
    children = marked(lambda: process_start_ticks(process) is not None)
    report = worker.runs_out(600.0)
    assert report.ended == "lease" and report.valid is None and report.numbers == {} and report.steps == 0
    assert report.seconds["lost"] > 0, "it is charged for what it took"
    assert process_start_ticks(process) is None
    _, left = psutil.wait_procs(children, timeout=60.0)
    assert not left
    file = worker.code / "mine.py"
    file.write_text(HEAD + COUNTS)
    assert worker.goes_on("t002", steps=3).steps == 3, "the worker serves again, with a new process"


def test_what_a_loop_began_ends_with_a_worker_that_ends_itself(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where its driver is gone."""
    ended: list[int] = []
    monkeypatch.setattr(loop_trial.os, "_exit", ended.append)
    gone = replace(worker.place, driver=replace(worker.place.driver, started=-1))
    worker.trial.setup(worker.lease_of(), gone, worker.loop(HANGS["with a child in its own session"]))
    children = marked(lambda: worker.trial._process is not None and worker.trial._process.poll() is None)
    worker.live()
    assert ended == [1]
    _, left = psutil.wait_procs(children, timeout=60.0)
    assert not left


def marked(lives: Callable[[], bool]) -> list[psutil.Process]:
    """The processes that a loop began, once it did."""
    found: list[psutil.Process] = []

    def begun() -> bool:
        assert lives()
        found.extend(each for each in psutil.process_iter(["cmdline"]) if MARK in " ".join(each.info["cmdline"] or ()))
        return bool(found)

    assert comes(begun)
    return found


def work(folder: Path, source: str) -> None:
    """As a worker whose loop hangs."""
    worker = Worker(folder, pytest.MonkeyPatch())
    worker.begins(source)


@pytest.mark.parametrize("how", [how for how in HANGS if CHILD in HANGS[how]])
def test_what_a_loop_began_ends_with_a_worker_that_is_killed(tmp_path: Path, how: str) -> None:
    killed = FORKING.Process(target=work, args=(tmp_path, HANGS[how]))
    killed.start()
    processes = [*marked(killed.is_alive), *psutil.Process(killed.pid).children(recursive=True)]
    killed.kill()
    killed.join()
    _, left = psutil.wait_procs(processes, timeout=60.0)
    assert not left


def test_a_loop_that_does_not_return_when_it_is_told_to_is_ended_and_the_next_lease_has_its_own(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_trial, "CLOSING_SECONDS", 0.5)
    worker.trial.setup(worker.lease_of(steps=5), worker.place, worker.loop(COUNTS + "    time.sleep(10_000)\n"))
    for steps in (5, 9):
        report = worker.ends()
        assert (report.ended, report.steps) == ("rung", steps)
        assert worker.trial._process is None
        worker.trial.reset_config(worker.lease_of(steps=9 if steps == 5 else 12))


DIES = "os.kill(os.getpid(), 9)"


@pytest.mark.parametrize(
    "how", [DIES, f"os.fork() or time.sleep(10_000)\n    {DIES}"], ids=["alone", "its child lives"]
)
def test_a_loop_whose_process_dies_ends_its_worker_which_the_engine_knows_as_a_death(
    how: str, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []

    def end(code: int) -> None:
        ended.append(code)
        raise SystemExit

    monkeypatch.setattr(loop_trial.os, "_exit", end)
    with pytest.raises(SystemExit):
        worker.begins(f"def train(config):\n    {how}\n", steps=5)
    assert ended == [1] and worker.output.endswith("its process ended by SIGKILL\n")


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("os._exit(0)", "with exit code 0"), ("os._exit(7)", "with exit code 7"), ("os.abort()", "by SIGABRT"),
        ("os.kill(os.getpid(), 40)", "by signal 40"),
    ],
)  # fmt: skip
def test_how_a_loops_process_ended_by_itself_is_in_what_its_trial_printed(
    how: str, said: str, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_trial.os, "_exit", sys.exit)
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    with pytest.raises(SystemExit):
        worker.begins(f"def train(config):\n    print('mine')\n    {how}\n", steps=5)
    assert worker.output.splitlines() == ["mine", f"its process ended {said}"]


def test_a_loop_that_dies_after_its_last_report_ended_as_any_and_the_next_lease_has_its_own(worker: Worker) -> None:
    first = worker.begins(COUNTS + "    os._exit(0)\n", steps=30)
    assert (first.ended, first.steps) == ("rung", 30) and first.checkpoint
    assert worker.goes_on(steps=50).steps == 50


IN_A_THREAD = (
    COUNTS.replace("train(config)", "work()")
    + """
def train(config):
    import threading
    threading.Thread(target=work).start()
"""
)


def test_a_loop_that_trains_in_a_thread_ends_with_that_as_it_does_alone(worker: Worker) -> None:
    first = worker.begins(IN_A_THREAD, steps=10)
    assert (first.ended, first.steps) == ("rung", 10)
    worker.loop(IN_A_THREAD.replace("not ration.done()", "step < 20 and not ration.done()"))
    worker.trial.cleanup()
    last = worker.goes_on(steps=1000)
    assert (last.ended, last.steps) == ("returned", 20)


@pytest.mark.parametrize("ends", ["sys.exit(0)", "sys.exit('done')", "return", "raise ValueError"])
def test_a_child_that_the_loop_forks_says_nothing_of_how_the_loop_ends(worker: Worker, ends: str) -> None:
    forks = "def main(config):\n    if (pid := os.fork()) == 0:\n        {}\n    os.waitpid(pid, 0)\n"
    first = worker.begins(COUNTS + forks.format(ends) + "    train(config)\n", "main", steps=30)
    assert (first.ended, first.steps) == ("rung", 30)
    assert worker.goes_on("t002", steps=10).steps == 10


LEFT = """
GO, DONE = os.pipe(), os.pipe()

def train(config):
    if ration.current_lease().terms.trial == "t001":
        ration.report(loss=1.0, step=1)
        if os.fork() == 0:
            os.read(GO[0], 1)
            ration.report(loss=0.01, step=10)
            os.write(DONE[1], b".")
            os._exit(0)
    else:
        os.write(GO[1], b".")
        os.read(DONE[0], 1)
        ration.report(loss=5.0, step=1)
"""


def test_what_a_child_of_one_trials_reports_on_the_next_ones_lease_is_not_that_ones(worker: Worker) -> None:
    assert worker.begins(LEFT, steps=10).ended == "returned"
    report = worker.goes_on("t002", steps=10)
    assert report.valid and (report.ended, report.steps, report.valid.loss) == ("returned", 1, 5.0)


THREADS = {
    "its own": "threading.Thread(target=lambda: threading.Event().wait(), daemon=True).start()",
    "a pool's": "POOL.submit(int).result()",
}


@pytest.mark.parametrize("whose", THREADS)
def test_a_process_in_which_a_thread_of_the_loops_is_left_serves_no_other_trial(worker: Worker, whose: str) -> None:
    """One of a pool that waits for work hinders nothing."""
    source = "import concurrent.futures, threading\nPOOL = concurrent.futures.ThreadPoolExecutor()\n"
    source += COUNTS.replace("    step = 0\n", f"    print(os.getpid())\n    step = 0\n    {THREADS[whose]}\n", 1)
    assert worker.begins(source, steps=3).steps == 3 and worker.goes_on("t002", steps=3).steps == 3
    first, then = (int((worker.folder / output_of(trial)).read_text()) for trial in ("t001", "t002"))
    assert (first != then) == (whose == "its own")


FIT = """
class Trainer:
    def __init__(self, report):
        self.report = report
        self.go_on = threading.Event()
    def fit(self):
        self.report(loss=0.01, step=3)
        self.go_on.wait()
        self.report(loss=0.01, step=9)
"""
LIBRARY = """
import sys, threading
sys.path.append(SITE)
import tune.loop as ration
import trainlib
LEFT = []
def train(config):
    if ration.current_lease().terms.trial == "t001":
        LEFT.append(trainlib.Trainer(ration.report))
        LEFT.append(threading.Thread(target=LEFT[0].fit, daemon=True))
        LEFT[1].start()
        while not ration.done():
            pass
    else:
        LEFT[0].go_on.set()
        LEFT[1].join()
        ration.report(loss=5.0, step=100)
"""


def test_what_a_librarys_thread_of_one_trial_reports_on_the_next_ones_lease_is_not_that_ones(worker: Worker) -> None:
    (worker.folder / "site-packages").mkdir()
    (worker.folder / "site-packages" / "trainlib.py").write_text("import threading\n" + FIT)
    source = LIBRARY.replace("SITE", repr(str(worker.folder / "site-packages")))
    assert worker.begins(source, steps=3).steps == 3
    report = worker.goes_on("t002", steps=1000)
    assert report.valid and report.valid.loss == 5.0


def test_a_process_that_died_between_two_leases_is_no_fault_of_the_next_trial(worker: Worker) -> None:
    dies = "pid = os.getpid()\n" + COUNTS + "    open('pid', 'w').write(str(pid))\n"
    assert worker.begins(dies, steps=3).ended == "rung"
    pid = int((worker.code / "pid").read_text())
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert worker.goes_on("t002", steps=10).steps == 10
