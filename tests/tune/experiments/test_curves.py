"""Learning curves of the search's own mode: what a life has, that nothing which ends it early changes a loss, which
lives go on, and the table that comes of them; and the memory that a step holds.
"""

import dataclasses
import gc
import itertools
import json
import math
import shutil
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

import numpy as np
import pytest
import torch

from model.config import Config
from model.cost.estimates import STATE_BYTES
from model.cost.memory_estimate import most_bytes
from model.data.dataset import PairData
from model.training.learner import Learner
from model.training.time_budget import Segment
from model.training.train import train
from tests.soak.accounts import number
from tests.tune.experiments.this_process import ThisProcess, place_of, without_ray
from tune.backend.worker_group import Message, Task, TaskContext
from tune.curves.recorded import Table, load_table
from tune.devices import Devices
from tune.errors import UserError
from tune.experiments import curves, life_training, runner
from tune.experiments.base import ExperimentSettings, Point, Row
from tune.experiments.curves import CURVES, SHAPES, further, points, predicted_loss
from tune.experiments.life_training import last_report_before_decay, measured_at, step_bytes, train_life
from tune.reports import Report
from tune.search_space import PRECISIONS, Space, label

CPU = torch.device("cpu")
STEP_SECONDS = 0.05
ASKED = {"measure": "curve", "seconds": 0.6, "report_every": 0.1, "step_seconds": STEP_SECONDS}
"""6 reports of 2 steps; decays end after 2 (with the ends below) and after 6."""


Whole = tuple[Path, list[Message]]
"""A life's folder, and what was said of it."""
SMALL: dict[str, Any] = {"ENDS": (3.0, 9.0), "EVALUATION_TOKENS": 256, "step_bytes": lambda *_: 1000}


@pytest.fixture
def few(small: dict[str, tuple], eager: None) -> Iterator[dict[str, tuple]]:
    """Small data and lives."""
    with patch.multiple(life_training, **SMALL):
        yield small


def place(small: dict[str, tuple], folder: Path) -> TaskContext:
    config, data = small["text"]
    config = dataclasses.replace(config, dropout=0.1)
    return place_of(config, data, folder)


def row_of(words: Iterable[Message]) -> Row:
    *_, last = words
    assert last.row is not None
    return last.row


@pytest.fixture(scope="module")
def whole(small: dict[str, tuple], warm: None, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """A life that nothing cut short."""
    folder = tmp_path_factory.mktemp("whole")
    with patch.multiple(life_training, **SMALL):
        return folder, list(train_life(place(small, folder), ASKED))


def test_no_property_of_a_configuration_says_another() -> None:
    table = np.array([[math.log(d), math.log(layers), heads, dropout] for d, heads, layers, dropout in SHAPES])
    assert np.abs(np.corrcoef(table.T) - np.eye(4)).max() < 0.1
    sizes = sorted(d * d * layers for d, _, layers, _ in SHAPES)
    assert sizes[-1] / sizes[0] > 40 and max(high / low for low, high in itertools.pairwise(sizes)) <= 2
    space = Space(family="nanogpt", precisions=PRECISIONS)
    assert all(space.contains(dict(zip(curves.NAMES, shape, strict=True)) | {"precision": "bf16"}) for shape in SHAPES)


@pytest.mark.parametrize("ends", [[1], [1, 2], [10, 40, 120], [7, 29, 83, 290]])
@pytest.mark.parametrize("share", [0.4, 0.1, 1.0])
def test_losses_are_known_at_the_first_report_where_decays_begin_and_end_and_a_ratio_apart(ends, share) -> None:
    found = measured_at(ends, share)
    assert found[0] == 1 and found[-1] == ends[-1] and {*ends} <= {*found} and found == sorted(found)
    assert all(high <= max(low + 1, math.ceil(life_training.RATIO * low)) for low, high in itertools.pairwise(found))
    for end in ends:
        assert end - last_report_before_decay(end, share) >= share * end - 1e-6, "no decay begins late"
        assert last_report_before_decay(end, share) in {0, *found}


def test_a_life_that_is_cut_short_anywhere_goes_on_to_the_same_row(
    few: dict[str, tuple], whole: Whole, tmp_path: Path
) -> None:
    folder, said = whole
    assert not list(folder.glob("decay-*"))
    for words in range(1, len(said)):
        later = ASKED | {"step_seconds": words * STEP_SECONDS}
        life = train_life(place(few, tmp_path), later)
        list(itertools.islice(life, words))
        life.close()
    assert row_of(train_life(place(few, tmp_path), ASKED)) == row_of(said)


def test_its_losses_are_those_of_a_search(few: dict[str, tuple], whole: Whole, tmp_path: Path) -> None:
    at, row = place(few, tmp_path), row_of(whole[1])
    every = row["steps_per_report"]
    assert every == 2
    for reports, final, name in ((6, True, "decayed_loss"), (2, True, "decayed_loss"), (6, False, "valid_loss")):
        segment = Segment(device_seconds=600.0, steps=reports * every, final=final, whole=False)
        *_, report = train(at.config, at.data, segment, folder=tmp_path / name, evaluation_tokens=256)
        both = [each.loss for each in (report.valid, report.averaged) if each is not None]
        assert row["decayed_loss"][reports - 1] == min(both) or not final
        assert [row[each][reports - 1] for each in ("valid_loss", "averaged_loss")] == both or final
    assert row["tokens_per_report"] == round(report.tokens / 6) and row["parameters"] == report.parameters
    assert row["decayed_loss"].count(None) == 4 and None not in row["valid_loss"]


def test_after_a_decay_the_better_of_weights_and_average_counts(
    few: dict[str, tuple], whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def swapped(*args: Any, **named: Any) -> Iterator[Report]:
        for report in train(*args, **named):
            yield replace(report, valid=report.averaged, averaged=report.valid) if report.averaged else report

    monkeypatch.setattr(life_training, "train", swapped)
    swap = row_of(train_life(place(few, tmp_path), ASKED))
    assert swap["decayed_loss"] == row_of(whole[1])["decayed_loss"]


def test_a_longer_life_goes_on_where_the_shorter_ended(
    few: dict[str, tuple], whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long, short, steps = ASKED | {"seconds": 1.2}, row_of(whole[1]), list[int]()
    anew = row_of(train_life(place(few, tmp_path / "anew"), long))
    on = shutil.copytree(whole[0], tmp_path / "on")
    learn = Learner.step
    monkeypatch.setattr(Learner, "step", lambda self, rate: (steps.append(self.steps), learn(self, rate))[1])
    longer = row_of(train_life(place(few, on), long))
    assert min(steps) >= 6 * 2 and longer["valid_loss"][-1] == anew["valid_loss"][-1]
    assert longer["valid_loss"][:6] == short["valid_loss"] and longer["decayed_loss"][:6] == short["decayed_loss"]


def test_what_diverges_has_no_loss_from_there_on(
    few: dict[str, tuple], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn = Learner.step

    def breaks(learner: Any, factor: float) -> Any:
        step = learn(learner, factor)
        return dataclasses.replace(step, loss=step.loss * (math.nan if learner.steps > 7 else 1))

    monkeypatch.setattr(Learner, "step", breaks)
    row = row_of(train_life(place(few, tmp_path), ASKED))
    assert row["valid_loss"][3:] == [None] * 3 and None not in row["valid_loss"][:3]
    assert row["decayed_loss"][5] is None and row["decayed_loss"][1] is not None


def test_a_loss_is_of_the_report_that_it_stands_at(
    few: dict[str, tuple], whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at, short = place(few, tmp_path), [2, 7]  # steps after which the lease is over: of the rate's, of a decay's

    def cut(config: Config, data: Any, segment: Segment, **more: Any) -> Iterator[Report]:
        steps = short[segment.final] if short else segment.steps
        for report in train(config, data, dataclasses.replace(segment, steps=min(segment.steps, steps)), **more):
            yield report if report.steps == segment.steps else dataclasses.replace(report, ended="lease")

    monkeypatch.setattr(life_training, "train", cut)
    with pytest.raises(UserError, match="2 of 4 steps in the seconds that there were"):
        list(train_life(at, ASKED))
    short[0] = 100
    with pytest.raises(UserError, match="7 of 12 steps in the seconds that there were"):
        list(train_life(at, ASKED))
    short.clear()
    assert row_of(train_life(at, ASKED))["valid_loss"] == row_of(whole[1])["valid_loss"]


def test_without_a_step_time_or_seconds_nothing_is_lived(few: dict[str, tuple], tmp_path: Path) -> None:
    hasty = dataclasses.replace(place(few, tmp_path), ends_at=time.monotonic() + life_training.END_SECONDS)
    with pytest.raises(UserError, match="0 of 2 steps in the seconds that there were: go on with --resume"):
        list(train_life(hasty, ASKED))
    with pytest.raises(UserError, match="its step time was not measured"):
        list(train_life(hasty, {name: value for name, value in ASKED.items() if name != "step_seconds"}))


# Points and the table


HERE = Devices(kind="cpu", count=1, model="", precisions=("fp32", "bf16"), cores=1)


def settings(**more: Any) -> ExperimentSettings:
    return ExperimentSettings(**({"budget": "8h", "families": "nanogpt"} | more))


DECAYED = (10, 40, 120, 400, 1200)


def rows_of(found: list[Point]) -> list[Row]:
    """As their work leaves them: the larger model is the better the longer it is trained, and the slower."""
    rows = []
    for point in found:
        size = point.config["d_model"] ** 2 * point.config["layers"]
        row: Row = {"asked": point.asked, "config": dict(point.config), "key": point.key, "devices": 1}
        if point.asked["measure"] == "curve":
            count, best = round(point.asked["seconds"] / point.asked["report_every"]), 20 / math.log(size)
            reports = range(1, count + 1)
            losses = [best + size**0.5 / 50 / at**0.5 for at in reports]
            row |= {"parameters": size, "steps_per_report": 2, "tokens_per_report": 8, "valid_loss": losses}
            row |= {"decayed_loss": [losses[at - 1] - 0.1 if at in DECAYED else None for at in reports]}
            row |= {"decay_share": 0.4, "memory_mb": 1.0}
        else:
            row["step_seconds"] = size / 1e8 * point.asked["round"]
        rows.append(row)
    return rows


def test_all_lives_are_of_one_precision_and_come_after_their_step_times(known_prices: None) -> None:
    found = points(HERE, settings())
    assert {point.config["precision"] for point in found} == {"bf16"}
    assert {point.config["precision"] for point in points(HERE, settings(fix="precision=fp32"))} == {"fp32"}
    at = [place for place, point in enumerate(found) if point.asked["measure"] == "curve"]
    assert len(at) == len(SHAPES) and at[0] >= len(SHAPES)
    for first in at:
        known = CURVES.settings_for(found[first], rows_of(found[:first]))
        assert known == {"step_seconds": min(row["step_seconds"] for row in rows_of(found[: at[0]])
                                             if row["config"] == found[first].config)}  # fmt: skip
    short = points(HERE, settings(scale=0.01))
    assert [point.asked["seconds"] for point in short] == pytest.approx([p.asked["seconds"] / 100 for p in found])
    assert all(point.seconds > point.least_seconds > 0 for point in [*found, *short])


def test_five_go_on_the_best_and_those_that_will_be(known_prices: None) -> None:
    rows = rows_of(points(HERE, settings()))
    lived = [row for row in rows if "valid_loss" in row]
    more = further(rows)
    assert len(more) == curves.LONG and {point.asked["seconds"] for point in more} == {curves.LONG_LIFE}
    chosen = [label(point.config) for point in more]
    losses = [[(at, row["decayed_loss"][at - 1]) for at in DECAYED[:3]] for row in lived]
    now = min(range(len(lived)), key=lambda each: losses[each][-1][1])
    then = min(range(len(lived)), key=lambda each: predicted_loss(losses[each], 10))
    assert now != then and {label(lived[now]["config"]), label(lived[then]["config"])} <= {*chosen}


@pytest.mark.parametrize("power", [0.2, 0.5, 1.0])
def test_a_fall_that_levels_out_is_predicted_nearly(power: float) -> None:
    losses = [(at, 2 + at**-power) for at in (*DECAYED[:3], 1200)]
    assert losses[2][1] - predicted_loss(losses[:3], 10) == pytest.approx(losses[2][1] - losses[3][1], rel=0.3)
    assert predicted_loss([(10, 3.0), (100, 2.0)], 10) == pytest.approx(1.0) and predicted_loss([(10, 3.0)], 10) == 3.0


def test_the_table_has_the_longest_life_of_each_and_the_fastest_step_time(known_prices: None, tmp_path: Path) -> None:
    first = points(HERE, settings())
    rows = rows_of(first) + rows_of(further(rows_of(first)))
    (tmp_path / curves.TABLE).write_text(CURVES.files(rows)[curves.TABLE])
    table = load_table(tmp_path / curves.TABLE)
    assert isinstance(table, Table) and table.is_own_mode and len(table.curves) == len(SHAPES)
    assert sorted(len(curve.losses) for curve in table.curves) == [120] * 11 + [1200] * 5
    for curve in table.curves:
        assert curve.step_seconds == pytest.approx(curve.parameters / 1e8, rel=1e-5) and curve.memory_bytes == 1e6
    (drawn,) = CURVES.tables(rows)
    assert len(drawn.rows) == len(SHAPES) and all(len(row) == len(drawn.columns) for row in drawn.rows)
    assert CURVES.files(rows[: len(SHAPES)]) == {}


@pytest.mark.parametrize("step", [0.001, 0.5])
@pytest.mark.parametrize("lost", [None, 0, 1])
def test_a_decay_stands_under_the_time_that_is_nearest_to_its_own(step: float, lost: int | None) -> None:
    """Also where a step is longer than the shortest life, and where an earlier decay diverged."""
    scale = 0.01
    asked = {"measure": "curve", "seconds": scale * curves.LIFE, "report_every": scale * life_training.REPORT_SECONDS}
    life = life_training.Life(step_seconds=step, every=max(1, int(asked["report_every"] / step)), memory_bytes=1)
    ends = sorted({life.report_at(end) for end in life_training.ends_of(asked["seconds"], asked["report_every"])})
    taken = {at: at * life.every * step for at in ends}
    losses = {at: None if place == lost else taken[at] for place, at in enumerate(ends)}
    row: Row = {
        "asked": asked, "config": {"d_model": 32}, "parameters": 1, "steps_per_report": life.every,
        "valid_loss": [5.0] * ends[-1], "decayed_loss": [losses.get(at) for at in range(1, ends[-1] + 1)],
    }  # fmt: skip
    (drawn,) = CURVES.tables([{"config": row["config"], "step_seconds": step}, row])
    headed = {float(name.split()[-2]): cell for name, cell in zip(drawn.columns, drawn.rows[0], strict=True)
              if name.startswith("decayed")}  # fmt: skip
    assert sorted(headed.values()) == sorted(f"{loss:.4f}" for loss in losses.values() if loss is not None)
    for end, cell in headed.items():
        others = [scale * other for other in life_training.ends_of(curves.LIFE, life_training.REPORT_SECONDS)]
        assert end == min(others, key=lambda other: abs(math.log(other / float(cell))))


class Interrupted(ThisProcess):
    """Each life is interrupted once, as soon as there is a checkpoint of it."""

    lives: ClassVar[list[Any]] = []

    def hear(self, task: Task, message: Message) -> None:
        life = task.asked["measure"] == "curve" and task.changes | task.asked
        if life and life not in self.lives and list((self.setup.folder / task.trial).glob("step-*")):
            self.lives.append(life)
            raise KeyboardInterrupt("SIGTERM")


def test_a_study_that_is_interrupted_goes_on_and_its_table_is_whole(
    few: dict[str, tuple], known_prices: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two configurations, of which one lives on for twice as long."""
    for name, value in {"SHAPES": ((16, 4, 1, 0.0), (16, 4, 2, 0.1)), "LONG": 1, "LONG_LIFE": 2 * curves.LIFE}.items():
        monkeypatch.setattr(curves, name, value)
    steps = itertools.count(step=0.006)
    monkeypatch.setattr(life_training, "CLOCKS", {"cpu": lambda: next(steps)})
    monkeypatch.setattr(life_training, "RATIO", 4.0)
    without_ray(monkeypatch, Interrupted)
    (tmp_path / "text.txt").write_text("to be or not to be, that is the question. " * 1000)
    asked = {"budget": "3h", "devices": 1, "scale": 0.002, "fix": "precision=fp32", "set": "batch_tokens=256"}
    found, study = [], tmp_path / "study"
    for resumed in (None, study, study, study):
        more = asked | {"text_corpus": tmp_path / "text.txt", "out": study, "resume": resumed}
        found.append(runner.run_experiment(CURVES, settings(**more)))
    assert found == [128 + signal.SIGTERM] * 3 + [0]
    table = load_table(study / curves.TABLE)
    ends = sorted(sum(map(math.isfinite, curve.decayed)) for curve in table.curves)
    assert table.is_own_mode and ends[1] == ends[0] + 1 and min(curve.finite_reports for curve in table.curves) > 1
    rows = [json.loads(line) for line in (study / curves.TABLE).read_text().splitlines()]
    assert all(len(row["decayed_loss"]) == len(row["valid_loss"]) for row in rows)
    assert {row["tokens_per_report"] / row["steps_per_report"] for row in rows} == {256}
    assert number(study, "SELECT SUM(seconds) FROM charges") <= 3 * 3600


def test_only_what_is_alive_at_once_counts() -> None:
    def one_after_the_other() -> None:
        for _ in range(3):
            torch.ones(250_000)

    def together() -> list[torch.Tensor]:
        return [torch.ones(250_000) for _ in range(3)]

    assert 1_000_000 <= most_bytes(one_after_the_other, CPU) < 1_100_000
    assert 3_000_000 <= most_bytes(together, CPU) < 3_100_000


def test_what_another_training_left_to_be_freed_takes_nothing_off() -> None:
    left: list[object] = [torch.ones(1_000_000)]
    left.append(left)
    del left

    def run() -> torch.Tensor:
        gc.collect()
        return torch.ones(250_000)

    assert 1_000_000 <= most_bytes(run, CPU) < 1_100_000


def test_a_step_holds_the_state_at_least_and_the_same_each_time(small_pairs: Config, pair_data: PairData) -> None:
    parameters = Learner(small_pairs, pair_data, CPU).parameters
    dropped = replace(small_pairs, dropout=0.37)
    first, again = (step_bytes(dropped, pair_data, CPU) for _ in range(2))
    assert STATE_BYTES * parameters < first == again, "a mask that is made once counts as the first training's"
    larger = step_bytes(replace(small_pairs, batch_tokens=4 * small_pairs.batch_tokens), pair_data, CPU)
    assert larger > 1.5 * first
