"""A segment of training repeats itself bit for bit, learns, and ends as it must."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from model.config import Config
from model.data.dataset import PairData, TextData
from model.training import checkpoint as checkpoints
from model.training import train as training
from model.training.learner import Learner
from model.training.time_budget import Segment
from model.training.train import train
from tune.reports import Report

SUBSET = 256
Run = Callable[..., list[Report]]
pytestmark = pytest.mark.usefixtures("eager")


def weights(path: str | None) -> dict[str, torch.Tensor]:
    assert path is not None
    return checkpoints.load_file(Path(path) / checkpoints.WEIGHTS)


@pytest.mark.parametrize("family", ["text", "pairs"])
@pytest.mark.parametrize("architecture", ["modern", "nanogpt"])
def test_resumed_equals_uninterrupted_bit_for_bit(
    family: str,
    architecture: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    run: Run,
) -> None:
    config, data = (request.getfixturevalue(name) for name in (f"small_{family}", f"{family.removesuffix('s')}_data"))
    config = replace(config, architecture=architecture)
    through = run(config, data, tmp_path / "a", steps=30)[-1]
    first = run(config, data, tmp_path / "b", steps=11)[-1]
    torch.manual_seed(99)
    resumed = run(config, data, tmp_path / "b", checkpoint=Path(str(first.checkpoint)), steps=30)[-1]
    left, right = weights(through.checkpoint), weights(resumed.checkpoint)
    assert left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)
    assert (through.steps, through.tokens, through.valid.loss) == (resumed.steps, resumed.tokens, resumed.valid.loss)
    assert through.ended == resumed.ended == "rung" and not through.whole


def test_resumed_in_the_middle_of_its_decay_equals_uninterrupted(
    small_text: Config,
    text_data: TextData,
    tmp_path: Path,
    clock: Any,
    run: Run,
) -> None:
    through = run(small_text, text_data, tmp_path / "a", clock, steps=40, final=True, device_seconds=1e6)[-1]
    clock.step = itertools.chain(itertools.repeat(0.1, 30), itertools.repeat(3.0, 6), itertools.repeat(0.1))
    training_ = train(
        small_text,
        text_data,
        Segment(device_seconds=1e6, steps=40, final=True),
        folder=tmp_path / "b",
        evaluation_tokens=SUBSET,
        clock=clock,
    )
    clock.now += training.CHECKPOINT_SECONDS - 10
    for report in training_:
        if report.steps >= 35:
            break
    training_.close()
    newest = checkpoints.latest(tmp_path / "b")
    assert newest is not None and 24 < checkpoints.load(newest).state["steps"] < 40
    resumed = run(small_text, text_data, tmp_path / "b", clock, newest, steps=40, final=True)[-1]
    left, right = weights(through.checkpoint), weights(resumed.checkpoint)
    assert all(torch.equal(left[name], right[name]) for name in left)
    assert resumed.test.loss == through.test.loss


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), 50.0])
def test_divergence_ends_a_trial_at_once(
    broken: float,
    small_text: Config,
    text_data: TextData,
    tmp_path: Path,
    clock: Any,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loss_of = Learner._backward

    def breaks(self: Learner, *part: Any) -> torch.Tensor:
        loss = loss_of(self, *part)
        return loss * 0 + broken if self.steps >= 30 else loss

    monkeypatch.setattr(Learner, "_backward", breaks)
    last = run(small_text, text_data, tmp_path, clock, steps=1000)[-1]
    assert last.ended == "diverged" and last.checkpoint is None and last.valid is None
    assert last.training_seconds <= 3.0 + 3 * training.YIELD_SECONDS


def test_a_loss_that_rises_once_is_no_divergence(
    small_text: Config,
    text_data: TextData,
    tmp_path: Path,
    clock: Any,
    monkeypatch: pytest.MonkeyPatch,
    run: Run,
) -> None:
    loss_of = Learner._backward

    def jumps(self: Learner, *part: Any) -> torch.Tensor:
        return loss_of(self, *part) + 100.0 * (self.steps == 35)

    monkeypatch.setattr(Learner, "_backward", jumps)
    assert run(small_text, text_data, tmp_path, clock, steps=100)[-1].ended == "rung"


def test_closing_early_leaves_only_whole_checkpoints(
    small_text: Config,
    text_data: TextData,
    tmp_path: Path,
    run: Run,
) -> None:
    first = run(small_text, text_data, tmp_path, steps=10)[-1]
    going = train(
        small_text,
        text_data,
        Segment(device_seconds=1e6),
        folder=tmp_path,
        checkpoint=Path(str(first.checkpoint)),
        evaluation_tokens=SUBSET,
    )
    next(going)
    going.close()
    assert [path.name for path in tmp_path.iterdir()] == [Path(str(first.checkpoint)).name]
    assert str(checkpoints.latest(tmp_path)) == first.checkpoint


def test_a_damaged_checkpoint_falls_back(small_text: Config, text_data: TextData, tmp_path: Path, run: Run) -> None:
    first = run(small_text, text_data, tmp_path, steps=10)[-1]
    second = run(small_text, text_data, tmp_path, checkpoint=Path(str(first.checkpoint)), steps=20)[-1]
    damaged = Path(str(second.checkpoint))
    (damaged / checkpoints.WEIGHTS).write_bytes(b"cut off")
    again = run(small_text, text_data, tmp_path, checkpoint=damaged, steps=20)[-1]
    assert (again.steps, again.valid.loss) == (20, second.valid.loss)
    for folder in tmp_path.iterdir():
        (folder / checkpoints.STATE).unlink()
    anew = run(small_text, text_data, tmp_path, checkpoint=damaged, steps=20)[-1]
    assert anew.valid.loss == second.valid.loss


def test_a_checkpoint_of_another_config_is_refused(
    small_text: Config,
    text_data: TextData,
    tmp_path: Path,
    run: Run,
) -> None:
    first = run(small_text, text_data, tmp_path, steps=2)[-1]
    with pytest.raises(ValueError, match="another configuration"):
        run(replace(small_text, layers=3), text_data, tmp_path, checkpoint=Path(str(first.checkpoint)), steps=4)


def test_a_compiler_that_fails_costs_nothing_but_time(
    small_text: Config,
    text_data: TextData,
    tmp_path: Path,
    clock: Any,
    monkeypatch: pytest.MonkeyPatch,
    run: Run,
) -> None:
    def fails(*_: object, **__: object) -> object:
        def call(*_: object) -> torch.Tensor:
            torch.rand(3)
            raise RuntimeError("no compiler")

        return call

    eager = run(small_text, text_data, tmp_path / "a", clock, steps=60)[-1]
    clock.compiles = True
    monkeypatch.setattr(torch, "compile", fails)
    monkeypatch.setattr(training, "COMPILE_REPAYS", {"cpu": 1.0})
    reports = run(small_text, text_data, tmp_path / "b", clock, steps=60)
    left, right = weights(eager.checkpoint), weights(reports[-1].checkpoint)
    assert all(torch.equal(left[name], right[name]) for name in left)
    assert sum(report.seconds["compile"] for report in reports) == pytest.approx(0.1)


def test_it_learns_both_families(
    small_text: Config,
    text_data: TextData,
    small_pairs: Config,
    pair_data: PairData,
    tmp_path: Path,
    run: Run,
) -> None:
    for config, data in ((small_text, text_data), (small_pairs, pair_data)):
        reports = run(config, data, tmp_path / config.family, steps=150, final=True)
        last = reports[-1]
        assert last.valid.loss < 0.6 * np.log(data.vocabulary)
        assert last.valid.loss == pytest.approx(last.test.loss, abs=0.3)
        assert last.memory_bytes >= 0 and last.parameters > 0 and last.tokens > 0


def test_told_to_stop_it_leaves_a_checkpoint(
    small_text: Config,
    text_data: TextData,
    tmp_path: Path,
    clock: Any,
) -> None:
    answers = iter([False, False, True])
    segment = Segment(device_seconds=1e6, steps=1000)
    *_, last = train(
        small_text,
        text_data,
        segment,
        folder=tmp_path,
        evaluation_tokens=SUBSET,
        clock=clock,
        stop=lambda: next(answers),
    )
    assert last.ended == "stopped" and last.steps == 2
    assert checkpoints.load(Path(str(last.checkpoint))).state["steps"] == last.steps


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_it_learns_in_small_precisions(
    precision: str,
    small_text: Config,
    text_data: TextData,
    tmp_path: Path,
    run: Run,
) -> None:
    last = run(replace(small_text, precision=precision), text_data, tmp_path, steps=60)[-1]
    assert last.ended == "rung" and last.valid.loss < 0.8 * np.log(text_data.vocabulary)
