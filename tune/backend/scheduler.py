"""The Ray side of the engine: it passes the engine's decisions to Ray Tune, and what Ray Tune reports to the engine.

Ray starts every pending trial, whatever its scheduler says, so admission is up to the searcher (`AdmittingSearcher`):
it hands out a trial when the engine has a slot and device-seconds for it. A trial that Ray already knows is paused, and
the scheduler (`BudgetScheduler`) chooses it again with a new lease. Processes stay warm: one for each slot held, ended
when the slot is handed back.
"""

import dataclasses
import json
import logging
import re
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray.tune import Callback
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from tune.errors import UserError, parse_traceback
from tune.reports import from_row
from tune.search.engine import HUNG, Engine
from tune.search.resume import LONGEST_REASON, Newest
from tune.search_space import precision_of
from tune.store.accounting import Assignment
from tune.store.heartbeat import kill_worker, machine_boot_id

log = logging.getLogger(__name__)

NOT_STARTED = "its process had not started by the end of its lease"
TERMINAL_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
CAUSE = re.compile(r"^[\w.]+: \S.*", re.MULTILINE)
"""A line of a traceback that names an error and what it says."""


class TuneBridge:
    """State shared by searcher, scheduler and callback: the engine, which of Ray's trials is which of ours, and how to
    find the checkpoint that a trial goes on from."""

    def __init__(self, engine: Engine, newest: Newest) -> None:
        self.engine, self.newest = engine, newest
        self.known: dict[str, Trial] = {}
        self.new: dict[str, str] = {}
        self.waiting: deque[Assignment] = deque()
        self.killed: dict[str, str] = {}
        self.failed: Exception | None = None

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Keep the first error raised inside, so that it ends the run as it is: Ray would turn it into text."""
        try:
            yield
        except Exception as error:
            self.failed = self.failed or error
            raise

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle nothing: Ray pickles what it is given for a restore of its own, and ours is from the journal."""
        return object, ()

    def config(self, assignment: Assignment) -> dict[str, Any]:
        """Return what a trial's process is told: its assignment; when that was made, on clocks that it may share; and
        the peak FLOP/s of its device, where that is known."""
        accounting = self.engine.accounting
        age = accounting.clock() - assignment.opened
        opened = {"boot": machine_boot_id(), "monotonic": time.monotonic() - age}
        peak = accounting.peak_flops.get(precision_of(assignment.config))
        return {"assignment": dataclasses.asdict(assignment), "opened": opened, "peak_flops": peak}


class AdmittingSearcher(Searcher):
    """Searcher that hands a trial to Ray only when a slot is free and its lease is reserved."""

    def __init__(self, bridge: TuneBridge) -> None:
        super().__init__(metric="report", mode="min")
        self._bridge = bridge

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Return the config of a new trial of Ray's, None to wait, or FINISHED when every slot was handed back."""
        with self._bridge.failing():
            assignment = self._bridge.engine.next_assignment()
            while assignment is not None and assignment.trial in self._bridge.known:
                self._bridge.waiting.append(assignment)
                assignment = self._bridge.engine.next_assignment()
        if assignment is None:
            return Searcher.FINISHED if self._bridge.engine.is_done else None
        self._bridge.new[trial_id] = assignment.trial
        return self._bridge.config(assignment)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Do nothing: the engine knows already."""

    def save(self, checkpoint_path: str) -> None:
        """Do nothing: the journal has everything."""

    def restore(self, checkpoint_path: str) -> None:
        """Do nothing: the journal has everything."""


class BudgetScheduler(FIFOScheduler):
    """Scheduler that pauses a trial at the end of each lease, and chooses those that the engine gave their next one."""

    def __init__(self, bridge: TuneBridge) -> None:
        super().__init__()
        self._bridge = bridge
        self.controller: Any = None

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        """Note which of Ray's trials is the one that the searcher handed out."""
        self._bridge.known[self._bridge.new.pop(trial.trial_id)] = trial

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """Tell the engine, and pause the trial if its lease is over; its process stays warm for the next one, unless
        the engine ends it, as after running out of memory."""
        self._bridge.killed.pop(study_trial_name(trial), None)
        with self._bridge.failing():
            if "refused" in result:
                raise OSError(*result["refused"])
            engine, name = self._bridge.engine, study_trial_name(trial)
            if "report" in result:
                afterwards = engine.on_report(name, from_row(json.loads(result["report"])))
            else:
                afterwards = engine.on_out_of_memory(name)
        if afterwards == "goes on":
            return TrialScheduler.CONTINUE
        process = self.controller._trial_to_actor[trial]
        self.controller.pause_trial(trial, should_checkpoint=False)
        if afterwards == "ends":
            self._end_process(trial, process)
        return TrialScheduler.NOOP

    def _end_process(self, trial: Trial, process: Any) -> None:
        """End a process that Ray would keep for the next trial."""
        cache = self.controller._actor_cache
        kept = cache._cached_objects[trial.placement_group_factory]
        if process in kept:
            kept.remove(process)
            cache._num_cached_objects -= 1
            end_process(self.controller, process)

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        """Tell the engine that a trial raised an exception, or that its process died. If it goes on, it does so as a
        new trial of Ray's."""
        name = study_trial_name(trial)
        self._bridge.known.pop(name, None)
        engine = self._bridge.engine
        if name in engine.running:
            with self._bridge.failing():
                killed, (its_own, reason) = self._bridge.killed.pop(name, None), failure_reason(trial)
                (engine.on_error if its_own and not killed else engine.on_death)(name, f"error: {killed or reason}")
                folder = engine.accounting.journal.folder / "checkpoints" / name
                engine.trials[name].begin_at(self._bridge.newest(folder, undecayed=False))

    def _on_a_new_slot(self, name: str) -> bool:
        run = self._bridge.engine.running.get(name)
        return run is None or run.fresh_slot

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """Return a trial that the engine gave a lease, those on slots that were held before first: Ray gives the first
        trial an idle process, and only on a new slot does a lease pay for starting another. When all is over, return
        None and end the paused trials."""
        if self.controller is None:
            self.controller = tune_controller._tune_controller
            self.controller._actor_cache._may_keep_one = False
        idle = self.controller._actor_cache.num_cached_objects > 0
        pending = {name: trial for name, trial in self._bridge.known.items() if idle and trial.status == Trial.PENDING}
        waiting = {assignment.trial: assignment for assignment in self._bridge.waiting}
        new = (name for name, trial in pending.items() if trial not in self.controller._staged_trials)
        if name := min((*waiting, *new), key=self._on_a_new_slot, default=None):
            trial = self._bridge.known[name]
            if name in waiting:
                self._bridge.waiting.remove(waiting[name])
                trial.set_config(self._bridge.config(waiting[name]))
            return trial
        if not pending and self._bridge.engine.is_done:
            for trial in list(self._bridge.known.values()):
                if trial.status == Trial.PAUSED:
                    self.controller.stop_trial(trial)
        return None


class SlotKeeper(Callback):
    """Callback that ends the processes of slots that were handed back, and of trials that outstay their lease."""

    def __init__(self, bridge: TuneBridge, scheduler: BudgetScheduler, slots: int) -> None:
        self._bridge, self._scheduler, self._slots = bridge, scheduler, slots
        self._kept: set[Any] = set()

    def on_step_begin(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        """End by force each trial that outstays its lease; its failure then reaches the scheduler. Also drop idle
        processes that ended while the driver slept, so that none is used again.

        UserError: Ray had no device for a trial within its lease, and none was lost with its machine.
        """
        waiting = [assignment.trial for assignment in self._bridge.waiting]
        self._bridge.engine.note_alive()
        for name in self._bridge.engine.overdue():
            if name in self._bridge.killed or name not in self._bridge.known or name in waiting:
                continue
            trial = self._bridge.known[name]
            started = trial.temporary_state.ray_actor is not None
            if self._kill(trial, started):
                self._bridge.killed[name] = HUNG if started else NOT_STARTED
                log.warning("%s outstayed its lease: its process is ended", name)
            elif not started and self._bridge.engine.has_lost_machine(name):
                self._bridge.killed[name] = NOT_STARTED
                self._scheduler.controller.stop_trial(trial)
                self._scheduler.on_trial_error(self._scheduler.controller, trial)
            elif not started:
                with self._bridge.failing():
                    remedy = "free them or take fewer, see log.txt, and go on with --resume"
                    raise UserError(f"--devices: Ray had no device for {name} within its lease: {remedy}")
        if self._scheduler.controller is not None:
            self._end_surplus()

    def _kill(self, trial: Trial, started: bool) -> bool:
        """End a trial's process: through Ray, which asks it to end, and by SIGKILL. False: Ray had begun none yet.

        started: whether it came up; else the trial's last sign of life is another process's.
        """
        controller = self._scheduler.controller
        process = controller._trial_to_actor.get(trial)
        live = controller._actor_manager._live_actors_to_ray_actors_resources.get(process)
        if live is None:
            return False
        ray.kill(live[0])
        if started:
            kill_worker(self._bridge.engine.accounting.journal.folder, study_trial_name(trial))
        return True

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """Let Ray keep as many idle processes as there are slots: only handing a slot back ends one."""
        resources = trial.placement_group_factory
        if resources not in self._kept:
            self._kept.add(resources)
            self._scheduler.controller._actor_cache.increase_max(resources, by=self._slots)

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        """End idle processes beyond one for each idle slot, and those that were replaced."""
        self._end_replaced()
        self._end_surplus()

    def _end_surplus(self) -> None:
        controller = self._scheduler.controller
        cache = controller._actor_cache
        surplus = cache.num_cached_objects - self._bridge.engine.accounting.idle_slots - len(self._bridge.waiting)
        for resources in self._kept:
            while surplus > 0 and (process := cache.pop_cached_object(resources)) is not None:
                end_process(controller, process)
                surplus -= 1

    def _end_replaced(self) -> None:
        """End a process that still started when its trial was given an idle one: Ray would wait for it to end."""
        controller = self._scheduler.controller
        kept = [process for resources in self._kept for process in controller._actor_cache._cached_objects[resources]]
        for process, (handle, _) in controller._actor_manager._live_actors_to_ray_actors_resources.items():
            if process not in controller._actor_to_trial and process not in kept:
                ray.kill(handle)


def end_process(controller: Any, process: Any) -> None:
    """End an idle process of Ray's, without waiting for it."""
    process.set_on_stop(None)
    process.set_on_error(None)
    controller._actor_manager.remove_actor(process, kill=True)


def failure_reason(trial: Trial) -> tuple[bool, str]:
    """Return whether a trial raised an exception, else its process died; and the reason on one short line."""
    trace = Path(trial.error_file).read_text(encoding="utf-8", errors="replace") if trial.error_file else ""
    trace = TERMINAL_ESCAPE.sub("", trace)
    found = parse_traceback(trace)
    if found is None:
        lines = [line.strip() for line in trace.splitlines()[1:] if line.strip()]
        cause = CAUSE.findall(trace)  # of a process that could not start
        why = cause[-1] if cause else lines[0] if lines else "Ray lost it"
        return False, f"its process died: {why}"[:LONGEST_REASON]
    function, line = found
    return True, f"its {function} raised {line}" if function else f"it raised {line}"


def study_trial_name(trial: Trial) -> str:
    """Return our name of one of Ray's trials."""
    return str(trial.config["assignment"]["trial"])
