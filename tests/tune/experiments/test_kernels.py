"""Kernels as Ray tasks: no two at a time, one GPU at most, and none outlives its time; and a study of them: its cap
holds, what was paid for is kept as data, and it ends in order.
"""

import json
import math
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from kernels import benchmark
from kernels.benchmark import KERNELS
from kernels.kernel import THREADS
from kernels.settings import Settings
from tests.conftest import quick_timing
from tune.errors import UserError
from tune.experiments import kernels as study_of_kernels
from tune.experiments.kernels import (
    COLUMNS,
    ENDING_SECONDS,
    Cluster,
    OverdueError,
    Study,
    check_first,
    expected,
    in_study,
    open_study,
    rows_of,
    run,
)
from tune.store import journal

NAMES = ("scalar_add", "hypotenuse_scalar", "grid_stride_sum")


class Virtual:
    """A cluster where tasks take no time but the seconds they are said to."""

    def __init__(self, *, gpus: int = 0, takes: float = 5.0, rows: Callable[[str], list[benchmark.Row]]) -> None:
        self.gpus, self.takes, self.rows, self.now = gpus, takes, rows, 0.0
        self.ran: list[str] = []

    def run(self, function: Any, *arguments: Any, on_gpu: bool, seconds: float | None = None, **options: Any) -> Any:
        name = arguments[0] if arguments else "peaks"
        self.ran.append(name)
        if seconds is not None and self.takes > seconds:
            self.now += seconds + 0.8 * ENDING_SECONDS
            raise OverdueError
        self.now += self.takes
        return self.rows(name)


@pytest.fixture(scope="module")
def measured() -> Callable[[str], list[benchmark.Row]]:
    """Rows as they are, of few implementations and next to no time."""
    with pytest.MonkeyPatch.context() as patch:
        quick_timing(patch)
        found = {name: benchmark.measure(name, (100,), ("python", "numpy", "cuda", "cuda-shared"), 0) for name in NAMES}
    return lambda name: found[name]


@pytest.fixture(autouse=True)
def without_peaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_of_kernels, "PEAKS_SECONDS", math.inf)


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., Study]]:
    with ExitStack() as all_begun:

        def new(up: Virtual, budget: float, **settings: Any) -> Study:
            asked = Settings(kernels=NAMES, sizes=(100,), budget=budget, out=tmp_path / "study", **settings)
            (tmp_path / "study").mkdir()
            return all_begun.enter_context(open_study(cast(Any, up), asked, lambda: up.now))

        yield new


def charged(of: Study) -> float:
    return float(of.accounting.journal.rows("SELECT TOTAL(seconds) AS seconds FROM charges")[0]["seconds"])


def test_rows_are_in_the_journal_as_they_were_shown(tmp_path: Path, measured: Any) -> None:
    up = Virtual(rows=measured)
    with open_study(
        cast(Any, up), Settings(kernels=NAMES, sizes=(100,), budget=1000.0, out=tmp_path), lambda: up.now
    ) as made:
        shown = [row for rows in made.rows() for row in rows]
    with journal.Journal(tmp_path, new=False) as again:  # which refuses tables and values that are not ours
        kept = again.rows("SELECT * FROM kernels ORDER BY row")
    assert [(row["kernel"], row["implementation"]) for row in kept] == [
        (row["kernel"], row["implementation"]) for row in shown
    ]
    for row, of in zip(kept, shown, strict=True):
        assert {name: row[name] for name in COLUMNS} == {name: of.get(name) for name in COLUMNS}
        assert json.loads(row["values_seconds"]) == of.get("values_seconds", [])
    closeness = {(row["kernel"], row["implementation"]): row["correct"] for row in kept}
    assert closeness["scalar_add", "python"] == "exact" and closeness["hypotenuse_scalar", "python"] == "close"
    assert closeness["scalar_add", "cuda"] is None


def test_every_core_is_charged_where_there_is_no_gpu_else_the_gpu_and_for_what_needs_it(
    begin: Callable[..., Study], measured: Any, tmp_path: Path
) -> None:
    made = begin(Virtual(rows=measured), 1000.0)
    list(made.rows())
    assert charged(made) == made.accounting.ledger.spent == 3 * 5.0 * THREADS
    assert all(row["closed"] is not None for row in made.accounting.journal.rows("SELECT * FROM slots"))
    leases = made.accounting.journal.rows("SELECT trial, TOTAL(charged) AS charged FROM leases GROUP BY trial")
    assert {row["trial"]: row["charged"] for row in leases} == dict.fromkeys(NAMES, 5.0 * THREADS)
    (tmp_path / "study").rename(tmp_path / "before")
    made = begin(Virtual(rows=measured, gpus=1), 1000.0)
    list(made.rows())
    assert charged(made) == made.accounting.ledger.spent == 2 * 5.0  # hypotenuse_scalar has no form on a GPU


@pytest.mark.parametrize(("budget", "takes"), [(60.0, 0.5), (75.0, 14.0), (100.0, 14.0), (60.0, 1e9), (200.0, 1e9)])
def test_the_cap_holds_and_what_was_not_run_is_said(
    begin: Callable[..., Study], measured: Any, capsys: pytest.CaptureFixture[str], budget: float, takes: float
) -> None:
    up = Virtual(rows=measured, takes=takes)
    made = begin(up, budget)
    list(made.rows())
    assert charged(made) == pytest.approx(made.accounting.ledger.spent)
    assert 0 < made.accounting.ledger.spent <= budget
    not_run = [name for name in NAMES if name not in up.ran]
    said = capsys.readouterr().err
    assert all(name in said.split("not run: ")[1] for name in not_run)
    left_out = made.accounting.journal.rows("SELECT reason FROM decisions WHERE action = 'not run'")
    assert [row["reason"].split(":")[0] for row in left_out] == not_run
    assert not_run or budget > 60.0 or takes < 1.0


def test_a_task_that_takes_longer_leaves_the_others_what_they_are_expected_to_take(
    begin: Callable[..., Study], measured: Any
) -> None:
    up = Virtual(rows=measured, takes=1e9)
    price = sum(expected(Settings(kernels=NAMES, sizes=(100,)), name) for name in NAMES)
    list(begin(up, THREADS * 1.1 * (price + 3 * 2 * ENDING_SECONDS)).rows())
    assert up.ran == [*NAMES]


def test_a_reservation_is_written_before_the_task_runs(begin: Callable[..., Study], measured: Any) -> None:
    up = Virtual(rows=measured)
    made = begin(up, 1000.0)

    def rows(name: str) -> list[benchmark.Row]:
        assert made.accounting.journal.rows(
            "SELECT * FROM decisions WHERE action = 'run' AND reason LIKE ?", f"{name}:%"
        )
        assert made.accounting.journal.rows("SELECT * FROM slots WHERE closed IS NULL")
        assert made.accounting.ledger.reserved >= THREADS * expected(made.settings, name)
        return list(measured(name))

    up.rows = rows
    assert len(list(made.rows())) == 3


def test_what_a_task_measured_before_its_lease_ended_it_is_kept(begin: Callable[..., Study], measured: Any) -> None:
    """Also where it is ended while it writes."""

    def cut_short(function: Any, name: str, *arguments: Any, **options: Any) -> None:
        first, second, *_ = (json.dumps(row) for row in measured(name))
        arguments[-1].write_text(f"{first}\n{second[:40]}")
        raise OverdueError

    up: Any = Virtual(rows=measured)
    up.run = cut_short
    made = begin(up, 1000.0)
    assert json.dumps([*made.rows()]) == json.dumps([measured(name)[:1] for name in NAMES])
    kept = made.accounting.journal.rows("SELECT kernel FROM kernels")
    assert [row["kernel"] for row in kept] == [*NAMES] and not [*made.settings.out.glob("*.jsonl")]


def test_what_broke_is_charged_too(begin: Callable[..., Study]) -> None:
    def breaks(name: str) -> list[benchmark.Row]:
        raise RuntimeError

    made = begin(Virtual(rows=breaks), 1000.0)
    with pytest.raises(RuntimeError):
        list(made.rows())
    assert charged(made) == made.accounting.ledger.spent == 5.0 * THREADS
    assert made.accounting.ledger.reserved == 0
    assert [row["state"] for row in made.accounting.journal.rows("SELECT state FROM trials")] == ["failed"]


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    def full(name: str) -> list[benchmark.Row]:
        raise sqlite3.OperationalError("database or disk is full")

    asked = Settings(kernels=NAMES, sizes=(100,), budget=1000.0, out=tmp_path / "study")
    with pytest.raises(UserError, match=r"^--out: journal\.db: database or disk is full: .* with another --out"):
        list(in_study(cast(Any, Virtual(rows=full)), asked))


def test_a_budget_below_the_first_kernel_is_refused_with_one_that_pays_for_it(
    begin: Callable[..., Study], measured: Any
) -> None:
    up = Virtual(rows=measured)
    with pytest.raises(UserError, match=r"^--budget: '5s' does not pay for scalar_add: write at least \d+s") as refused:
        check_first(Settings(kernels=NAMES, sizes=(100,), budget=5.0), cast(Any, up))
    made = begin(up, float(str(refused.value).split("at least ")[1].split("s")[0]))
    check_first(made.settings, cast(Any, up))
    next(made.rows())


def test_nothing_is_leased_for_a_kernel_that_has_none_of_the_implementations_asked_for(
    measured: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    up = Virtual(rows=measured)
    monkeypatch.setattr(study_of_kernels, "cluster", lambda: nullcontext(up))
    which = "cuda", "cuda-shared"
    asked = Settings(kernels=NAMES, implementations=which, sizes=(100,), budget=1000.0, out=tmp_path / "study")
    run(asked)
    assert up.ran == ["scalar_add", "grid_stride_sum"], "hypotenuse_scalar has no form on a GPU"


def test_more_sizes_and_more_implementations_cost_more_and_every_kernel_has_a_price() -> None:
    few = Settings(kernels=NAMES, sizes=(100,), implementations=("numpy",))
    more = Settings(kernels=NAMES, sizes=(100, 1000), implementations=("numpy",))
    assert expected(few, "grid_stride_sum") < expected(more, "grid_stride_sum")
    assert expected(few, "scalar_add") == expected(more, "scalar_add")
    assert expected(more, "grid_stride_sum") < expected(Settings(kernels=NAMES, sizes=(100, 1000)), "grid_stride_sum")
    asked = Settings(kernels=tuple(KERNELS), sizes=(100,))
    assert all(0 < expected(asked, name) < 60 for name in KERNELS)


def test_peaks_that_were_measured_are_paid_for_and_kept_in_the_journal(
    begin: Callable[..., Study], measured: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    peaks = {"bytes_per_second": {1: 1e10}, "flops_per_second": {"fp32": {1: 1e11}}}
    monkeypatch.setattr(study_of_kernels, "PEAKS_SECONDS", 15.0)
    up = Virtual(rows=lambda name: cast(Any, {"CPU": peaks}) if name == "peaks" else measured(name))
    made = begin(up, 1000.0)
    list(made.rows())
    assert up.ran == ["peaks", *NAMES] and charged(made) == 4 * 5.0 * THREADS
    assert made.accounting.journal.facts()["peaks"] == {
        "CPU": {"bytes_per_second": {"1": 1e10}, "flops_per_second": {"fp32": {"1": 1e11}}}
    }


@pytest.mark.parametrize("takes", [1.0, 1e9])
def test_peaks_are_left_out_rather_than_a_kernel(
    begin: Callable[..., Study], measured: Any, monkeypatch: pytest.MonkeyPatch, takes: float
) -> None:
    """However long they would take."""
    monkeypatch.setattr(study_of_kernels, "PEAKS_SECONDS", 15.0)
    up = Virtual(rows=lambda name: cast(Any, None) if name == "peaks" else measured(name))
    made = begin(up, 120.0)
    measure = up.run

    def run(*arguments: Any, **named: Any) -> Any:
        up.takes = takes if arguments[0] is benchmark.measure_peaks else 5.0
        return measure(*arguments, **named)

    monkeypatch.setattr(up, "run", run)
    list(made.rows())
    assert [name for name in up.ran if name != "peaks"] == [*NAMES]


def test_tensorboard_has_what_is_stable_and_no_more(begin: Callable[..., Study], measured: Any) -> None:
    def rows(name: str) -> list[benchmark.Row]:
        return [row | ({"unstable": True} if row["implementation"] == "numpy" else {}) for row in measured(name)]

    made = begin(Virtual(rows=rows), 1000.0)
    shown = [row for found in made.rows() for row in found]
    board = made.settings.out / "tensorboard"
    assert [path.name for path in board.iterdir()] == ["python"]
    events = EventAccumulator(str(board / "python")).Reload()
    (scalar,) = events.Scalars("grid_stride_sum/median_seconds")
    (row,) = [row for row in shown if (row["kernel"], row["implementation"]) == ("grid_stride_sum", "python")]
    assert scalar.step == 100 and scalar.value == pytest.approx(row["median_seconds"])


SETTINGS = Settings(kernels=("copy", "hypotenuse_scalar"), sizes=(10,))


class OverTimeError(Exception):
    """Ray's."""


def cluster_of(said: dict[str, Any], get: Callable[..., Any] = lambda waiting, timeout: [waiting]) -> Cluster:
    def remote(**resources: Any) -> Callable[..., Any]:
        said.setdefault("resources", []).append(resources)
        return lambda task: SimpleNamespace(remote=lambda ends, function, *arguments: arguments)

    def cancel(waiting: Any, force: bool) -> None:
        said["cancelled"] = waiting, force

    exceptions = SimpleNamespace(**dict.fromkeys(("GetTimeoutError", "RayError", "WorkerCrashedError"), OverTimeError))
    ray = SimpleNamespace(remote=remote, get=get, cancel=cancel, exceptions=exceptions)
    return Cluster(ray=cast(Any, ray), gpus=1)


def test_a_task_takes_the_whole_node_and_one_gpu_where_it_has_use_for_it() -> None:
    said: dict[str, Any] = {}
    cluster = cluster_of(said)
    rows = cast(Any, [rows_of(cluster, SETTINGS, name) for name in SETTINGS.kernels])
    assert [row[0] for (row,) in rows] == ["copy", "hypotenuse_scalar"]
    assert [each["num_gpus"] for each in said["resources"]] == [1, 0]
    assert len({each["num_cpus"] for each in said["resources"]}) == 1


def test_a_task_that_outlives_its_time_is_ended() -> None:
    def get(waiting: Any, timeout: float) -> Any:
        raise OverTimeError

    said: dict[str, Any] = {}
    with pytest.raises(OverdueError):
        cluster_of(said, get).run(print, "what", on_gpu=False, seconds=1.0)
    assert said["cancelled"] == (("what",), True)
