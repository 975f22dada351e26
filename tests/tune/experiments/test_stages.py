"""The stages of a training: they add up to its time, and watching them changes nothing."""

import itertools
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from model.config import Config, build_model, pad_of
from model.data.dataset import TextData
from model.training.learner import Learner
from model.training.time_budget import Segment
from model.training.train import train
from tests.methods_rows import disturbed_rows, stage_rows
from tests.tune.experiments.this_process import place_of
from tune.devices import Devices
from tune.experiments.base import ExperimentSettings
from tune.experiments.stages import (
    EVALUATION_EVERY,
    PEAK_RATE,
    STAGES,
    StageClock,
    StagedLearner,
    UpstreamTraining,
    line,
    points,
    tables,
    tell_stages,
    upstream_rate,
    work,
)

CPU = torch.device("cpu")
SETTINGS = ExperimentSettings(budget="1h", families="nanogpt", scale=0.06)


def test_upstream_goes_first_and_each_way_takes_as_many_steps(known_prices: None) -> None:
    for kind, precisions, before in (("cpu", ("fp32",), "fp32"), ("cuda", ("fp32", "tf32", "bf16"), "bf16")):
        found = points(Devices(kind=kind, count=1, model="", precisions=precisions, cores=1), SETTINGS)
        assert [point.asked["way"] for point in found] == ["before", "after", "after"][: len(precisions) + 1]
        assert found[0].config["precision"] == before and {point.asked["steps"] for point in found} == {60}


@pytest.mark.parametrize("way", ["before", "after"])
def test_either_way_takes_its_steps_and_has_its_stages(
    way: str, small_text: Config, text_data: TextData, tmp_path: Path, warm: None
):
    of = small_text, text_data, tmp_path
    *_, last = work(place_of(*of), {"way": way, "steps": 4})
    row = {"asked": {"way": way}, "config": {"precision": "fp32"}} | last.row
    assert row["steps"] == 4 and min(row["stages"].values()) > 0 and line(row)
    with pytest.raises(ValueError, match="of 50 steps were done in time: give a larger --budget with --resume"):
        list(work(place_of(*of, 0.0), {"way": way, "steps": 50}))


def test_the_table_beside_the_report_by_hand():
    (table,) = tables(stage_rows())
    shares = {cells[0]: cells for cells in table.rows}
    assert shares["data"] == ["data", "1.00", "4.8%", "0.50", "4.8%", "0.25", "4.8%", "73.76", "30.8%"]
    assert shares["optimizer"][-2:] == ["-", "-"] and shares["all"][1::2] == ["21.00", "10.50", "5.25", "239.81"]
    assert tables([]) == []


def test_of_several_seeds_the_stages_add_up_to_what_a_training_took():
    (table,) = tables(disturbed_rows())
    seconds = {cells[0]: float(cells[1]) for cells in table.rows}
    assert len(table.columns) == 5 and seconds.pop("all") == 11.0 == pytest.approx(sum(seconds.values()), abs=0.03)


@pytest.fixture
def config(small_text: Config, warm: None) -> Config:
    return replace(small_text, architecture="nanogpt", dropout=0.0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> StageClock:
    """Begun at 0 by a clock that moves by a second each time that it is read."""
    readings = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(readings)))
    clock = StageClock(CPU)
    clock.enter("rest")
    return clock


def check(clock: StageClock) -> None:
    """They add up, and each is a part that a training has."""
    stages = clock.seconds()
    assert sum(stages.values()) == time.perf_counter() - 1
    assert list(stages) == list(STAGES) and min(stages.values()) > 0


def test_stages_of_a_segment_add_up_to_its_time(
    config: Config, text_data: TextData, tmp_path: Path, clock: StageClock
) -> None:
    make, segment = partial(StagedLearner, clock=clock), Segment(device_seconds=1e6, steps=12)
    assert list(train(config, text_data, segment, folder=tmp_path, evaluation_tokens=256, make=make))
    check(clock)


def test_stages_of_upstreams_loop_add_up_to_its_time(
    config: Config, text_data: TextData, tmp_path: Path, clock: StageClock
) -> None:
    model = tell_stages(build_model(config, vocabulary=text_data.vocabulary, pad=pad_of(text_data)), clock)
    losses = list(UpstreamTraining(model, config, text_data, CPU, tmp_path, clock.enter).steps(200))
    check(clock)
    assert np.mean(losses[-20:]) < 0.8 * np.mean(losses[:20])


def test_a_watched_learner_learns_the_same(config: Config, text_data: TextData) -> None:
    plain, watched = Learner(config, text_data, CPU, 2), StagedLearner(config, text_data, CPU, 2, clock=StageClock(CPU))
    for _ in range(2):
        assert torch.equal(plain.step(1.0).loss, watched.step(1.0).loss)


def test_a_stage_lasts_until_the_next_and_may_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([1.0, 2.0, 5.0, 6.0, 10.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(moments))
    clock = StageClock(CPU)
    for stage in ("data", "forward", "data", "evaluation"):
        clock.enter(stage)
    found = clock.seconds()
    assert (found["data"], found["forward"], found["evaluation"], sum(found.values())) == (2.0, 3.0, 4.0, 9.0)


def test_upstreams_batches_are_windows_and_what_follows(config: Config, text_data: TextData, tmp_path: Path) -> None:
    training = UpstreamTraining(torch.nn.Linear(1, 1), config, text_data, CPU, tmp_path)
    tokens, targets = training.batch("valid")
    assert tokens.shape == targets.shape == (8, 16)
    text = text_data.valid.astype(np.uint16).tobytes()
    for window, after in zip(tokens.numpy(), targets.numpy(), strict=True):
        assert np.array_equal(window[1:], after[:-1])
        assert np.append(window, after[-1]).astype(np.uint16).tobytes() in text


def test_upstreams_rate_warms_up_and_falls_to_a_tenth() -> None:
    rates = [upstream_rate(step, 2_000) for step in range(2_000)]
    assert max(rates) == rates[100] == PEAK_RATE and rates[-1] == pytest.approx(PEAK_RATE / 10, rel=1e-3)
    assert rates[:101] == sorted(rates[:101]) and rates[100:] == sorted(rates[100:], reverse=True)
    assert EVALUATION_EVERY < 2_000
