"""The examples do what they say, with the budget made small."""

import json
import math
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import yaml

from tests.readme import REPOSITORY
from tests.searches import LONG
from tests.soak.observer import Observer
from tests.soak.search import Search
from tests.tune.display.conftest import Sampled
from tests.tune.search.world import World
from tune import study
from tune.facts import write_facts
from tune.reports import Evaluation, Report
from tune.settings import Settings
from tune.store.journal import connect
from tune.store.mirror import Mirror

EXAMPLES = REPOSITORY / "examples"


@pytest.fixture(scope="module")
def printed(observer: Observer, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The study of a family of one's own, run as a user's script until Ctrl-C, and what it printed."""
    folder = tmp_path_factory.mktemp("user")
    asked = f'budget="{LONG}", devices=1, out="{folder / "study"}", text_corpus="{folder / "text.txt"}"'
    (folder / "mine.py").write_text((EXAMPLES / "own_family.py").read_text().replace('budget="2h"', asked))
    (folder / "text.txt").write_text("To be, or not to be, that is the question. " * 5000)
    search = Search(observer, script=(folder / "mine.py",))
    assert search.wait_for("at rung 0"), search.printed
    search.interrupt()
    assert search.finish() == 0, search.printed
    return folder / "study", search.printed


def test_a_family_of_ones_own_is_trained_and_the_best_kept(printed: tuple[Path, str]) -> None:
    journal = connect(printed[0])
    trials = journal.execute("SELECT family, config, parameters FROM trials JOIN reports USING (trial)").fetchall()
    assert {trial["family"] for trial in trials} == {"lstm"} and all(trial["parameters"] > 0 for trial in trials)
    assert {frozenset(json.loads(trial["config"])) for trial in trials} == {frozenset(("width", "layers", "dropout"))}
    ((corpora,),) = journal.execute("SELECT value FROM study WHERE key = 'corpora'").fetchall()
    (best,) = journal.execute("SELECT MIN(valid_loss) FROM reports").fetchone()
    assert 0 < best < math.log(json.loads(corpora)["lstm"]["vocabulary"])
    assert {file.name for file in (printed[0] / "best-lstm").iterdir()} >= {"config.json", "model.safetensors"}


def test_a_search_returns_its_ranking(printed: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The search itself is the one above."""
    ended = study.Outcome(folder=printed[0], found=True, interrupted=None)
    monkeypatch.setattr(study, "run_study", lambda *_: ended)
    result = runpy.run_path(str(EXAMPLES / "search_from_python.py"), run_name="__main__")["result"]
    assert isinstance(result, pd.DataFrame) and result.attrs["study"] == str(printed[0])
    assert f"lstm: best {result['trial'].iloc[0]} " in printed[1]
    assert printed[1].endswith(f"{result}\n")


@pytest.mark.parametrize("example", ["search_from_python", "track_mlflow", "track_wandb"])
def test_a_copy_of_an_example_names_no_file_of_ours(
    example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to the search itself, in an empty folder."""
    asked: list[Settings] = []

    def checked(settings: Settings, _: object) -> study.Outcome:
        settings.check_files()
        asked.append(settings)
        return study.Outcome(folder=tmp_path, found=True, interrupted=None)

    for library in ("mlflow", "wandb"):
        monkeypatch.setitem(sys.modules, library, Tracker())
    monkeypatch.setattr(study, "run_study", checked)
    monkeypatch.setattr(study, "ranking", lambda *_: pd.DataFrame())
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / f"{example}.py"), run_name="__main__")
    assert len(asked) == 1


class Tracker:
    """MLflow and Weights & Biases, as far as the examples ask them. logged: of each run its losses by steps."""

    def __init__(self) -> None:
        self.logged: dict[str, dict[int, float]] = {}
        self.configs: dict[str, dict[str, object]] = {}
        self.over: dict[str, bool] = {}  # the runs that are over: as failed or not
        self.ids = set[str]()
        self.MlflowClient = lambda: self

    def get_experiment_by_name(self, name: str) -> SimpleNamespace | None:
        return SimpleNamespace(experiment_id=name) if self.logged else None

    def create_experiment(self, name: str) -> str:
        return name

    def search_runs(self, experiments: list[str]) -> list[SimpleNamespace]:
        return [SimpleNamespace(info=SimpleNamespace(run_id=name, run_name=name)) for name in self.logged]

    def create_run(self, experiment: str, run_name: str) -> SimpleNamespace:
        return SimpleNamespace(info=SimpleNamespace(run_id=self._begun(run_name)))

    def log_param(self, run: str, name: str, value: object) -> None:
        self.configs[run][name] = value

    def set_tag(self, run: str, name: str, value: str) -> None:
        assert name == "decision" and run in self.logged

    def log_metric(self, run: str, name: str, value: float, step: int) -> None:
        if name == "valid_loss":
            self.logged[run][step] = value

    def set_terminated(self, run: str, status: str) -> None:
        self.over[run] = status == "FAILED"

    def init(self, *, name: str, id: str, config: dict[str, object], **_: object) -> SimpleNamespace:
        if id not in self.ids:
            self.configs[self._begun(name)] = config
        self.ids.add(id)

        def log(told: dict[str, float], step: int) -> None:
            self.logged[name] |= {step: told["valid_loss"]} if "valid_loss" in told else {}

        def finish(exit_code: int) -> None:
            self.over[name] = exit_code != 0

        return SimpleNamespace(summary={}, log=log, finish=finish)

    def _begun(self, name: str) -> str:
        assert name not in self.logged
        self.logged[name], self.configs[name] = {}, {}
        return name


@pytest.mark.parametrize(("library", "callback"), [("mlflow", "MLflow"), ("wandb", "Wandb")])
def test_a_tracker_has_each_trial_with_its_configuration_its_losses_and_whether_it_failed(
    library: str, callback: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = Tracker()
    monkeypatch.setitem(sys.modules, library, tracker)
    made = runpy.run_path(str(EXAMPLES / f"track_{library}.py"))[callback]
    for reports in (5, 10_000):  # the second time by a driver that goes on
        listener = made() if library == "mlflow" else made("ration")
        world = World(tmp_path, cap=300, slots=2, suggestions=Sampled, listen=lambda _, told=listener: [told])
        world.run(reports)
        if reports > 5:
            world.engine.end(failed := next(iter(world.engine.trials)), "error: planted")
        listener.on_close(world.engine)
    assert sorted(tracker.over) == sorted(world.engine.trials) == sorted(tracker.logged)
    assert [trial for trial, ends_failed in tracker.over.items() if ends_failed] == [failed]
    for trial, record in world.engine.trials.items():
        assert tracker.configs[trial] == {"family": record.family, **record.config}
        query = "SELECT steps, valid_loss FROM reports WHERE trial = ? AND valid_loss IS NOT NULL"
        assert tracker.logged[trial] == {row["steps"]: row["valid_loss"] for row in world.journal.rows(query, trial)}
    numbers = {"valid_loss": 0.5}  # of a loop, whose best is 0.25
    report = Report(steps=10**9, tokens=1, training_seconds=1.0, valid=Evaluation(loss=0.25), numbers=numbers)
    listener.on_report(world.engine, trial, report)
    assert tracker.logged[trial][10**9] == 0.5


def test_the_notebook_begins_a_study_and_goes_on_with_it_from_its_mirror(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cells in order, as far as they are Python: on a machine of its own each time, with one drive."""
    (tmp_path / "text.txt").write_text("To be, or not to be. " * 500)
    asked: list[Settings] = []
    monkeypatch.setattr(study, "search", asked.append)
    monkeypatch.setitem(sys.modules, "google.colab", SimpleNamespace(drive=SimpleNamespace(mount=lambda _: None)))
    cells = json.loads((EXAMPLES / "colab.ipynb").read_text())["cells"]
    whole = "".join(f"{''.join(cell['source'])}\n" for cell in cells if cell["cell_type"] == "code")
    lines = [line for line in whole.splitlines() if not line.startswith(("!", "%"))]
    python = "\n".join(lines).replace("/content/drive/MyDrive", str(tmp_path / "drive"))
    for machine in ("one", "two"):
        exec(python.replace("/content", str(tmp_path / machine)), {})
        settings = asked[-1]
        if machine == "one":
            world = World(made(settings.out), cap=settings.budget, slots=1, shares={"nanogpt": 1.0})
            write_facts({"created": 1.0, "settings": settings.stored()}, settings.out)
            world.run(5)
            for row in world.journal.rows("SELECT checkpoint FROM reports"):
                made(settings.out / row["checkpoint"])
            Mirror(settings.out, settings.mirror / settings.out.name, lambda world=world: world.now).copy()
    first, second = asked
    assert first.resume is None and second.resume == tmp_path / "two" / "ration" / "runs" / "one"
    assert (second.budget, second.mirror) == (first.budget, first.mirror)
    reports = [connect(each).execute("SELECT COUNT(*) FROM reports").fetchone()[0] for each in (first.out, second.out)]
    assert reports == [5, 5]


def made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def test_kubernetes_is_asked_for_a_search_in_the_same_folder_again(tmp_path: Path) -> None:
    job = yaml.safe_load((EXAMPLES / "kuberay.yaml").read_text())
    cluster = job["spec"]["rayClusterSpec"]
    pods = [cluster["headGroupSpec"]["template"], *(each["template"] for each in cluster["workerGroupSpecs"])]
    for pod in pods:
        (container,), (volume,) = pod["spec"]["containers"], pod["spec"]["volumes"]
        assert container["volumeMounts"] == [{"name": volume["name"], "mountPath": "/studies"}]
    assert cluster["authOptions"] == {"mode": "token"}
    assert job["spec"]["submissionMode"] == "HTTPMode"  # others paste the command into another shell
    assert f"ray[tune,train]=={cluster['rayVersion']}" in (REPOSITORY / "requirements.txt").read_text()
    shell = job["spec"]["entrypoint"].replace("/studies", str(tmp_path)).replace("cd /ration", "true")
    for flag in ("--out", "--resume"):
        told = subprocess.run(["sh", "-c", shell.replace("python", "echo")], env={"RAY_ADDRESS": "head:6379"},
                              capture_output=True, text=True, check=True).stdout.split()  # fmt: skip
        assert told == ["tune/run.py", "--budget", "64h", "--address", "head:6379", flag, str(tmp_path / "one")]
        (tmp_path / "one").mkdir(exist_ok=True)
        (tmp_path / "one" / "journal.db").touch()
