"""The batch_size experiment: how it finds the largest batch, and what its tables make of rows."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from model.config import Config
from model.cost.probe import TOO_LATE, Probe
from model.data.dataset import TextData
from tests.batch_size_rows import EACH, FIXED, LIMIT, all_rows, batch, largest, outcome
from tests.model.conftest import prepared
from tests.tune.experiments.this_process import place_of
from tune.backend.worker_group import Message
from tune.devices import Devices
from tune.experiments import batch_size as its_work
from tune.experiments.base import ExperimentSettings
from tune.experiments.batch_size import (
    BATCH_SIZE,
    BATCHES,
    CPU_LIMIT,
    fitted,
    largest_rows,
    line,
    next_rows,
    points,
    work,
)

CONFIG = Config(family="nanogpt", d_model=16, heads=4, layers=2, context=16, batch_tokens=64)
LARGEST = {"largest": True, "share": 0.5, "limit": "2GB"}
HELD = (LIMIT - FIXED) // EACH


@pytest.fixture(scope="module")
def data() -> TextData:
    text = "".join(random.Random(0).choices("abcdefgh ", k=160_000))
    return prepared(text, text[:900])


@pytest.fixture
def do(data: TextData, tmp_path: Path) -> Callable[..., list[Message]]:
    def done(asked: dict[str, Any], seconds: float = 1e6, config: Config = CONFIG) -> list[Message]:
        return list(work(place_of(config, data, tmp_path / "t001", seconds), asked))

    return done


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of each batch that is tried, on a machine whose memory is known."""
    rows: list[int] = []

    def try_batch(order: Probe, data: TextData) -> dict[str, Any]:
        rows.append(order.config.batch_tokens // order.config.context)
        return outcome(rows[-1])

    monkeypatch.setattr(its_work, "try_batch", try_batch)
    return rows


def test_the_largest_batch_is_found_and_no_batch_tried_twice_but_to_time_it(do, tried):
    row = do(LARGEST)[-1].row
    assert row["largest"] <= HELD < row["fails"] <= 1.01 * row["largest"] + 1 and row["resolved"]
    assert tried[:4] == [32, 128, 512, 2048] and tried[-1] == row["largest"]
    assert len(set(tried)) == len(tried) - 1, "the last is timed"
    assert row["foretold_from"] == [32, 128, 512] and row["foretold"] == pytest.approx(HELD, rel=0.01)
    again = len(tried)
    assert do(LARGEST)[-1].row["largest"] == row["largest"]
    assert tried[again:] == [row["largest"]], "what is known was tried again"


def test_a_batch_at_the_edge_that_fits_once_stays_the_largest(do, monkeypatch):
    seen: set[int] = set()

    def once(order: Probe, data: TextData) -> dict[str, Any]:
        rows = order.config.batch_tokens // order.config.context
        found = {"ended": "out of memory", "free_bytes": None, "seconds": 3.0} if rows in seen else outcome(rows)
        seen.add(rows)
        return found

    monkeypatch.setattr(its_work, "try_batch", once)
    row = do(LARGEST)[-1].row
    assert [row["largest"], "fits"] in [each[:2] for each in row["tried"]] and row["timed"]["ended"] == "out of memory"


def test_nothing_begins_that_may_not_fit(do, tried):
    row = do(LARGEST, seconds=10.0)[-1].row
    assert tried == [] and row["largest"] == 0 and not row["resolved"]


def test_a_text_that_ends_before_memory_does_is_told(do, tried, data, monkeypatch):
    monkeypatch.setattr(its_work, "try_batch", lambda order, data: outcome(32) | {"memory_bytes": 10**8})
    row = do(LARGEST)[-1].row
    assert row["largest"] == row["epoch_rows"] == len(data.train) // CONFIG.context - 1 and row["fails"] is None
    assert "memory did not end: an epoch has no more rows" in BATCH_SIZE.tables([row | {"asked": LARGEST}])[-2].note
    with pytest.raises(ValueError, match=r"are more than the .* of an epoch: give a longer text"):
        do({"rows": 10**6, "share": 1.0})


def test_a_batch_that_had_too_little_time_is_told_by_what_helps(do, monkeypatch):
    monkeypatch.setattr(its_work, "try_batch", lambda order, data: {"ended": TOO_LATE})
    with pytest.raises(ValueError, match=r"^the time for it was too short: give a larger --budget with --resume$"):
        do({"rows": 32, "share": 1.0})


def test_a_batch_has_its_epoch_and_its_memory(do, tried):
    (said,) = do({"rows": 32, "share": 1.0, "limit": "500MB"})
    row = said.row
    assert tried == [32] and outcome(32).items() <= row.items() and "100% timed" in line(row)
    assert row["limit_bytes"] == 500_000_000 and row["paper_bytes"] > 0


def test_a_cpu_has_a_limit_unless_one_is_given_and_a_gpu_has_its_own():
    def limits(kind: str, **more: Any) -> set[str | None]:
        settings = ExperimentSettings(budget="1h", families="nanogpt", scale=0.5, **more)
        made = points(Devices(kind=kind, count=1, model="", precisions=("fp32",), cores=1), settings)
        assert [point.asked.get("rows") for point in made] == [*BATCHES, None]
        assert {point.asked["share"] for point in made} == {0.5}
        return {point.asked.get("limit") for point in made}

    assert limits("cpu") == {f"{CPU_LIMIT // 10**9}GB"} and limits("cuda") == {None}
    assert limits("cpu", memory_limit="500MB") == limits("cuda", memory_limit="500MB") == {"500MB"}


def test_tables_stand_beside_the_published_figures():
    made, *others = BATCH_SIZE.tables(all_rows())
    assert [cells[0] for cells in made.rows] == ["32", "128", "512", "950", "2,048", "8,192"]
    assert [cells[-1] for cells in made.rows] == ["14.2", "4.0", "2.4", "-", "0.8", "out of memory"]
    assert [cells[-2] for cells in made.rows] == ["fits"] * 4 + ["out of memory"] * 2
    assert len(others) == 2 and all(table.rows for table in others)
    assert [bool(table.rows) for table in BATCH_SIZE.tables([batch(32)])] == [True, False, False]
    assert all(line(row) for row in all_rows())


def test_what_is_predicted_stands_beside_what_was_found():
    _, found, _ = BATCH_SIZE.tables(all_rows())
    assert found.title == "The largest batch within 2GB" and found.note == "955 rows do not fit"
    assert found.rows == [["found", "950", "-"], ["predicted from 32, 128, 512 rows", "960", "+1.1%"],
                          ["by the search's rule", "800", "-15.8%"]]  # fmt: skip
    nothing = {"largest": 0, "limit_bytes": float("inf"), "resolved": False}
    assert {row[2] for row in BATCH_SIZE.tables([largest() | nothing])[-2].rows} == {"-"}


@pytest.mark.parametrize("held", [1, 31, 32, 2047, 7000])
def test_the_largest_batch_is_found_to_a_hundredth(held):
    fits, fails, tried = 0, None, 0
    while (rows := next_rows(fits, fails, 10_000, 32)) is not None:
        fits, fails, tried = (rows, fails, tried + 1) if rows <= held else (fits, rows, tried + 1)
    assert fits <= held < fails and fails - fits <= max(1, fits / 100) and tried < 20


def test_where_nothing_fits_and_where_everything_does():
    assert next_rows(0, 1, 100, 32) is None
    assert [next_rows(fits, None, 100, 32) for fits in (0, 32, 100)] == [32, 100, None]


def test_a_line_through_small_batches_predicts_the_largest():
    def estimate(rows):
        return 1000 + 10 * rows

    measured = {rows: 500 + 1.25 * estimate(rows) for rows in (32, 128)}
    assert largest_rows(fitted(measured, estimate), 500 + 1.25 * estimate(900), 10**6) == 900
    assert largest_rows(fitted({32: 2 * estimate(32)}, estimate), 2 * estimate(50), 10**6) == 50
    assert largest_rows(estimate, 999, 10**6) == 0 and largest_rows(estimate, 1e12, 77) == 77


@pytest.mark.parametrize("measured", [[32], [32, 128, 512]])
def test_bytes_that_no_64_bit_integer_holds_the_square_of_predict_as_many_rows(measured):
    def estimate(rows):
        return 10**7 + 3 * 10**6 * rows

    predicted = fitted({rows: 2 * estimate(rows) for rows in measured}, estimate)
    taken = [predicted(rows) for rows in (1, 100, 10**4, 2**24)]
    assert taken == pytest.approx([2 * estimate(rows) for rows in (1, 100, 10**4, 2**24)])
    assert largest_rows(predicted, 2 * estimate(103) + 1, 2**24) == 103
