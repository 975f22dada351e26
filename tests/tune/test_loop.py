"""What a user's loop says to its lease, in virtual time: when a lease ends, what is kept, what travels; and so the
trainers of Hugging Face and of Lightning.
"""

import io
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tune import loop
from tune.loop import FIRST_SAVE_SECONDS, Lease, StopLoop, Terms, best_checkpoint, newest_checkpoint, read_record
from tune.loop_process import patch_ray_tune
from tune.reports import LEASE_RESERVE_FACTOR
from tune.search.resume import check_plain
from tune.trainers import hugging_face, lightning, resume_checkpoint


class World:
    """A trial on one lease after another, its clock, and what its worker heard."""

    def __init__(self, folder: Path, **terms: Any) -> None:
        self.now, self.heard, self.stopped = 0.0, list[dict[str, Any]](), False
        self.terms: dict[str, Any] = {
            "trial": "t001", "lease": 1, "config": {"width": 4}, "folder": str(folder), "output": "", "ends": math.inf,
            "metric": "loss", "maximize": False, **terms,
        }  # fmt: skip
        self.lease = self.again()

    def again(self, save_seconds: float = FIRST_SAVE_SECONDS, **terms: Any) -> Lease:
        """The next lease, in a loop that knows its configuration."""
        told, stopped = Terms(**{**self.terms, **terms}), lambda: self.stopped
        self.lease = Lease(told, self.heard.append, stopped, lambda: self.now, save_seconds=save_seconds)
        self.lease.asked = True
        return self.lease

    def holds(self, steps: int, metric: str) -> None:
        """This process works on the next lease, which is for so many steps."""
        loop.set_current_lease(self.again(steps=steps, metric=metric))
        loop.config(width=1)

    def goes_on_from(self, steps: int) -> None:
        """It ended there, and goes on from there."""
        assert self.heard[-1]["ended"] == "rung" and self.heard[-1]["steps"] == steps and not self.heard[-1]["lost"]
        kept = newest_checkpoint(Path(self.terms["folder"]))
        assert kept is not None and kept.name.endswith(f"{steps}")

    def report(self, loss: Any, after: float = 1.0, step: int | None = None, save: Any = None, **more: Any) -> None:
        """After so many seconds of training."""
        self.now += after
        self.lease.report({"loss": loss, **more}, step, save)


def saving(value: object) -> Callable[[Path], None]:
    return lambda folder: (folder / "state.json").write_text(json.dumps(value)) and None


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "t001")


@pytest.fixture
def held(world: World) -> Iterator[World]:
    yield world
    loop.set_current_lease(None)


def test_outside_of_a_search_it_trains_as_ever(tmp_path: Path) -> None:
    assert loop.config(width=128) == {"width": 128}
    assert loop.checkpoint() is None and not loop.done()
    loop.report(loss="nothing hears it", step=-3, save=lambda folder: 1 / 0)


def test_a_lease_ends_at_the_report_that_reaches_its_goal_and_the_next_one_goes_on_from_there(world: World) -> None:
    world.again(training_seconds=3.0)
    for step in (10, 20, 30):
        assert not world.lease.is_over()
        world.report(5.0 - step / 10, step=step, save=saving(step))
    assert world.lease.is_over() and world.heard[-1]["ended"] == "rung" and world.heard[-1]["lost"] == 0
    with pytest.raises(StopLoop):
        world.report(1.0)
    lease = world.again(steps=50)
    assert lease.checkpoint is not None and json.loads((lease.checkpoint / "state.json").read_text()) == 30
    world.report(9.0, step=40)
    assert not lease.is_over()
    world.report(9.0, step=50, save=saving(50))
    assert lease.is_over() and world.heard[-1]["training_seconds"] == 5.0
    assert world.heard[-1]["best"] == 2.0, "the best so far is the result"
    world.again()
    world.report(9.0, step=60)
    assert world.heard[-1]["best"] == 2.0, "also where what was saved last is worse"


def test_so_much_of_a_lease_is_kept_back_that_another_report_as_late_as_any_fits(world: World) -> None:
    for gaps in ([1.0] * 40, [2.0, 0.5, 3.0, 0.1] * 9, [8.0] * 5):
        world.now, lease = 0.0, world.again(ends=40.0)
        for gap in gaps:
            world.report(1.0, after=gap, save=saving(0))
            if lease.is_over():
                break
        assert lease.is_over() and world.heard[-1]["ended"] == "lease"
        left = 40.0 - world.now
        assert 0 <= left < LEASE_RESERVE_FACTOR * (max(gaps) + 1), "it neither outstays it nor leaves it unused"


def test_on_a_last_segment_it_trains_as_long_as_the_lease_lets_it(world: World) -> None:
    world.again(ends=20.0, last=True)
    while not world.lease.is_over():
        world.report(1.0)
    assert world.heard[-1]["ended"] == "final" and world.now > 17.0


@pytest.mark.parametrize(("save", "step"), [(None, 0), (saving(7), 7)])
def test_a_last_segment_in_which_no_step_was_made_is_not_its_end(world: World, save: Any, step: int) -> None:
    """Nor is it where the trial goes on from a checkpoint."""
    world.again(steps=7)
    world.report(1.0, step=7, save=save)
    world.again(ends=world.now + 2.0, last=True)
    world.report(1.0, step=step)
    assert world.lease.is_over() and world.heard[-1]["ended"] == "lease"


def test_a_loop_has_an_end_of_its_own_where_its_life_is_over_or_it_returns(world: World) -> None:
    world.again(life=20)
    world.report(1.0, step=20, save=saving(20))
    assert world.lease.is_over() and world.heard[-1]["ended"] == "returned"
    world.again()
    world.report(0.5, step=30, save=saving(30))
    world.lease.on_return()
    assert world.heard[-1]["ended"] == "returned" and world.heard[-1]["lost"] == 0
    assert newest_checkpoint(Path(world.terms["folder"])).name.endswith("30")  # type: ignore[union-attr]


def test_a_trial_that_returns_at_once_on_its_next_lease_keeps_what_it_reported(world: World) -> None:
    world.again(steps=5)
    world.report(0.5, step=5, save=saving(5), accuracy=0.9, bad=math.inf)
    world.again()
    world.lease.on_return()
    said = world.heard[-1]
    assert (said["ended"], said["numbers"]) == ("returned", {"loss": 0.5, "accuracy": 0.9})


def test_who_returns_without_a_word_is_told_so(world: World) -> None:
    with pytest.raises(ValueError, match=r"^the loop returned without a report: call ration\.report\(...\) in it$"):
        world.lease.on_return()


@pytest.mark.parametrize(("name", "rule", "told"), [
    *(("loss", "is no number: report a number", told) for told in ("low", None, {"a": 1}, [1, 2], torch.ones(2))),
    *(("step", "is no whole number: count optimizer steps", told)
      for told in (0.5, np.float32(2.5), torch.tensor(1.5), math.nan, math.inf, "7", [3])),
])  # fmt: skip
def test_what_is_no_number_or_no_whole_step_is_an_error_in_one_line(
    world: World, name: str, rule: str, told: Any
) -> None:
    with pytest.raises(ValueError, match=rf"^report: {name} [^\n]*{rule}$"):
        world.report(**{"loss": 1.0, name: told})


def test_a_metric_that_is_missing_or_a_step_that_goes_back_is_an_error_in_one_line(world: World) -> None:
    with pytest.raises(ValueError, match=r"^report: 'loss' is the metric, and here is 'accuracy': report it"):
        world.lease.report({"accuracy": 0.5}, None, None)
    world.report(1.0, step=7)
    with pytest.raises(ValueError, match=r"^report: step 6 comes after step 7: "):
        world.report(1.0, step=6)


@pytest.mark.parametrize("step", [3, 3.0, np.int64(3), np.float32(3), torch.tensor(3), torch.tensor([3.0])])
def test_whole_steps_of_any_library_count(world: World, step: Any) -> None:
    world.report(1.0, step=step)
    assert world.heard[-1]["steps"] == 3


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_metric_that_is_not_finite_ends_the_trial(world: World, loss: float) -> None:
    world.report(loss, save=saving(0))
    assert world.lease.is_over() and world.heard[-1]["ended"] == "diverged" and not world.heard[-1]["checkpoint"]


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("always", [True, False])
def test_what_it_had_before_counts_and_is_not_saved_over(world: World, loss: float, always: bool) -> None:
    world.report(3.0)
    world.lease.report({"loss": loss}, None, saving(0), always=always)
    said = world.heard[-1]
    assert world.lease.is_over() and (said["ended"], said["best"], said["checkpoint"]) == ("returned", 3.0, None)


def test_within_a_lease_too_it_can_go_back_to_what_was_saved_last(world: World) -> None:
    for step in range(1, 6):
        world.lease.report({"loss": 6.0 - step}, step, saving(step), always=True)
        assert world.lease.checkpoint is not None
        assert json.loads((world.lease.checkpoint / "state.json").read_text()) == step


class Gone(io.StringIO):
    """A file that the loop closed before it returned."""

    def __call__(self, folder: Path) -> None:
        self.close()
        (folder / "state.json").write_text(self.read())


@pytest.mark.parametrize("save", [lambda folder: (folder / "gone").rename(folder / "state.json"), Gone()])
def test_where_what_it_would_save_is_gone_when_it_returned_the_last_checkpoint_stays(world: World, save: Any) -> None:
    world.report(2.0, after=100.0, save=saving(1))
    world.report(3.0, after=0.1, save=save)
    world.lease.on_return()
    said = world.heard[-1]
    assert (said["ended"], said["best"], said["lost"]) == ("returned", 2.0, 1)
    assert read_record(Path(said["checkpoint"])).steps == 1


def test_a_save_that_is_wrong_and_never_worked_fails_the_trial_that_returned(world: World) -> None:
    world.report(2.0, save=lambda folder: nothing_of_this_name)  # noqa: F821
    with pytest.raises(NameError):
        world.lease.on_return()


def test_numbers_of_any_library_count_and_what_else_is_told_is_left_out(world: World) -> None:
    ones = {"accuracy": np.float32(0.5), "scores": np.array([3.0]), "none": np.ma.array([0.0], mask=True)}
    world.report(torch.tensor(2.0, requires_grad=True), **ones, name="x", rate=None, often=True, bad=math.nan)
    assert world.heard[-1]["best"] == 2.0
    assert world.heard[-1]["numbers"] == {"loss": 2.0, "accuracy": 0.5, "scores": 3.0, "often": 1.0}


def test_more_is_better_where_it_is_said(world: World) -> None:
    world.again(maximize=True)
    for accuracy in (0.1, 0.9, 0.5):
        world.report(accuracy, after=2.0)
    assert world.heard[-1]["best"] == -0.9


def test_reports_travel_once_a_second_and_no_seconds_are_lost_on_the_way(world: World) -> None:
    """Nor counted twice, as those of a checkpoint."""

    def save(folder: Path) -> None:
        world.now += 0.25

    world.again(ends=60.0)
    while not world.lease.is_over():
        world.report(-world.now, after=0.05, save=save)
    assert len(world.heard) <= world.now + 2 and world.heard[-1]["seconds"]["checkpoint"] > 0
    assert sum(sum(each["seconds"].values()) for each in world.heard) == pytest.approx(world.now)
    assert world.heard[-1]["gap"] == pytest.approx(0.05)


def test_what_it_sets_up_is_its_start_and_no_training(world: World) -> None:
    world.lease.end_setup()
    world.now += 30.0
    assert not world.lease.is_over()
    world.report(1.0)
    assert world.heard[-1]["seconds"]["start"] == 30.0 and world.heard[-1]["seconds"]["steps"] == 1.0
    assert world.heard[-1]["gap"] == 1.0


@pytest.mark.parametrize("name", ["loss", "accuracy"])
def test_training_is_also_what_computes_a_number_until_it_is_read(world: World, name: str) -> None:
    """As on a device that works on its own."""

    class Computed:
        def item(self) -> float:
            world.now = 6.0
            return 1.0

    numbers: dict[str, Any] = {"loss": 2.0, name: Computed()}
    world.report(**numbers)
    assert world.heard[-1]["gap"] == world.heard[-1]["seconds"]["steps"] == 6.0


def test_told_to_end_it_ends_at_its_next_report_and_keeps_it(world: World) -> None:
    world.report(1.0, save=saving(1))
    world.stopped = True
    world.report(0.9, save=saving(2))
    assert world.lease.is_over() and world.heard[-1]["ended"] == "stopped" and world.heard[-1]["lost"] == 0


def test_checkpoints_are_few_cheap_and_whole_and_the_best_one_stays(world: World, tmp_path: Path) -> None:
    folder = Path(world.terms["folder"])
    saved: list[int] = []

    def save(place: Path) -> None:
        world.now += 0.5
        saved.append(len(saved))
        (place / "state.json").write_text(str(len(saved)))

    world.again(ends=2000.0)
    for step in range(1, 1000):
        world.report(abs(step - 500.0), step=step, save=save)
    assert 0.5 * len(saved) <= 0.021 * world.now, "of a second's save in a lease"
    found = {
        read_record(path).steps: read_record(path).loss
        for path in (newest_checkpoint(folder), best_checkpoint(folder))
        if path
    }
    assert min(found.values()) < 30 and max(found) > 900 and len(list(folder.iterdir())) <= 2

    def broken(place: Path) -> None:
        (place / "half").write_text("")
        raise OSError("no space")

    before = newest_checkpoint(folder)
    world.again(steps=1000)
    with pytest.raises(OSError, match="no space"):
        world.report(1.0, step=1000, save=broken)
    assert newest_checkpoint(folder) == before and not list(folder.glob(".*"))


def test_a_loop_that_offers_to_save_at_some_reports_alone_loses_no_more_than_since_the_last(world: World) -> None:
    """Though none of them is better than the first."""
    for step in range(1, 56):
        world.report(1.0, after=1.0, step=step, save=saving(step) if step % 10 == 0 else None)
    world.again(ends=world.now + 10.0)
    assert world.lease.checkpoint is not None and read_record(world.lease.checkpoint).steps == 50


def test_a_kill_in_the_midst_of_saving_a_step_again_leaves_the_checkpoint_that_there_was(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.lease.report({"loss": 1.0}, 1, saving(1), always=True)
    first = world.lease.checkpoint

    def killed(self: Path, target: Path) -> Path:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "rename", killed)
        world.lease.report({"loss": 1.0}, 1, saving(2), always=True)
    assert newest_checkpoint(Path(world.terms["folder"])) == first
    for value in range(3, 15):
        world.lease.report({"loss": 1.0}, 1, saving(value), always=True)
        assert world.lease.checkpoint == newest_checkpoint(Path(world.terms["folder"])) != first
        assert json.loads((world.lease.checkpoint / "state.json").read_text()) == value


def test_links_in_a_checkpoint_are_what_they_lead_to(world: World, tmp_path: Path) -> None:
    """A study with links would not be gone on with, nor copied."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "model").write_text("a")
    (tmp_path / "elsewhere" / "dangling").symlink_to(tmp_path / "gone")
    (tmp_path / "elsewhere" / "loop").symlink_to(tmp_path / "elsewhere")

    def save(folder: Path) -> None:
        (folder / "b").write_text("b")
        for name, real in {
            "latest": folder / "b", "far": tmp_path / "elsewhere", "lost": folder / "gone", "itself": folder / "itself",
            "above": folder.parent,
        }.items():  # fmt: skip
            (folder / name).symlink_to(real)

    world.lease.report({"loss": 1.0}, 1, save, always=True)
    kept = world.lease.checkpoint
    assert kept is not None and not [path for path in kept.rglob("*") if path.is_symlink()]
    assert (kept / "latest").read_text() == "b" and (kept / "far" / "model").read_text() == "a"
    assert {path.name for path in kept.iterdir()} == {"b", "latest", "far", loop.RECORD}


def test_a_study_is_gone_on_with_though_a_kill_left_links_of_a_checkpoint(tmp_path: Path) -> None:
    """What a kill leaves is the study's folder as it is at that moment."""
    world = World(tmp_path / "study" / "checkpoints" / "t001")

    def save(folder: Path) -> None:
        (folder / "latest").symlink_to(folder / "gone")
        shutil.copytree(tmp_path / "study", tmp_path / "left", symlinks=True)

    world.lease.report({"loss": 1.0}, 1, save, always=True)
    assert [path for path in (tmp_path / "left").rglob("*") if path.is_symlink()]
    check_plain(tmp_path / "left")


def test_nothing_of_a_checkpoint_that_was_there_before_is_part_of_one(world: World) -> None:
    """Half written when its process was killed, or of the same step."""
    for name in (".unfinished-step-000000000001", "step-000000000001.new"):  # the latter by earlier versions
        killed = Path(world.terms["folder"]) / name
        killed.mkdir(parents=True)
        (killed / "half").touch()
    for other in ("first", "second"):
        world.lease.report({"loss": 1.0}, 1, lambda folder, other=other: (folder / other).touch(), always=True)
    assert world.lease.checkpoint is not None
    assert {path.name for path in world.lease.checkpoint.iterdir()} == {"second", loop.RECORD}
    assert not list(killed.parent.glob("*.new")) and not list(killed.parent.glob(".*"))


def test_a_checkpoint_is_one_that_a_power_failure_leaves(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk was told to keep all its files and their names before others are removed."""
    told, sync, remove = list[int](), os.fsync, shutil.rmtree

    def told_to_keep(file: int) -> None:
        told.append(os.stat(file).st_ino)
        sync(file)

    def removed(folder: Path, **more: Any) -> None:
        assert not Path(folder).exists() or newest() <= set(told)
        remove(folder, **more)

    def newest() -> set[int]:
        kept = newest_checkpoint(Path(world.terms["folder"]))
        assert kept is not None
        return {each.stat().st_ino for each in (*kept.rglob("*"), kept, kept.parent)}

    world.lease.report({"loss": 2.0}, 1, saving(1), always=True)
    first = world.lease.checkpoint
    monkeypatch.setattr(os, "fsync", told_to_keep)
    monkeypatch.setattr(shutil, "rmtree", removed)
    world.lease.report({"loss": 1.0}, 2, saving(2), always=True)
    assert first is not None and not first.exists()


def test_a_trial_that_goes_on_keeps_back_as_much_as_it_ever_needed_for_a_report(world: World) -> None:
    world.again(steps=1)
    world.report(1.0, after=8.0, save=saving(1))
    world.again(ends=world.now + 1.0 + LEASE_RESERVE_FACTOR * 8.0)
    world.report(1.0, after=1.0)
    assert world.lease.is_over() and world.heard[-1]["ended"] == "lease"


@pytest.mark.parametrize("price", [1.0, 3.0])
def test_what_its_last_checkpoint_took_is_kept_back_on_this_lease_and_in_the_next_process_too(
    world: World, price: float
) -> None:
    def save(folder: Path) -> None:
        world.now += price
        saving(1)(folder)

    for _ in range(5):
        ends = world.now + 30.0
        world.again(ends=ends)
        while not world.lease.is_over():
            world.report(-world.now, after=0.5, save=save)
        assert world.now <= ends and not world.heard[-1]["lost"]


def test_what_another_trials_checkpoint_took_shortens_no_lease_of_one_that_knows_its_own(world: World) -> None:
    def save(folder: Path) -> None:
        world.now += 0.1
        saving(1)(folder)

    world.again(steps=1)
    world.report(1.0, after=9.0, save=save)
    ends = world.now + 80.0
    world.again(100.0, ends=ends)
    while not world.lease.is_over():
        world.report(1.0, after=0.5, save=save)
    assert world.now > ends - LEASE_RESERVE_FACTOR * (9.0 + 1.0)


def test_a_checkpoint_that_was_held_up_shortens_no_other_lease(world: World) -> None:
    world.again(100.0, ends=20.0)
    world.report(0.9, step=1)
    assert not world.lease.over


def test_a_strangers_damaged_record_is_no_checkpoint(world: World) -> None:
    world.again(steps=1)
    world.report(1.0, step=1, save=saving(1))
    folder = Path(world.terms["folder"])
    no_price = '{"steps": 1, "save_seconds": null}'
    numbers = [f'{{"numbers": {told}}}' for told in ("[1]", '{"loss": "low"}', '{"loss": NaN}')]
    for text in (no_price, *numbers, "", "[]", '{"steps": "many"}', '{"steps": -1}', '{"other": 1}', "[" * 10_000):
        (folder / "step-000000000001" / loop.RECORD).write_text(text)
        assert newest_checkpoint(folder) is None and world.again().checkpoint is None


def test_a_space_that_varies_what_a_script_has_not_is_told_in_one_line(held: World) -> None:
    loop.set_current_lease(held.lease)
    assert loop.config(width=1, rate=2) == {"width": 4, "rate": 2}
    with pytest.raises(ValueError, match=r"^config: the space varies 'width', which has no default here: write wi"):
        loop.config(rate=2)


def test_a_script_that_never_asks_for_its_configuration_is_told_so_in_one_line(held: World) -> None:
    """All its trials would be alike; by Ray's report too."""
    loop.set_current_lease(held.lease)
    held.lease.asked = False
    utils = SimpleNamespace(flatten_dict=dict)
    patch_ray_tune(theirs := SimpleNamespace(get_context=SimpleNamespace, utils=utils), scratch="")
    for report in (partial(loop.report, loss=1.0), partial(theirs.report, {"loss": 1.0})):
        with pytest.raises(ValueError, match=r"^report: the loop never asked for its configuration: call [^\n]*$"):
            report()
    loop.config(width=1)
    loop.report(loss=1.0)
    assert len(held.heard) == 1
    held.again(steps=2)
    held.report(1.0, step=2, save=saving(1))
    assert Lease(held.lease.terms, held.heard.append).asked, "what it saved may have its configuration"


@pytest.mark.parametrize("saves", ["steps", "best"])
def test_hugging_faces_trainer_ends_with_its_lease_and_goes_on(held: World, tmp_path: Path, saves: str) -> None:
    """Also where none is better than the first."""
    import transformers  # 3 s that no other test needs

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = torch.nn.Linear(4, 1)

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            out = self.line(x)
            return {"loss": ((out - labels) ** 2).mean(), "logits": out}

    rows = [{"x": torch.randn(4), "labels": torch.ones(1)} for _ in range(64)]
    (tmp_path / "out" / "checkpoint-1000").mkdir(parents=True)
    (tmp_path / "out" / "checkpoint-1000" / "users").touch()  # of an earlier training
    for steps in (4, 8):
        held.holds(steps, "eval_loss")
        args = transformers.TrainingArguments(
            output_dir=str(tmp_path / "out"), eval_strategy="steps", eval_steps=2, max_steps=100, report_to=[],
            per_device_train_batch_size=8, disable_tqdm=True, use_cpu=True, save_strategy=saves,
            metric_for_best_model="loss", learning_rate=0.0,
        )  # fmt: skip
        trainer = transformers.Trainer(
            model=Net(), args=args, train_dataset=rows, eval_dataset=rows, callbacks=[hugging_face()]
        )
        trainer.train(resume_from_checkpoint=resume_checkpoint())
        held.goes_on_from(steps)
        assert [path.name for path in (tmp_path / "out").rglob("*") if path.is_file()] == ["users"]


def test_of_several_evaluation_sets_all_are_reported(held: World, tmp_path: Path) -> None:
    import transformers

    held.holds(4, "eval_a_loss")
    args = transformers.TrainingArguments(output_dir=str(tmp_path), report_to=[], use_cpu=True)
    (tmp_path / "checkpoint-4").mkdir()
    (tmp_path / "checkpoint-4" / "model").touch()
    state, control = transformers.TrainerState(global_step=4), transformers.TrainerControl()
    callback = hugging_face()
    callback.on_train_begin(args, state, control)
    callback.on_evaluate(args, state, control, metrics={"eval_a_loss": 9.0, "eval_before": 9.0})
    callback.on_step_begin(args, state, control)  # what was evaluated at the start is of no step
    callback.on_save(args, state, control)
    assert not held.heard
    for name, value in {"a": 1.0, "b": 2.0}.items():
        callback.on_evaluate(args, state, control, metrics={f"eval_{name}_loss": value})
    assert callback.on_save(args, state, control).should_training_stop
    assert held.heard[-1]["numbers"] == {"eval_a_loss": 1.0, "eval_b_loss": 2.0}
    assert (tmp_path / "checkpoint-4" / "model").exists(), "it was to be saved anyway"


def test_lightnings_trainer_ends_with_its_lease_and_goes_on(held: World, tmp_path: Path) -> None:
    import pytorch_lightning as pl  # so does this

    class Net(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.line = torch.nn.Linear(4, 1)

        def training_step(self, batch: torch.Tensor, at: int) -> torch.Tensor:
            return self.line(batch).pow(2).mean()

        def validation_step(self, batch: torch.Tensor, at: int) -> None:
            self.log("loss", self.line(batch).pow(2).mean())

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    rows = torch.utils.data.DataLoader(torch.randn(16, 4), batch_size=4)
    for steps in (4, 8):
        held.holds(steps, "loss")
        trainer = pl.Trainer(
            max_epochs=50, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, default_root_dir=tmp_path, callbacks=[lightning()],
        )  # fmt: skip
        net = Net()
        trainer.validate(net, rows, verbose=False)  # of no training
        trainer.fit(net, rows, rows, ckpt_path=resume_checkpoint())
        held.goes_on_from(steps)
