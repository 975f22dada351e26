"""A study of scaling with real processes, one of which is killed: what it writes and charges, and what that costs."""

import json
import os
import shlex
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from model.config import Config
from tests.soak.accounts import number
from tests.tune.experiments.this_process import ThisProcess, without_ray
from tune.backend.worker_group import LeaseOver, Message, Task, TaskContext
from tune.devices import Devices
from tune.experiments import parallel_timing
from tune.experiments.base import ExperimentSettings, Point, Trials
from tune.experiments.runner import (
    LATE_SECONDS,
    MOST_TIMES,
    TOO_LATE,
    PointRunner,
    allotted,
    exit_code,
    missing,
    remedy,
    run_experiment,
    unmeasured,
    what_shows,
)
from tune.experiments.scaling import SCALING, work
from tune.search.simulator import Clock
from tune.store.accounting import Accounting, Ledger
from tune.store.journal import Journal, connect

CAP, PATIENCE_SECONDS = 7200.0, 600.0
STEPS, EVERY = 30, 10
POINTS = [
    Point(devices=2, asked=asked, seconds=PATIENCE_SECONDS, least_seconds=PATIENCE_SECONDS / 4)
    for asked in ({"measure": "steps", "rows": 16}, {"measure": "training", "steps": STEPS, "every": EVERY})
]
"""With far more seconds than they need, also where processes take minutes to start: what is not used is released."""


def settings(out: Path, **more: Any) -> ExperimentSettings:
    asked = {"budget": CAP, "families": "nanogpt", "fix": {"d_model": 16, "heads": 4, "layers": 2}, "devices": 2}
    asked |= {"oversubscribe": True, "text_corpus": "builtin", "out": out}
    return ExperimentSettings(**(asked | more))


def rows(study: Path) -> list[dict[str, Any]]:
    return [json.loads(row["value"]) for row in connect(study).execute("SELECT value FROM rows ORDER BY row")]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of two ranks, the second of which is killed after the first checkpoint of a training; what the first says while
    it trains is kept in a file.
    """

    def dies(place: TaskContext, asked: dict[str, Any]) -> Iterator[Message]:
        """Defined here it travels as a whole: ranks do not import this module."""
        parallel_timing.TURN_SECONDS, parallel_timing.MOST_ROUNDS = 0.01, 5
        mark, told = place.folder / "died", place.folder / "said"
        for said in work(place, asked):
            if asked["measure"] == "training" and dist.get_rank() == 0:
                place.folder.mkdir(parents=True, exist_ok=True)
                with told.open("a") as file:
                    file.write(f"{said.kind}\n")
            elif asked["measure"] == "training" and said.kind == "steps" and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield said

    out = tmp_path_factory.mktemp("scaling") / "a study"
    assert run_experiment(replace(SCALING, points=lambda *_: POINTS, work=dies), settings(out)) == 0
    return out


def test_each_point_has_its_row_once_and_processes_serve_one_after_the_other(study: Path) -> None:
    from analysis.experiments.scaling import communication  # not in each process that imports this module
    from analysis.study import open_study

    steps, trained = rows(study)
    assert "skipped" not in steps and steps["start_up_seconds"] > 0
    drawn = EventAccumulator(str(study / "tensorboard" / SCALING.name)).Reload().Tags()["scalars"]
    assert "steps 16/step_seconds" in drawn, "an interval, though it came from another process"
    assert trained["steps"] == STEPS
    assert number(study, "SELECT COUNT(*) FROM leases") == 2, "a lease for each device"
    assert len(communication(open_study(study)).data) == 1


def test_the_commands_that_it_ends_with_can_be_typed(study: Path) -> None:
    """Though its folder has a space."""
    lines = (study / "log.txt").read_text().splitlines()
    typed = [shlex.split(line) for line in lines if line.startswith(("draw it: ", "its tables "))]
    assert len(typed) == 2 and all(str(study) in words for words in typed)


def test_a_death_is_charged_and_training_goes_on_from_its_checkpoint(study: Path) -> None:
    (lives,) = [file.read_text() for file in study.glob("checkpoints/*/said")]
    _, last = lives.split("start\n")[1:]
    assert last.count("steps") == STEPS / EVERY - 1 and list(study.glob("checkpoints/*/died"))
    assert number(study, "SELECT TOTAL(seconds) FROM charges WHERE what = 'lost'") > 0


def test_every_device_second_is_charged_once_on_every_device_alike_and_inside_the_cap(study: Path) -> None:
    held = number(study, "SELECT SUM(closed - opened) FROM slots")
    assert number(study, "SELECT COUNT(*) FROM slots WHERE closed IS NULL") == 0
    assert number(study, "SELECT SUM(seconds) FROM charges") == pytest.approx(held, abs=0.1) and held <= CAP
    assert number(study, "SELECT COUNT(*) % 2 FROM charges") == 0


def test_only_what_more_time_measures_is_tried_again_and_has_that_remedy(tmp_path: Path) -> None:
    """All words of a row that more time mends name --resume."""
    known: dict[int, dict[str, Any]] = {
        1: {"resolved": True}, 2: {"skipped": TOO_LATE}, 3: {"skipped": "DataParallel: there is no GPU here"},
        4: {"resolved": False},
    }  # fmt: skip
    points = [Point(devices=1, asked={"rows": rows}, seconds=1.0, least_seconds=1.0) for rows in range(5)]
    with closing(Journal(tmp_path, new=True)) as journal:
        for number, row in known.items():
            row = {"key": points[number].key, **row}
            journal.insert("rows", {"at": 0.0, "experiment": "scaling", "value": json.dumps(row)})
        assert unmeasured(points, journal, "scaling") == [points[0], points[2], points[4]]
        late, never = missing(points, journal, "scaling", "go on")
    assert late.startswith("3 of 5 not measured, or not to the end: 1 x rows 0; 1 x rows 2; ") and late.endswith(
        "go on --budget MORE"
    )
    assert never == "1 of 5 cannot be measured here: 1 x rows 3"


@pytest.mark.parametrize("left", [5.0, 50.0, 170.0, 200.0, 1e4])
def test_a_point_may_take_what_those_before_it_left_and_nothing_of_those_after_it(left: float) -> None:
    worth, others = 30.0, 80.0
    seconds = allotted(worth, left, others)
    assert min(worth, left) <= seconds <= min(left, MOST_TIMES * worth)
    assert seconds <= worth or left - seconds >= others
    assert allotted(worth, 1e4, others) == MOST_TIMES * worth, "it is less than all"
    again = allotted(worth, left, others, retried=True)
    assert again == max(seconds, left - others - LATE_SECONDS), "one that had too little gets all but the others' part"
    assert allotted(worth, left, 0.0, retried=True) == left, "and all where none comes after it"
    assert allotted(worth, left, 0.0, last=True) == min(left, MOST_TIMES * worth), "for whom nothing need be kept"


def bench_of(
    patch: pytest.MonkeyPatch, journal: Journal, points: Sequence[Point], cap: float,
    answer: Callable[[Task], dict[str, Any]], late: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = lambda: 0.0,
) -> PointRunner:  # fmt: skip
    """A bench of these points, whose groups call `late` while they start, and answer a task by `answer`."""

    class Group(ThisProcess):
        def wait_until_ready(self) -> None:
            late()

        def do(self, task: Task) -> dict[str, Any]:
            return answer(task)

    without_ray(patch, Group)
    devices = Devices(kind="cpu", count=1, model="core", precisions=("fp32",), cores=1)
    config: Any = Config(family="nanogpt")
    context: Any = SimpleNamespace(settings=None, devices=devices, config=config, data=None, points=points)
    return PointRunner(
        experiment=replace(SCALING, line=lambda row: ""), context=context, trials=Trials(journal, config, clock),
        accounting=Accounting(journal, Ledger(cap=cap, clock=clock), clock),
        write=lambda line: None,
    )  # fmt: skip


@pytest.mark.parametrize("overdue", [False, True])
def test_a_point_that_had_too_little_is_given_all_that_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overdue: bool
) -> None:
    """Lest --resume with the same cap says the same again; the first time it is given no more than it may take. Also
    one that was still at work when its lease ended."""
    asked, made = Point(devices=1, asked={"rows": 32}, seconds=20.0, least_seconds=5.0), list[float]()

    def answer(task: Task) -> dict[str, Any]:
        made.append(task.seconds)
        if overdue:
            raise LeaseOver
        return {"skipped": "the time for it was too short: give a larger --budget with --resume"}

    with closing(Journal(tmp_path, new=True)) as journal:
        for cap in (1000.0, 1.0, 1000.0):  # the second pays for nothing, and says no more than the first
            bench = bench_of(monkeypatch, journal, [asked], cap, answer)
            with suppress(LeaseOver):
                bench.measure()
            (row,) = bench.rows()
            assert row["skipped"] != TOO_LATE and "--resume" in row["skipped"]
    assert made[0] <= MOST_TIMES * asked.seconds < 900 < made[1] <= 1000


def test_a_point_that_is_not_resolved_keeps_its_row_where_a_second_try_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(task: Task) -> dict[str, Any]:
        asked.append(task)
        if len(asked) > 1:
            raise RuntimeError("a process died")
        return {"largest": 8, "resolved": False}

    point, asked = Point(devices=1, asked={"largest": True}, seconds=20.0, least_seconds=5.0), list[Task]()
    with closing(Journal(tmp_path, new=True)) as journal:
        for _ in range(2):
            bench = bench_of(monkeypatch, journal, [point], 1000.0, answer)
            bench.measure()
            (row,) = bench.rows()
            assert row["largest"] == 8
    assert len(asked) == 2


def test_tensorboard_has_the_figure_of_an_interval_and_no_losses_of_a_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"times": (1.5, 1.4, 1.6), "valid_loss": [3.0, 2.0, None], "parameters": 8}
    point = Point(devices=2, asked={"way": "it"}, seconds=20.0, least_seconds=5.0)
    with closing(Journal(tmp_path, new=True)) as journal:
        bench_of(monkeypatch, journal, [point], 1000.0, lambda task: row).measure()
    events = EventAccumulator(str(tmp_path / "tensorboard" / "scaling")).Reload()
    drawn = {tag: [(each.step, each.value) for each in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    shown = {name: drawn[f"it/{name}"] for name in row if f"it/{name}" in drawn}
    assert shown == {"times": [(2, 1.5)], "parameters": [(2, 8.0)]}


def test_what_followed_from_rows_and_does_not_any_more_keeps_its_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, again, then, now = (
        Point(devices=1, asked={"life": life}, seconds=20.0, least_seconds=5.0)
        for life in ("a", "b", "a" * 10, "b" * 10)
    )
    lost = [again]

    def answer(task: Task) -> dict[str, Any]:
        return {"skipped": "lost: go on with --resume"} if task.asked in [each.asked for each in lost] else {}

    def further(rows: Sequence[dict[str, Any]]) -> list[Point]:
        return [then if any("skipped" in row for row in rows) else now]

    with closing(Journal(tmp_path, new=True)) as journal:
        for lives in (first, again, then), (first, again, now, then):
            bench = bench_of(monkeypatch, journal, [first, again], 1000.0, answer)
            bench = replace(bench, experiment=replace(bench.experiment, further=further))
            bench.measure()
            assert [row["key"] for row in bench.rows()] == [point.key for point in lives]
            lost.clear()


def test_what_was_measured_on_other_numbers_of_devices_keeps_its_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Point(devices=1, asked={}, seconds=20.0, least_seconds=5.0)
    rows = [{"devices": 4}, {"devices": 2, "skipped": "too late"}, {"devices": 1, "old": True}]
    with closing(Journal(tmp_path, new=True)) as journal:
        bench = bench_of(monkeypatch, journal, [here], 1000.0, lambda task: {})
        bench.measure()
        for row in rows:
            value = json.dumps({"key": str(row), **row})
            journal.insert("rows", {"at": 0.0, "experiment": bench.experiment.name, "value": value})
        assert [row["key"] for row in bench.rows()] == [here.key, str(rows[0])]


@pytest.mark.parametrize(("cap", "measured"), [(1000.0, 3), (230.0, 1)])
def test_what_a_late_start_left_no_time_for_has_another_hold_where_the_cap_pays_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cap: float, measured: int
) -> None:
    points = [Point(devices=1, asked={"rows": rows}, seconds=40.0, least_seconds=30.0) for rows in (32, 64, 128)]
    starts, clock = [150.0, 1.0], Clock()

    def late() -> None:
        clock.now += starts.pop(0)

    def answer(task: Task) -> dict[str, Any]:
        clock.now += task.seconds
        return {}

    with closing(Journal(tmp_path, new=True)) as journal:
        bench = bench_of(monkeypatch, journal, points, cap, answer, late, clock)
        bench.measure()
        assert [row.get("skipped") for row in bench.rows()] == [None] * measured + [TOO_LATE] * (3 - measured)
        assert bench.accounting.ledger.spent <= cap


def test_who_measured_nothing_is_told_by_the_exit_code() -> None:
    measured, skipped = {"times": 1.0}, {"skipped": TOO_LATE}
    assert exit_code("done", [skipped, measured]) == 0 and exit_code("done", [skipped]) == exit_code("done", []) == 1
    assert exit_code("overdue: why", [measured]) == 1


def test_what_the_cap_ended_goes_on_with_a_larger_one_and_what_a_signal_ended_with_the_same() -> None:
    go_on = "python tune/experiment.py scaling --resume runs/X"
    assert remedy("overdue: why", go_on) == f"go on with a larger --budget: {go_on} --budget MORE"
    assert remedy("interrupted", go_on) == f"go on with: {go_on}"


def test_what_shows_rows_is_named_where_one_is_measured() -> None:
    measured, skipped = {"times": 1.0}, {"skipped": TOO_LATE}
    assert [*what_shows(Path("runs/X"), [])] == [*what_shows(Path("runs/X"), [skipped])] == []
    shown = [*what_shows(Path("runs/X"), [skipped, measured])]
    assert [line.partition(": ")[0] for line in shown] == ["draw it", "its tables for a report"]
