"""The worker of a user's loop, without a Ray around it: real processes, that crash, hang, never save, say nothing."""

import importlib
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from tests.forked import FORKING
from tests.tune.backend.leases import place, told
from tune.backend import loop_trial
from tune.backend.loop_trial import LoopFailed, LoopTrial
from tune.errors import parse_traceback as in_one_line
from tune.load import Loop
from tune.loop import FIRST_SAVE_SECONDS, output_of
from tune.own_loop import loop_of
from tune.reports import Metric, Report, from_row
from tune.settings import Settings
from tune.store.heartbeat import cancel_exit_timer, process_start_ticks

LOSS = Metric(name="loss", tie=0.0)
HEAD = "import json, os, sys, time\nimport tune.loop as ration\n"
COUNTS = """
def train(config):
    step = 0
    if (saved := ration.checkpoint()) is not None:
        step = json.loads((saved / "state.json").read_text())
    while not ration.done():
        step += 1
        time.sleep(0.01)
        save = lambda folder: (folder / "state.json").write_text(json.dumps(step))
        ration.report(loss=1 / step, step=step, other=step, save=save)
"""


class Worker:
    """A worker, and the leases that it is given."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.lease = folder / "study", 0
        (self.folder / "heartbeats").mkdir(parents=True)
        self.code = folder / "code"
        self.code.mkdir()
        self.trial = LoopTrial.__new__(LoopTrial)
        monkeypatch.setattr("tune.backend.leased.HeartbeatThread", self.heart)
        self.place = place(self.folder)

    def heart(self, live: Callable[[], float]) -> Any:
        """One that beats when it is told to."""
        self.live = live
        return SimpleNamespace(start=lambda: None)

    def loop(self, source: str, function: str | None = "train", **more: Any) -> Loop:
        file = self.code / "mine.py"
        file.write_text(HEAD + source)
        return Loop(folder=self.code, file=file, function=function, metric=LOSS, **more)

    def lease_of(self, trial: str = "t001", seconds: float = 60.0, **goal: Any) -> dict[str, Any]:
        """What the driver says of a lease that begins now."""
        self.lease += 1
        return told(None, trial=trial, family="loop", config={"width": 4}, lease=self.lease, seconds=seconds, **goal)

    def goes_on(self, *lease: str, **more: Any) -> Report:
        """With its next lease; the last report of that."""
        self.trial.reset_config(self.lease_of(*lease, **more))
        return self.ends()

    def ends(self) -> Report:
        """The last report of the lease."""
        while True:
            report = from_row(json.loads(self.trial.step()["report"]))
            if report.ended:
                return report

    @property
    def output(self) -> str:
        return (self.folder / output_of("t001")).read_text()


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    made = Worker(tmp_path, monkeypatch)
    yield made
    made.trial.cleanup()
    cancel_exit_timer()


def test_it_goes_on_where_it_was_in_the_same_process_and_nothing_of_our_models_is_there(worker: Worker) -> None:
    (worker.code / "model.py").write_text("GPT = 'theirs'\n")
    source = "from model import GPT\nprint(GPT, os.getpid(), 'model.config' in sys.modules, 'ray' in sys.modules)\n"
    worker.trial.setup(worker.lease_of(steps=30), worker.place, worker.loop(source + COUNTS))
    first = worker.ends()
    assert first.ended == "rung" and first.steps == 30 and first.valid and first.valid.loss == 1 / 30
    assert first.numbers == {"loss": 1 / 30, "other": 30.0} and not first.lost
    assert worker.goes_on(steps=50).steps == 50
    assert worker.goes_on("t002", steps=10).steps == 10, "another trial begins at its own beginning"
    assert worker.output.count("theirs") == 1 and "False False" in worker.output


def test_a_script_runs_as_itself_in_its_folder_for_each_lease(worker: Worker) -> None:
    (worker.code / "beside.py").write_text("GAIN = 1\n")
    source = "import beside\nprint(os.getcwd(), sys.argv[0], ration.config(width=1, rate=2))\n"
    source += COUNTS.replace("def train(config):", "if __name__ == '__main__':")
    worker.trial.setup(worker.lease_of(steps=5), worker.place, worker.loop(source, None))
    assert worker.ends().steps == 5
    assert worker.goes_on(steps=9).steps == 9
    assert worker.output.count(f"{worker.code} {worker.code / 'mine.py'} {{'width': 4, 'rate': 2}}") == 2


def test_a_script_that_is_a_link_finds_what_lies_beside_its_file_and_runs_in_the_links_folder(worker: Worker) -> None:
    """As `python FILE` does."""
    loop = worker.loop("import beside\nprint(os.getcwd())\nration.report(loss=1.0, step=1)\n", None)
    (there := worker.code.with_name("there")).mkdir()
    (there / "beside.py").touch()
    (worker.code / "mine.py").rename(there / "train.py")
    (worker.code / "mine.py").symlink_to(there / "train.py")
    worker.trial.setup(worker.lease_of(), worker.place, loop)
    assert worker.ends().ended == "returned" and worker.output.split() == [str(worker.code)]


def test_what_a_script_saves_after_its_end_may_be_of_its_own_classes(worker: Worker) -> None:
    """As where `torch.save` pickles a whole model."""
    source = "import pickle\nclass Net: ...\nnet = Net()\n"
    source += "ration.report(loss=1.0, save=lambda folder: (folder / 'net').write_bytes(pickle.dumps(net)))\n"
    worker.trial.setup(worker.lease_of(), worker.place, worker.loop(source, None))
    report = worker.ends()
    assert report.ended == "returned" and report.checkpoint and not report.lost


def test_modules_beside_a_script_are_executed_anew_with_it_and_installed_ones_once(worker: Worker) -> None:
    installed = worker.code / "site-packages"
    for file in (worker.code / "beside.py", worker.code / "package" / "part.py", installed / "other.py"):
        file.parent.mkdir(exist_ok=True)
        file.write_text("called = 0\n")
    source = f"sys.path.append({str(installed)!r})\nimport beside, other\nfrom package import part\n"
    source += "for each in (beside, part, other):\n    each.called += 1\n    print(each.called)\n"
    source += COUNTS.replace("def train(config):", "if __name__ == '__main__':")
    worker.trial.setup(worker.lease_of(steps=5), worker.place, worker.loop(source, None))
    assert worker.ends().steps == 5
    assert worker.goes_on("t002", steps=9).steps == 9
    assert [(worker.folder / output_of(trial)).read_text() for trial in ("t001", "t002")] == ["1\n1\n1\n", "1\n1\n2\n"]


def test_a_package_that_is_called_as_one_of_ours_is_executed_anew_as_a_whole(worker: Worker) -> None:
    (worker.code / "model").mkdir()
    (worker.code / "model" / "__init__.py").write_text("from model.net import Net\n")
    (worker.code / "model" / "net.py").write_text("class Net: ...\n")
    source = "import model, model.net\nassert model.Net is model.net.Net\n"
    source += COUNTS.replace("def train(config):", "if __name__ == '__main__':")
    worker.trial.setup(worker.lease_of(steps=5), worker.place, worker.loop(source, None))
    assert worker.ends().steps == 5
    assert worker.goes_on("t002", steps=9).steps == 9


HANGS = {
    "at once": "def train(config):\n    time.sleep(10_000)\n",
    "with the lock": "def train(config):\n    import ctypes\n    ctypes.PyDLL(None).sleep(10_000)\n",
    "with a child": "import subprocess\n"
    "def train(config):\n    subprocess.run([sys.executable, '-c', 'import time; time.sleep({MARK})'])\n",
    "with a child in a session of its own": "import subprocess\n"
    "def train(config):\n"
    "    subprocess.run([sys.executable, '-c', 'import time; time.sleep({MARK})'], start_new_session=True)\n",
}


TO_GROUP = "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n    os.killpg(0, signal.SIGTERM)\n"
HANGS["after a signal to its group"] = HANGS["with a child"].replace(
    "def train(config):\n", f"import signal\ndef train(config):\n{TO_GROUP}"
)


MARK = f"1{os.getpid():07d}.5"
"""Seconds of a sleep by which a process of this test's is known among all others of the machine."""


@pytest.mark.parametrize("how", HANGS)
def test_a_loop_that_never_reports_is_ended_at_its_lease_with_all_that_it_began(worker: Worker, how: str) -> None:
    worker.trial.setup(
        worker.lease_of(seconds=2.0, steps=5), worker.place, worker.loop(HANGS[how].replace("{MARK}", MARK))
    )
    assert worker.trial._process is not None
    process = worker.trial._process.pid
    report = worker.ends()
    assert report.ended == "lease" and report.valid is None and report.numbers == {} and report.steps == 0
    assert report.seconds["lost"] > 0, "it is charged for what it took"
    assert process_start_ticks(process) is None
    for each in psutil.process_iter(["cmdline"]):
        if MARK in " ".join(each.info["cmdline"] or ()):
            each.wait(60.0)  # killed, if not gone at once
    file = worker.code / "mine.py"
    file.write_text(HEAD + COUNTS)
    assert worker.goes_on("t002", steps=3).steps == 3, "the worker serves again, with a new process"


def test_what_a_loop_began_ends_with_a_worker_that_ends_itself(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where its driver is gone."""
    ended: list[int] = []
    monkeypatch.setattr(loop_trial.os, "_exit", ended.append)
    gone = replace(worker.place, driver=replace(worker.place.driver, started=-1))
    worker.trial.setup(worker.lease_of(), gone, worker.loop(HANGS["with a child"].replace("{MARK}", MARK)))
    children = marked(lambda: worker.trial._process is not None and worker.trial._process.poll() is None)
    worker.live()
    assert ended == [1]
    _, left = psutil.wait_procs(children, timeout=60.0)
    assert not left


def marked(lives: Callable[[], bool]) -> list[psutil.Process]:
    """The processes that a loop began, once it did."""
    while True:
        found = [each for each in psutil.process_iter(["cmdline"]) if MARK in " ".join(each.info["cmdline"] or ())]
        if found:
            return found
        assert lives()


def work(folder: Path, source: str) -> None:
    """As a worker whose loop hangs."""
    worker = Worker(folder, pytest.MonkeyPatch())
    worker.trial.setup(worker.lease_of(), worker.place, worker.loop(source))
    worker.ends()


@pytest.mark.parametrize("how", ["with a child", "with a child in a session of its own", "after a signal to its group"])
def test_what_a_loop_began_ends_with_a_worker_that_is_killed(tmp_path: Path, how: str) -> None:
    killed = FORKING.Process(target=work, args=(tmp_path, HANGS[how].replace("{MARK}", MARK)))
    killed.start()
    processes = [*marked(killed.is_alive), *psutil.Process(killed.pid).children(recursive=True)]
    killed.kill()
    killed.join()
    _, left = psutil.wait_procs(processes, timeout=60.0)
    assert not left


def test_what_was_not_saved_is_lost_and_said_and_what_was_is_kept(worker: Worker) -> None:
    source = COUNTS.replace("        time.sleep(0.01)\n", "        time.sleep(0.01 if step <= 30 else 10_000)\n")
    source = source.replace("1 / step", "1 / min(step, 20)")  # a new best would be saved
    worker.trial.setup(worker.lease_of(steps=20), worker.place, worker.loop(source))
    assert worker.ends().steps == 20
    report = worker.goes_on(seconds=3.0, steps=100)
    assert report.ended == "lease" and report.checkpoint and report.checkpoint.endswith("20")
    assert report.steps - report.lost == 20 <= report.steps <= 30


def test_what_a_checkpoint_takes_is_known_to_the_next_trial_of_a_process(worker: Worker) -> None:
    """By it a loop that is ended by force has saved what is cheap."""
    source = COUNTS.replace("    step = 0\n", "    step = 0\n    print(ration.current_lease().save_seconds)\n")
    worker.trial.setup(worker.lease_of(steps=20), worker.place, worker.loop(source))
    assert worker.ends().seconds["checkpoint"] > 0
    assert worker.goes_on("t002", steps=10).steps == 10
    first, then = (float((worker.folder / output_of(trial)).read_text()) for trial in ("t001", "t002"))
    assert first == FIRST_SAVE_SECONDS != then > 0


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


FAILS = {
    "raise RuntimeError('mine')": r"its train raised RuntimeError: mine \(mine.py:4\)",
    "sys.exit(3)": r"its train raised RuntimeError: it exited with 3",
    "import nothing_of_this_name": r"its train raised ModuleNotFoundError: No module named 'nothing_of_this_name'",
    "ration.report(loss='low')": r"its train raised ValueError: report: loss is 'low', which is no number",
    "ration.report(other=1)": r"its train raised ValueError: report: 'loss' is the metric, and here is 'other'",
    "return": r"ValueError: the loop returned without a report",
}


@pytest.mark.parametrize("line", FAILS)
def test_an_error_is_told_in_one_line_that_names_the_place(worker: Worker, line: str) -> None:
    worker.trial.setup(worker.lease_of(steps=5), worker.place, worker.loop(f"def train(config):\n    {line}\n"))
    with pytest.raises(LoopFailed) as failed:
        worker.ends()
    function, said = in_one_line(f"Traceback:\n{failed.value}") or (None, "")
    assert re.search(FAILS[line], f"its {function} raised {said}")
    assert "Traceback" in worker.output


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
    worker.trial.setup(worker.lease_of(steps=5), worker.place, worker.loop(f"def train(config):\n    {how}\n"))
    with pytest.raises(SystemExit):
        worker.ends()
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
    worker.trial.setup(
        worker.lease_of(steps=5), worker.place, worker.loop(f"def train(config):\n    print('mine')\n    {how}\n")
    )
    with pytest.raises(SystemExit):
        worker.ends()
    assert worker.output.splitlines() == ["mine", f"its process ended {said}"]


def test_a_loop_that_dies_after_its_last_report_ended_as_any_and_the_next_lease_has_its_own(worker: Worker) -> None:
    worker.trial.setup(worker.lease_of(steps=30), worker.place, worker.loop(COUNTS + "    os._exit(0)\n"))
    first = worker.ends()
    assert (first.ended, first.steps) == ("rung", 30) and first.checkpoint
    assert worker.goes_on(steps=50).steps == 50


def test_a_loop_that_changes_its_folder_begins_the_next_lease_in_its_own(worker: Worker) -> None:
    (worker.code / "data").mkdir()
    moves = COUNTS.replace("    step = 0", "    os.chdir('data')\n    step = 0")
    worker.trial.setup(worker.lease_of(steps=3), worker.place, worker.loop(moves))
    assert worker.ends().steps == 3 and worker.goes_on(steps=6).steps == 6


IN_A_THREAD = (
    COUNTS.replace("train(config)", "work()")
    + """
def train(config):
    import threading
    threading.Thread(target=work).start()
"""
)


def test_a_loop_that_trains_in_a_thread_ends_with_that_as_it_does_alone(worker: Worker) -> None:
    worker.trial.setup(worker.lease_of(steps=10), worker.place, worker.loop(IN_A_THREAD))
    first = worker.ends()
    assert (first.ended, first.steps) == ("rung", 10)
    worker.loop(IN_A_THREAD.replace("not ration.done()", "step < 20 and not ration.done()"))
    worker.trial.cleanup()
    last = worker.goes_on(steps=1000)
    assert (last.ended, last.steps) == ("returned", 20)


@pytest.mark.parametrize("ends", ["sys.exit(0)", "sys.exit('done')", "return", "raise ValueError"])
def test_a_child_that_the_loop_forks_says_nothing_of_how_the_loop_ends(worker: Worker, ends: str) -> None:
    forks = "def main(config):\n    if (pid := os.fork()) == 0:\n        {}\n    os.waitpid(pid, 0)\n"
    loop = worker.loop(COUNTS + forks.format(ends) + "    train(config)\n", "main")
    worker.trial.setup(worker.lease_of(steps=30), worker.place, loop)
    first = worker.ends()
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
    worker.trial.setup(worker.lease_of(steps=10), worker.place, worker.loop(LEFT))
    assert worker.ends().ended == "returned"
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
    worker.trial.setup(worker.lease_of(steps=3), worker.place, worker.loop(source))
    assert worker.ends().steps == 3 and worker.goes_on("t002", steps=3).steps == 3
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
    worker.trial.setup(worker.lease_of(steps=3), worker.place, worker.loop(source))
    assert worker.ends().steps == 3
    report = worker.goes_on("t002", steps=1000)
    assert report.valid and report.valid.loss == 5.0


def test_an_error_is_told_where_nothing_can_be_printed(worker: Worker) -> None:
    full = "def train(config):\n    sys.stderr = open('/dev/full', 'w', buffering=1)\n    raise ValueError\n"
    worker.trial.setup(worker.lease_of(steps=5), worker.place, worker.loop(full))
    with pytest.raises(LoopFailed, match="ValueError"):
        worker.ends()


def test_a_disk_that_takes_no_output_is_told_as_such_and_fails_no_trial(worker: Worker) -> None:
    (worker.folder / "output").symlink_to("/sys/kernel")  # in which nobody may write
    worker.trial.setup(worker.lease_of(steps=5), worker.place, worker.loop(COUNTS))
    assert "refused" in worker.trial.step()


def test_a_disk_that_is_full_when_a_loop_prints_is_told_as_such_and_fails_no_trial(worker: Worker) -> None:
    (file := worker.folder / output_of("t001")).parent.mkdir()
    file.symlink_to("/dev/full")
    worker.trial.setup(worker.lease_of(steps=5), worker.place, worker.loop("def train(config):\n    print('epoch')\n"))
    assert "refused" in worker.trial.step()


SAVES = """
import resource, shutil

def save(folder):
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    WRITES

def train(config):
    ration.report(loss=1.0, step=1, save=save)
    while not ration.done():
        ration.report(loss=1.0, step=2, save=save)
"""
WRITES = {
    "a copy of a folder": "shutil.copytree(os.path.dirname(os.__file__) + '/json', folder / 'json')",
    "a library's own error": "raise RuntimeError('unexpected pos 64 vs 0')",
}


@pytest.mark.parametrize("what", WRITES)
@pytest.mark.parametrize("steps", [2, None])
def test_a_disk_that_takes_no_checkpoint_is_told_as_such_whatever_error_that_is_to_the_loop(
    worker: Worker, what: str, steps: int | None
) -> None:
    """At its last report, or once it has returned."""
    source = SAVES.replace("WRITES", WRITES[what])
    source = source if steps else source.replace("    while", "    return\n    while")
    worker.trial.setup(worker.lease_of(steps=steps), worker.place, worker.loop(source))
    assert "report" in worker.trial.step() and "refused" in worker.trial.step()


def test_a_process_that_died_between_two_leases_is_no_fault_of_the_next_trial(worker: Worker) -> None:
    dies = "pid = os.getpid()\n" + COUNTS + "    open('pid', 'w').write(str(pid))\n"
    worker.trial.setup(worker.lease_of(steps=3), worker.place, worker.loop(dies))
    assert worker.ends().ended == "rung"
    pid = int((worker.code / "pid").read_text())
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert worker.goes_on("t002", steps=10).steps == 10


def test_told_to_end_it_ends_at_a_report_and_keeps_what_it_has(worker: Worker) -> None:
    worker.trial.setup(worker.lease_of(steps=10**9), worker.place, worker.loop(COUNTS))
    worker.trial.step()
    (worker.folder / "stop").touch()
    report = worker.ends()
    assert report.ended == "stopped" and report.checkpoint and not report.lost


RAY = """
import tempfile
from ray import tune
from ray.tune import Checkpoint, report

def train(config):
    context = tune.get_context()
    names = context.get_experiment_name(), context.get_trial_id(), context.get_trial_name()
    print(*names, os.listdir(context.get_trial_dir()))
    start = 0
    if (checkpoint := tune.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            start = json.load(open(os.path.join(folder, "state.json")))
    for epoch in range(start, 100):
        with tempfile.TemporaryDirectory() as folder:
            json.dump(epoch + 1, open(os.path.join(folder, "state.json"), "w"))
            report({"loss": 1 / (epoch + 1), "name": "a text"}, checkpoint=Checkpoint.from_directory(folder))
"""


def test_a_function_of_ray_tunes_runs_unchanged(worker: Worker) -> None:
    worker.trial.setup(worker.lease_of(steps=30), worker.place, worker.loop(RAY))
    first = worker.ends()
    assert first.ended == "rung" and first.steps == 30 and first.numbers == {"loss": 1 / 30}
    assert worker.goes_on(steps=50).steps == 50
    last = worker.goes_on(rung=None, steps=None)
    assert last.ended == "returned" and last.steps == 100 and last.valid and last.valid.loss == 0.01
    assert worker.output.splitlines() == [f"{worker.place.folder.name} t001 t001 []"] * 3


def test_a_function_of_this_session_goes_along_with_what_it_holds(worker: Worker) -> None:
    import ray.cloudpickle

    scale = 3.0

    def train(config: dict[str, Any]) -> None:
        import tune.loop as ration

        for step in range(1, 100):
            if ration.done():
                return
            ration.report(loss=scale / step + config["width"], step=step)

    loop = Loop(folder=worker.code, pickled=ray.cloudpickle.dumps(train), metric=LOSS)
    worker.trial.setup(worker.lease_of(steps=6), worker.place, loop)
    report = worker.ends()
    assert report.valid and report.valid.loss == 4.5 and report.lost == 6 and report.checkpoint is None
    assert os.getpid() != (worker.trial._process.pid if worker.trial._process else 0)


@pytest.mark.parametrize("module", ["of_mine.loops.train", "of_mine.loops"])
def test_a_function_of_a_package_finds_the_modules_of_its_package(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    (package := worker.code / "of_mine" / "loops").mkdir(parents=True)
    (worker.code / "of_mine" / "net.py").write_text("class Net:\n    loss = 0.5\n")
    for file in (worker.code / "of_mine" / "__init__.py", package / "__init__.py"):
        file.touch()
    (package / ("train.py" if module.endswith("train") else "__init__.py")).write_text(
        "import tune.loop as ration\nfrom ..net import Net\n"
        "def train(config):\n    ration.report(loss=Net().loss, step=1)\n"
    )
    monkeypatch.syspath_prepend(worker.code)
    train = importlib.import_module(module).train
    loop = loop_of(Settings(budget="1h", train=train, space={"width": [4, 8]}, metric="loss"))
    for name in [name for name in sys.modules if name.partition(".")[0] == "of_mine"]:
        del sys.modules[name]
    worker.trial.setup(worker.lease_of(), worker.place, loop)
    report = worker.ends()
    assert report.valid and report.valid.loss == 0.5
