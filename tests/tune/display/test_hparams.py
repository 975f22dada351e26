"""Every trial has its whole row of HParams, however the study ends; read as TensorBoard's own page reads it."""

import os
import signal
from pathlib import Path

from tests.forked import FORKING
from tests.tune.display.conftest import ENDED, check_all_are_complete, hparams_table, watched
from tune.display.tensorboard import REASONS
from tune.reports import Report
from tune.search_space import DIMENSIONS, FREED, freed


def killed(folder: Path) -> None:
    """A search that is ended from outside of Python."""
    world, _ = watched(folder)
    world.run(reports=9)
    os.kill(os.getpid(), signal.SIGKILL)


def test_after_the_cap_also_of_what_is_freed_of_the_recipe(tmp_path: Path) -> None:
    vary = freed(FREED, {"learning_rate": 3e-3, "batch_tokens": 768, "weight_decay": 0.1, "context": 64})
    world, board = watched(tmp_path, vary=vary)
    world.run()
    board.closed(world.engine)
    check_all_are_complete(tmp_path, [*DIMENSIONS, *FREED])
    paid = world.journal.rows("SELECT trial, TOTAL(charged) AS seconds FROM leases GROUP BY trial")
    shown = {run.partition("/")[2].split()[0]: row["device-seconds"] for run, row in hparams_table(tmp_path)[1].items()}
    for trial, seconds in paid:
        assert abs(shown[trial] - seconds) < 1e-3 * seconds


def test_after_a_sigkill_and_after_going_on(tmp_path: Path) -> None:
    process = FORKING.Process(target=killed, args=(tmp_path,), daemon=True)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    check_all_are_complete(tmp_path)
    world, board = watched(tmp_path)
    world.run()
    board.closed(world.engine)
    check_all_are_complete(tmp_path)


def test_after_divergence_out_of_memory_and_the_death_of_its_process(tmp_path: Path) -> None:
    world, _ = watched(tmp_path)
    world.diverging, world.dying = {2: 0.0}, {"t003": 2}
    world.run(reports=12)
    world.engine.end("t001", "memory")
    check_all_are_complete(tmp_path)
    ends = {run.partition("/")[2].split()[0]: row[ENDED] for run, row in hparams_table(tmp_path)[1].items()}
    assert ends["t001"] == REASONS["memory"] and ends["t003"] == REASONS["error"]
    assert REASONS["diverged"] in ends.values()


def test_after_a_lease_in_which_no_step_fitted(tmp_path: Path) -> None:
    """Its report is of as many tokens as the one before, and is told after what was decided for it."""
    world, _ = watched(tmp_path)
    while not (again := [run.assignment.trial for run in world.engine.running.values() if run.steps_before]):
        world.run(reports=1)
    trial = again[0]
    steps = world.engine.trials[trial].steps
    world.engine.report(trial, Report(steps=steps, tokens=steps, training_seconds=0.0, parameters=1000, ended="lease"))
    check_all_are_complete(tmp_path)
    assert REASONS["price"] in {row[ENDED] for row in hparams_table(tmp_path)[1].values()}
