"""The worker of a user's loop, without a Ray around it: what it runs, keeps and says."""

import errno
import importlib
import math
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.tune.backend.worker import COUNTS, LOSS, Worker
from tune.backend import loop_trial
from tune.backend.loop_trial import LoopFailed
from tune.errors import parse_traceback as in_one_line
from tune.load import Loop
from tune.loop import FIRST_SAVE_SECONDS, output_of
from tune.own_loop import loop_of
from tune.settings import Settings


def test_it_goes_on_where_it_was_in_the_same_process_and_nothing_of_our_models_is_there(worker: Worker) -> None:
    (worker.code / "model.py").write_text("GPT = 'theirs'\n")
    source = "from model import GPT\nprint(GPT, os.getpid(), 'model.config' in sys.modules, 'ray' in sys.modules)\n"
    first = worker.begins(source + COUNTS, steps=30)
    assert first.ended == "rung" and first.steps == 30 and first.valid and first.valid.loss == 1 / 30
    assert first.numbers == {"loss": 1 / 30, "other": 30.0} and not first.lost
    assert worker.goes_on(steps=50).steps == 50
    assert worker.goes_on("t002", steps=10).steps == 10, "another trial begins at its own beginning"
    assert worker.output.count("theirs") == 1 and "False False" in worker.output


def test_a_script_runs_as_itself_in_its_folder_for_each_lease(worker: Worker) -> None:
    (worker.code / "beside.py").write_text("GAIN = 1\n")
    source = "import beside\nprint(os.getcwd(), sys.argv[0], ration.config(width=1, rate=2))\n"
    source += COUNTS.replace("def train(config):", "if __name__ == '__main__':")
    assert worker.begins(source, None, steps=5).steps == 5
    assert worker.goes_on(steps=9).steps == 9
    assert worker.output.count(f"{worker.code} {worker.code / 'mine.py'} {{'width': 4, 'rate': 2}}") == 2


def test_a_script_that_is_a_link_finds_what_lies_beside_its_file_and_runs_in_the_links_folder(worker: Worker) -> None:
    """As `python FILE` does."""
    loop = worker.loop("import beside\nprint(os.getcwd())\nration.report(loss=1.0, step=1)\n", None)
    (there := worker.code.with_name("there")).mkdir()
    (there / "beside.py").touch()
    (worker.code / "mine.py").rename(there / "train.py")
    (worker.code / "mine.py").symlink_to(there / "train.py")
    assert worker.begins(loop).ended == "returned" and worker.output.split() == [str(worker.code)]


def test_what_a_script_saves_after_its_end_may_be_of_its_own_classes(worker: Worker) -> None:
    """As where `torch.save` pickles a whole model."""
    source = "import pickle\nclass Net: ...\nnet = Net()\n"
    source += "ration.report(loss=1.0, save=lambda folder: (folder / 'net').write_bytes(pickle.dumps(net)))\n"
    report = worker.begins(source, None)
    assert report.ended == "returned" and report.checkpoint and not report.lost


def test_modules_beside_a_script_are_executed_anew_with_it_and_installed_ones_once(worker: Worker) -> None:
    installed = worker.code / "site-packages"
    for file in (worker.code / "beside.py", worker.code / "package" / "part.py", installed / "other.py"):
        file.parent.mkdir(exist_ok=True)
        file.write_text("called = 0\n")
    source = f"sys.path.append({str(installed)!r})\nimport beside, other\nfrom package import part\n"
    source += "for each in (beside, part, other):\n    each.called += 1\n    print(each.called)\n"
    source += COUNTS.replace("def train(config):", "if __name__ == '__main__':")
    assert worker.begins(source, None, steps=5).steps == 5
    assert worker.goes_on("t002", steps=9).steps == 9
    assert [(worker.folder / output_of(trial)).read_text() for trial in ("t001", "t002")] == ["1\n1\n1\n", "1\n1\n2\n"]


def test_a_package_that_is_called_as_one_of_ours_is_executed_anew_as_a_whole(worker: Worker) -> None:
    (worker.code / "model").mkdir()
    (worker.code / "model" / "__init__.py").write_text("from model.net import Net\n")
    (worker.code / "model" / "net.py").write_text("class Net: ...\n")
    source = "import model, model.net\nassert model.Net is model.net.Net\n"
    source += COUNTS.replace("def train(config):", "if __name__ == '__main__':")
    assert worker.begins(source, None, steps=5).steps == 5
    assert worker.goes_on("t002", steps=9).steps == 9


def test_what_was_not_saved_is_lost_and_said_and_what_was_is_kept(worker: Worker) -> None:
    source = COUNTS.replace("        time.sleep(0.002)\n", "        time.sleep(0.002 if step <= 30 else 10_000)\n")
    source = source.replace("1 / step", "1 / min(step, 20)")  # a new best would be saved
    assert worker.begins(source, steps=20).steps == 20
    report = worker.goes_on(seconds=6.0, steps=100)
    assert report.ended == "lease" and report.checkpoint and report.checkpoint.endswith("20")
    assert report.steps - report.lost == 20 < report.steps <= 30


def test_what_a_checkpoint_takes_is_known_to_the_next_trial_of_a_process(worker: Worker) -> None:
    """By it a loop that is ended by force has saved what is cheap."""
    source = COUNTS.replace("    step = 0\n", "    step = 0\n    print(ration.current_lease().save_seconds)\n")
    assert worker.begins(source, steps=20).seconds["checkpoint"] > 0
    assert worker.goes_on("t002", steps=10).steps == 10
    first, then = (float((worker.folder / output_of(trial)).read_text()) for trial in ("t001", "t002"))
    assert first == FIRST_SAVE_SECONDS != then > 0


FAILS = {
    "raise RuntimeError('mine')": r"its train raised RuntimeError: mine \(mine.py:4\)",
    "sys.exit(3)": r"its train raised RuntimeError: it exited with 3",
    "import nothing_of_this_name": r"its train raised ModuleNotFoundError: No module named 'nothing_of_this_name'",
    "ration.report(loss='low')": r"its train raised ValueError: report: loss is 'low', which is no number",
    "return": r"ValueError: the loop returned without a report",
}


@pytest.mark.parametrize("line", FAILS)
def test_an_error_is_told_in_one_line_that_names_the_place(worker: Worker, line: str) -> None:
    with pytest.raises(LoopFailed) as failed:
        worker.begins(f"def train(config):\n    {line}\n", steps=5)
    function, said = in_one_line(f"Traceback:\n{failed.value}") or (None, "")
    assert re.search(FAILS[line], f"its {function} raised {said}")
    assert "Traceback" in worker.output


def test_a_script_may_do_what_a_process_can_do_only_once(worker: Worker) -> None:
    source = "import multiprocessing\nmultiprocessing.set_start_method('spawn')\n"
    source += COUNTS.replace("def train(config):", "if __name__ == '__main__':")
    assert worker.begins(source, None, steps=5).steps == 5
    assert worker.goes_on("t002", steps=9).steps == 9


@pytest.mark.parametrize(("first", "begun"), [("", 2), ("ration.report(loss=1.0, step=1)", 1)])
def test_a_loop_that_is_wrong_in_a_new_process_too_or_once_it_reported_fails(
    worker: Worker, first: str, begun: int
) -> None:
    wrong = f"    if ration.current_lease().terms.trial == 't002':\n        print('begun')\n        {first}\n"
    source = COUNTS.replace("    step = 0\n", f"{wrong}        1 / 0\n    step = 0\n", 1)
    assert worker.begins(source, steps=5).steps == 5
    with pytest.raises(LoopFailed, match="ZeroDivisionError"):
        worker.goes_on("t002", steps=9)
    assert (worker.folder / output_of("t002")).read_text().count("begun") == begun


@pytest.mark.parametrize(("words", "end"), [(5, "word"), (500, "…")])
def test_an_error_that_is_cut_short_says_so(tmp_path: Path, words: int, end: str) -> None:
    trace = f'Traceback:\n  File "{tmp_path}/mine.py", line 3, in train\nValueError: {" ".join(["word"] * words)}\n'
    function, said = in_one_line(trace) or (None, "")
    assert function == "train" and said.endswith(f"{end} (mine.py:3)")


def test_a_loop_that_changes_its_folder_begins_the_next_lease_in_its_own(worker: Worker) -> None:
    (worker.code / "data").mkdir()
    moves = COUNTS.replace("    step = 0", "    os.chdir('data')\n    step = 0")
    assert worker.begins(moves, steps=3).steps == 3 and worker.goes_on(steps=6).steps == 6


def test_an_error_is_told_where_nothing_can_be_printed(worker: Worker) -> None:
    full = "def train(config):\n    sys.stderr = open('/dev/full', 'w', buffering=1)\n    raise ValueError\n"
    with pytest.raises(LoopFailed, match="ValueError"):
        worker.begins(full, steps=5)


def test_a_disk_that_takes_no_output_is_told_as_such_and_fails_no_trial(worker: Worker) -> None:
    (worker.folder / "output").symlink_to("/sys/kernel")  # in which nobody may write
    worker.trial.setup(worker.lease_of(steps=5), worker.place, worker.loop(COUNTS))
    assert "refused" in worker.trial.step()


def test_a_disk_that_is_full_when_a_loop_prints_is_told_as_such_and_fails_no_trial(worker: Worker) -> None:
    (file := worker.folder / output_of("t001")).parent.mkdir()
    file.symlink_to("/dev/full")
    worker.trial.setup(worker.lease_of(steps=5), worker.place, worker.loop("def train(config):\n    print('epoch')\n"))
    assert "refused" in worker.trial.step()


def test_a_disk_that_is_gone_as_a_loop_is_ended_by_force_is_told_as_such_and_fails_no_trial(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(folder: Path) -> None:
        raise OSError(errno.EIO, "Input/output error", str(folder))

    worker.trial.setup(worker.lease_of(), worker.place, worker.loop("def train(config):\n    time.sleep(600)\n"))
    monkeypatch.setattr(loop_trial, "newest_checkpoint", gone)
    monkeypatch.setattr(loop_trial, "time", SimpleNamespace(monotonic=lambda: math.inf))
    assert worker.trial.step()["refused"][0] == errno.EIO


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


def test_told_to_end_it_ends_at_a_report_and_keeps_what_it_has(worker: Worker) -> None:
    worker.trial.setup(worker.lease_of(steps=10**9), worker.place, worker.loop(COUNTS))
    worker.trial.step()
    (worker.folder / "stop").touch()
    report = worker.ends()
    assert report.ended == "stopped" and report.checkpoint and not report.lost


RAY = """
import importlib.util, tempfile
importlib.util.find_spec("ray.tune")  # as transformers asks whether it is installed
from ray import tune
from ray.tune import Checkpoint, report

def train(config):
    context = tune.get_context()
    names = context.get_experiment_name(), context.get_trial_id(), context.get_trial_name()
    print(*names, os.listdir(folder := context.get_trial_dir()), folder)
    start = 0
    if (checkpoint := tune.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            start = json.load(open(os.path.join(folder, "state.json")))
    for epoch in range(start, 100):
        with tempfile.TemporaryDirectory() as folder:
            json.dump(epoch + 1, open(os.path.join(folder, "state.json"), "w"))
            metrics = {"loss": 1 / (epoch + 1), "name": "a text", "eval": {"loss": epoch}}
            report(metrics, checkpoint=Checkpoint.from_directory(folder))
"""


def test_a_function_of_ray_tunes_runs_unchanged(worker: Worker) -> None:
    first = worker.begins(RAY, steps=30)
    assert first.ended == "rung" and first.steps == 30 and first.numbers == {"loss": 1 / 30, "eval/loss": 29}
    assert worker.goes_on(steps=50).steps == 50
    last = worker.goes_on(rung=None, steps=None)
    assert last.ended == "returned" and last.steps == 100 and last.valid and last.valid.loss == 0.01
    folder = Path(worker.output.split()[-1])
    assert worker.output.splitlines() == [f"{worker.place.folder.name} t001 t001 [] {folder}"] * 3
    assert folder.is_dir()
    worker.trial.cleanup()
    assert not folder.exists()


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
    report = worker.begins(loop, steps=6)
    assert report.valid and report.valid.loss == 4.5 and report.lost == 6 and report.checkpoint is None
    assert os.getpid() != (worker.trial._process.pid if worker.trial._process else 0)


@pytest.mark.parametrize("module", ["of_mine.loops.train", "of_mine.loops"])
@pytest.mark.parametrize("named", [False, True])
def test_a_function_of_a_package_finds_the_modules_of_its_package(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, module: str, named: bool
) -> None:
    """Given as it is, or named in a file beside its package."""
    (package := worker.code / "of_mine" / "loops").mkdir(parents=True)
    (worker.code / "of_mine" / "net.py").write_text("class Net:\n    loss = 0.5\n")
    for file in (worker.code / "of_mine" / "__init__.py", package / "__init__.py"):
        file.touch()
    (package / ("train.py" if module.endswith("train") else "__init__.py")).write_text(
        "import tune.loop as ration\nfrom ..net import Net\n"
        "def train(config):\n    ration.report(loss=Net().loss, step=1)\n"
    )
    monkeypatch.syspath_prepend(worker.code)
    (file := worker.code / "mine.py").write_text(f"from {module} import train\n")
    train = f"{file}:train" if named else importlib.import_module(module).train
    loop = loop_of(Settings(budget="1h", train=train, space={"width": [4, 8]}, metric="loss"))
    for name in [name for name in sys.modules if name.partition(".")[0] == "of_mine"]:
        del sys.modules[name]
    report = worker.begins(loop)
    assert report.valid and report.valid.loss == 0.5
