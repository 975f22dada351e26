"""A driver that is killed while its processes train, and one that goes on with its study: without Ray, the group of
processes being the driver itself.
"""

import os
import signal
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.forked import FORKING
from tests.soak.accounts import number
from tests.tune.experiments.test_runner import EVERY, POINTS, STEPS, rows, settings
from tests.tune.experiments.this_process import ThisProcess, without_ray
from tune.backend.worker_group import LeaseOver, Message, Task
from tune.devices import find_devices
from tune.errors import UserError
from tune.experiments import parallel_timing, runner
from tune.experiments.scaling import SCALING
from tune.store.journal import FACTS_QUERY, connect, facts_in


class Killed(ThisProcess):
    """It is killed, with its driver, at the first checkpoint of a training."""

    def hear(self, task: Task, message: Message) -> None:
        if message.kind == "steps" and task.asked["measure"] == "training":
            os.kill(os.getpid(), signal.SIGKILL)


class Ended(ThisProcess):
    """A signal or its lease ends it at its first word."""

    by: ClassVar[type[BaseException]]

    def hear(self, task: Task, message: Message) -> None:
        raise self.by


class Heard(ThisProcess):
    kinds: ClassVar[list[str]] = []

    def hear(self, task: Task, message: Message) -> None:
        self.kinds.append(message.kind)


def run(out: Path, group: type[ThisProcess], **more: Any) -> int:
    with pytest.MonkeyPatch.context() as patch:
        without_ray(patch, group)
        patch.setattr(parallel_timing, "TURN_SECONDS", 0.01)
        patch.setattr(parallel_timing, "MOST_ROUNDS", 5)
        alone = replace(SCALING, points=lambda *_: POINTS, tables=lambda rows: [])
        return runner.run_experiment(alone, settings(out, **more))


def test_what_was_measured_stays_what_was_held_is_charged_and_training_goes_on_from_its_checkpoint(
    tmp_path: Path,
) -> None:
    study = tmp_path / "study"
    first = FORKING.Process(target=run, args=(study, Killed))
    first.start()
    first.join()
    assert first.exitcode == -signal.SIGKILL
    (steps,) = rows(study)
    assert run(study, Heard, resume=study) == 0
    again, trained = rows(study)
    assert again == steps and "skipped" not in steps and trained["steps"] == STEPS
    assert Heard.kinds == ["start", *["steps"] * (STEPS // EVERY - 1), "evaluation"]
    assert number(study, "SELECT COUNT(*) FROM leases") == 2 * 2, "a lease for each device, of each driver"
    held = number(study, "SELECT SUM(closed - opened) FROM slots")
    assert number(study, "SELECT COUNT(*) FROM slots WHERE closed IS NULL") == 0
    assert number(study, "SELECT SUM(seconds) FROM charges") == pytest.approx(held, abs=0.1)


@pytest.mark.parametrize(("by", "reason", "state", "then"), [
    (KeyboardInterrupt, "interrupted", ("paused", "interrupted"), ("stopped", runner.TOO_LATE)),
    (LeaseOver, "overdue", ("stopped", runner.OVERDUE), ("stopped", runner.OVERDUE)),
])  # fmt: skip
def test_what_has_ended_is_said_to_have_until_it_goes_on_and_no_trial_of_it_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: type[BaseException], reason: str, state: Any, then: Any
) -> None:
    """It does not go on on another kind of device: else its tables compare rows of both."""
    study, said = tmp_path / "study", list[Any]()

    class Asks(ThisProcess):
        def hear(self, task: Task, message: Message) -> None:
            said.append(ended(study))

    monkeypatch.setattr(Ended, "by", by, raising=False)
    assert run(study, Ended) == (128 + signal.SIGINT if by is KeyboardInterrupt else 1)
    gpus = replace(find_devices(settings(study)), kind="cuda")
    with monkeypatch.context() as there:
        there.setattr("tune.experiments.base.find_devices", lambda _: gpus)
        with pytest.raises(UserError, match=r"^--resume: the study runs on CPU cores, and here are GPUs: [^\n]+$"):
            run(study, Asks, resume=study)
    assert states(study) == {state} and ended(study)["reason"].startswith(reason)
    assert run(study, Asks, resume=study, budget=300.0) == 1
    assert states(study) == {then} and not said
    assert run(study, Asks, resume=study) == 0
    assert states(study) == {("finished", None)} and ended(study)["reason"] == "done"
    assert said and not any(said)


def ended(study: Path) -> Any:
    """How it ended; None: it runs."""
    with closing(connect(study)) as journal:
        return facts_in(journal.execute(FACTS_QUERY)).get("ended")


def states(study: Path) -> set[tuple[str, str | None]]:
    """Of its trials, and why they are so."""
    with closing(connect(study)) as journal:
        return {tuple(row) for row in journal.execute("SELECT state, reason FROM trials")}
