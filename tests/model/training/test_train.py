"""A segment of training repeats itself bit for bit, learns, and ends as it must."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from model.config import OLD_DEFAULTS, Config
from model.data.dataset import TextData
from model.training import checkpoint as checkpoints
from model.training import monitor
from model.training import train as training
from model.training.learner import Step
from model.training.monitor import RecentSteps
from model.training.time_budget import WARM
from tests.model.conftest import SUBSET, Reports, Script, same_weights
from tune.errors import UserError
from tune.reports import Evaluation, Report

Begin, Life = Callable[..., Reports], Callable[..., list[Report]]
pytestmark = pytest.mark.usefixtures("eager")


@pytest.mark.parametrize(
    ("family", "changes"),
    [("text", {}), ("text", {"architecture": "nanogpt"}), ("text", {"optimizer": "sgd"}), ("pairs", {})],
    ids=str,
)
def test_resumed_equals_uninterrupted_bit_for_bit(
    family: str, changes: dict[str, str], small: dict[str, tuple], tmp_path: Path, run: Life
) -> None:
    config, data = small[family]
    config = replace(config, **changes)
    through = run(config, data, tmp_path / "a", steps=12)[-1]
    first = run(config, data, tmp_path / "b", steps=5)[-1]
    torch.manual_seed(99)
    resumed = run(config, data, tmp_path / "b", checkpoint=first.checkpoint, steps=12)[-1]
    assert same_weights(through, resumed)
    assert (through.steps, through.tokens, through.valid.loss) == (resumed.steps, resumed.tokens, resumed.valid.loss)
    assert through.ended == resumed.ended == "rung" and not through.whole


def test_resumed_in_the_middle_of_its_decay_equals_uninterrupted(
    tmp_path: Path, clock: Script, begin: Begin, life: Life
) -> None:
    through = life(folder=tmp_path / "a", steps=20, final=True)[-1]
    clock.step = itertools.chain(itertools.repeat(0.1, 14), itertools.repeat(3.0, 4), itertools.repeat(0.1))
    going = begin(folder=tmp_path / "b", steps=20, final=True)
    clock.now += training.CHECKPOINT_SECONDS - 5
    for report in going:
        if report.steps >= 17:
            break
    going.close()
    newest = checkpoints.latest(tmp_path / "b")
    assert newest is not None and 12 < checkpoints.load(newest).state["steps"] < 20
    resumed = life(folder=tmp_path / "b", checkpoint=newest, steps=20, final=True)[-1]
    assert same_weights(through, resumed) and resumed.test.loss == through.test.loss
    assert checkpoints.load(before := tmp_path / "b" / checkpoints.BEFORE_DECAY).state["steps"] == 12
    checkpoints.forget_decay(tmp_path / "b")
    assert checkpoints.latest(tmp_path / "b") == before


@pytest.mark.parametrize("broken", [math.nan, math.inf, 50.0])
def test_divergence_ends_a_trial_at_once(broken: float, clock: Script, life: Life) -> None:
    clock.learns, clock.loss = False, lambda step: broken if step > 30 else 1.0
    last = life(steps=1000)[-1]
    assert last.ended == "diverged" and last.checkpoint is None and last.valid is None
    assert last.training_seconds <= 3.0 + 3 * training.YIELD_SECONDS


def test_a_validation_loss_that_is_not_finite_is_divergence_too(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Evaluation(loss=math.nan, tokens=SUBSET, seconds=0.01)
    monkeypatch.setattr(monitor, "evaluate", lambda *_, **__: found)
    last = life(steps=20)[-1]
    assert (last.steps, last.ended, last.checkpoint) == (20, "diverged", None)


def test_a_loss_that_rises_now_and_then_is_no_divergence(clock: Script, life: Life) -> None:
    clock.learns, clock.loss = False, lambda step: 100.0 if step in (35, 70) else 1.0
    assert life(steps=100)[-1].ended == "rung"


def test_a_trial_that_goes_on_diverges_by_the_first_loss_of_its_life(clock: Script, life: Life) -> None:
    clock.learns, clock.loss = False, lambda step: 9.0 if step <= 10 else 2.0 if step <= 30 else 8.0
    assert life(checkpoint=life(steps=20)[-1].checkpoint, steps=100)[-1].ended == "rung"


def look(recent: RecentSteps, *losses: float, seconds: float = 1.0) -> RecentSteps:
    """At steps of ten tokens each."""
    for loss in losses:
        recent.add(Step(loss=torch.tensor(loss), gradient_norm=torch.tensor(2.0), tokens=10))
    recent.add_seconds(seconds)
    recent.read()
    return recent


def test_a_look_gives_the_mean_of_the_losses_since_the_last_one_and_their_speed() -> None:
    recent = look(RecentSteps(), 5.0, 3.0, seconds=4.0)
    assert (recent.train_loss, recent.gradient_norm, recent.tokens_per_second) == (4.0, 2.0, 5.0)
    recent.read()
    assert (recent.train_loss, recent.tokens_per_second) == (4.0, 5.0), "without steps nothing changes"
    recent.add_seconds(3.0)
    recent.add(Step(loss=torch.tensor(1.0), gradient_norm=torch.tensor(2.0), tokens=1000))
    recent.forget_speed()
    assert look(recent, 1.0).tokens_per_second == 10.0
    assert recent.train_loss == 1.0 and recent.first_loss == 4.0


def test_closing_early_leaves_only_whole_checkpoints(tmp_path: Path, clock: Script, begin: Begin, life: Life) -> None:
    clock.learns = False
    first = Path(str(life(steps=10)[-1].checkpoint))
    going = begin(checkpoint=first)
    next(going)
    going.close()
    assert [*tmp_path.iterdir()] == [first] and checkpoints.latest(tmp_path) == first


def test_a_damaged_checkpoint_falls_back_and_one_of_another_config_is_refused(
    small_text: Config, text_data: TextData, tmp_path: Path, life: Life, run: Life
) -> None:
    first = life(steps=4)[-1]
    with pytest.raises(ValueError, match="another configuration"):
        run(replace(small_text, layers=3), text_data, tmp_path, checkpoint=first.checkpoint, steps=8)
    second = life(checkpoint=first.checkpoint, steps=8)[-1]
    damaged = Path(str(second.checkpoint))
    (damaged / checkpoints.WEIGHTS).write_bytes(b"cut off")
    for trained_again in (4, 8):
        *_, last = reports = life(checkpoint=damaged, steps=8)
        assert (last.steps, last.valid.loss) == (8, second.valid.loss)
        assert sum(report.seconds["steps"] for report in reports) == pytest.approx(0.1 * trained_again)
        for folder in tmp_path.iterdir():
            (folder / checkpoints.STATE).unlink(missing_ok=True)


def test_a_checkpoint_of_a_version_whose_configs_had_fewer_fields_is_gone_on_from(
    small_text: Config, text_data: TextData, tmp_path: Path, run: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, save = replace(small_text, **OLD_DEFAULTS), checkpoints.save
    added = {*OLD_DEFAULTS, "own", "scaling_rules", "evaluation_window", "micro_batches", "checkpointing"}

    def of_before(folder: Path, model: Any, tensors: Any, state: dict[str, Any], *rest: Any, **late: Any) -> Path:
        kept = {name: value for name, value in state["config"].items() if name not in added}
        return save(folder, model, tensors, state | {"config": kept}, *rest, **late)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "save", of_before)
        first = run(config, text_data, tmp_path, steps=1)[-1].checkpoint
    assert run(config, text_data, tmp_path, checkpoint=first, steps=2)[-1].steps == 2
    with pytest.raises(UserError, match="holds another configuration"):
        run(replace(config, scaling_rules=False), text_data, tmp_path, checkpoint=first, steps=2)


def test_a_compiler_that_fails_costs_nothing_but_time(
    tmp_path: Path, clock: Script, life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> object:
        def call(*_: object) -> torch.Tensor:
            torch.rand(3)
            raise RuntimeError("no compiler")

        return call

    eager = life(folder=tmp_path / "a", steps=24)[-1]
    clock.compiles = True
    monkeypatch.setattr(torch, "compile", fails)
    monkeypatch.setattr("model.training.learner.MISCOMPILED", set())
    monkeypatch.setattr(training, "COMPILE_REPAYS", {"cpu": 0.1})
    reports = life(folder=tmp_path / "b", steps=24)
    assert same_weights(eager, reports[-1])
    assert sum(report.seconds["compile"] for report in reports) == pytest.approx(0.1)


@pytest.mark.parametrize(("family", "precision"), [("text", "fp32"), ("pairs", "bf16"), ("text", "fp16")])
def test_it_learns(family: str, precision: str, small: dict[str, tuple], tmp_path: Path, run: Life) -> None:
    config, data = small[family]
    last = run(replace(config, layers=1, precision=precision), data, tmp_path, steps=30, final=True)[-1]
    assert last.valid.loss < 0.75 * np.log(data.vocabulary)
    assert last.valid.loss == pytest.approx(last.test.loss, abs=0.3)
    assert last.parameters > 0 and last.tokens > 0
    assert 0 < last.gradient_norm < 100, "of gradients as they are, not as fp16 scales them"


@pytest.mark.parametrize("steps", [2, WARM + 1])
def test_told_to_stop_it_leaves_a_checkpoint_and_tells_no_step_time_of_its_first_few(life: Life, steps: int) -> None:
    last = life(steps=1000, stop=iter([*(False for _ in range(steps)), True]).__next__)[-1]
    assert last.ended == "stopped" and last.steps == steps and (last.step_seconds is None) == (steps < WARM)
    assert checkpoints.load(Path(str(last.checkpoint))).state["steps"] == last.steps
