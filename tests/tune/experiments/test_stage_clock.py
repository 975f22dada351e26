"""The stages of a training: they add up to its time, and watching them changes nothing."""

import itertools
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from model.config import Config
from model.data.dataset import TextData
from model.training.learner import Learner
from model.training.time_budget import Segment
from model.training.train import train
from tune.experiments.stages import (
    EVALUATION_EVERY,
    PEAK_RATE,
    STAGES,
    StageClock,
    StagedLearner,
    UpstreamTraining,
    upstream_rate,
)

CPU = torch.device("cpu")


@pytest.fixture
def config(small_text: Config, warm: None) -> Config:
    return replace(small_text, architecture="nanogpt", dropout=0.0)


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A clock that moves by a second each time that it is read."""
    readings = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(readings)))
    return readings


def check(clock: StageClock, began: float) -> None:
    """They add up, and each is a part that a training has."""
    stages = clock.seconds()
    assert sum(stages.values()) == time.perf_counter() - 1 - began
    assert list(stages) == list(STAGES) and min(stages.values()) > 0


def test_stages_of_a_segment_add_up_to_its_time(
    config: Config, text_data: TextData, tmp_path: Path, readings: Iterator[int]
) -> None:
    clock = StageClock(CPU)
    clock.enter("rest")
    began = time.perf_counter() - 1
    make, segment = partial(StagedLearner, clock=clock), Segment(device_seconds=1e6, steps=12)
    assert list(train(config, text_data, segment, folder=tmp_path, evaluation_tokens=256, make=make))
    check(clock, began)


def test_stages_of_upstreams_loop_add_up_to_its_time(
    config: Config, text_data: TextData, tmp_path: Path, readings: Iterator[int]
) -> None:
    clock = StageClock(CPU)
    clock.enter("rest")
    began = time.perf_counter() - 1
    losses = list(UpstreamTraining(config, text_data, CPU, tmp_path, clock).steps(200))
    check(clock, began)
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
    training = UpstreamTraining(config, text_data, CPU, tmp_path, StageClock(CPU))
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
