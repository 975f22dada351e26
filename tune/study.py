"""Runs a study, from its settings to its winners: the one place where all parts meet."""

from tune.errors import check_not_hidden

check_not_hidden("model")

# isort: split

import json
import math
import shlex
import signal
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import pandas as pd

from model.training.checkpoint import DamagedCheckpoint, export, model_resume_checkpoint
from model.training.evaluation import Score
from tune.assembly import make_engine, make_trial_environment
from tune.backend.leased import STOP_FILE, LeasedTrial
from tune.backend.loop_trial import LoopTrial
from tune.backend.session import (
    check_folder,
    check_loop_on_nodes,
    check_no_ray,
    cluster_devices,
    join_cluster,
    keep_fewer_kernels,
    local_ray,
    run_trials,
    slot_names,
)
from tune.backend.trainable import TrainingTrial
from tune.devices import Devices, find_devices
from tune.display.console import GuardedListener, Screen, print_if_killed, redirect_output
from tune.display.panel import show_live_panel
from tune.display.tensorboard import SystemRun, TensorBoard
from tune.dry_run import Plan, make_plan, plan_lines
from tune.errors import UserError, disk_error_as_user_error, script_command
from tune.facts import check_same_kind, check_same_text, note_facts, record_overhead, write_facts
from tune.machine import usable_temp_root
from tune.own_loop import keep_best, loop_change_warnings, loop_of, make_loop_context, metric_of, resume_checkpoint
from tune.prospects import Prospects, note_prospects, prospect_lines, prospects
from tune.ranking import ranking
from tune.registry import pickle_families_by_value
from tune.search.engine import MACHINES_LOST, Engine, Listener
from tune.search.listed import ListPolicy
from tune.search.resume import check_plain, close_what_a_kill_left_open, damage_as_user_error, restore, spent
from tune.search_context import SearchContext, make_search_context
from tune.search_space import label
from tune.settings import Settings
from tune.signals import StopSignal, catch_stop_signals, interruptible
from tune.store.heartbeat import run_driver_heartbeat
from tune.store.journal import Journal
from tune.store.mirror import mirror_study
from tune.store.queries import FAILED, best_so_far
from tune.system import energy_listeners
from tune.units import duration_text
from tune.winners import NEAR, Winner, last_lines, spending_lines, winners, write_samples

SILENT_END = "ended without a word, killed from outside or as Ray died under it (log.txt has what Ray said)"


ContextMaker = Callable[[Settings, Devices], SearchContext]
"""Makes the search context from the settings, on these devices."""
MAX_NAMED_CONFIGS = 8
"""Most configurations of a list that failed, or were left out, that a line names."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a search ended: its folder, whether any trial reached a rung, and what ended it early, if anything did."""

    folder: Path
    found: bool
    interrupted: str | None

    @property
    def exit_code(self) -> int:
        """Return 0, or 1 where nothing was found or no machine was left, or 128 plus the number of the signal that
        ended it."""
        members = signal.Signals.__members__
        if self.interrupted and self.interrupted in members:
            return 128 + members[self.interrupted]
        return 0 if self.found and self.interrupted != MACHINES_LOST else 1


def search(settings: Settings, callbacks: Sequence[Listener] = ()) -> pd.DataFrame | Plan | Prospects:
    """Run the search that the settings ask for; return its ranking, as tune.ranking has it, with the study's folder as
    `attrs["study"]`. callbacks: are told of its decisions and reports.

    With plan=True nothing is run, spent or written: return the plan, or of a study to resume its prospects. UserError,
    with nothing written: a setting that cannot serve.
    """
    if settings.plan:
        return prospects(settings) if settings.resume else make_plan(settings)
    study = run_study(settings, callbacks).folder
    table = ranking(study, metric_of(settings))
    table.attrs["study"] = str(study)
    return table


def run(settings: Settings) -> int:
    """Run a search, or print its plan, and return the exit code. UserError: as of run_study."""
    if settings.plan:
        print(*(prospect_lines(prospects(settings)) if settings.resume else plan_lines(make_plan(settings))), sep="\n")
        return 0
    return run_study(settings).exit_code


def run_study(
    settings: Settings, callbacks: Sequence[Listener] = (), make_context: ContextMaker | None = None
) -> Outcome:
    """Run the search that the settings ask for; make_context: makes its context, where it is no search but a list.
    UserError, with nothing written: a setting that cannot serve."""
    make_context = make_context or (make_search_context if settings.train is None else make_loop_context)
    assert not settings.plan, "a plan spends nothing"
    for each in callbacks:
        if not isinstance(each, Listener):
            raise UserError(f"callbacks: {each!r:.60} is no Listener: inherit from tune.search.engine's")
    settings.check_files()
    if settings.resume and (line := settings.nothing_to_do()):
        print(line)
        return Outcome(folder=settings.resume, found=True, interrupted=None)
    check_no_ray()
    if settings.address is None:
        return search_on(settings, make_context, find_devices(settings), callbacks)
    with join_cluster(settings.address):
        check_folder(settings.resume or settings.new_folder())
        if settings.train is not None:
            check_loop_on_nodes(loop_of(settings))
        return search_on(settings, make_context, cluster_devices(settings), callbacks)


def start_local_ray(context: SearchContext) -> AbstractContextManager[None]:
    """Return the context of a local Ray for this search alone."""
    devices = context.devices
    usable_temp_root()  # before the study has a folder
    preload = devices.kind == "cuda" and context.loop is None  # on a CPU importing ahead would use a device
    return local_ray(devices.slots * devices.cores_each, devices.gpus, preload=preload)


def slots_there(devices: Devices) -> frozenset[str]:
    """Return the names of the slots of these devices that a cluster has just now."""
    return slot_names(devices.kind, devices.cores_each, devices.trials_each)


def search_on(
    settings: Settings, make_context: ContextMaker, devices: Devices, callbacks: Sequence[Listener]
) -> Outcome:
    """Run a search on these devices, of this machine or of the cluster that was joined."""
    context = make_context(settings, devices)
    ray: AbstractContextManager[None] = start_local_ray(context) if settings.address is None else nullcontext()
    with study_folder(context.settings, context.facts()) as (study, stop_signal):
        return conduct(context, study, ray, stop_signal, callbacks)


@contextmanager
def study_folder(settings: Settings, facts: Mapping[str, Any]) -> Iterator[tuple[Path, StopSignal]]:
    """Yield the folder of a study, made with its facts if it is new, and what takes the signals inside. However this
    ends early, a last line says how to go on."""
    with catch_stop_signals() as stop_signal:
        study = settings.resume or settings.make_folder()
        how = settings.resume_command(study)
        try:
            with disk_error_as_user_error(how), print_if_killed(f"{study}: {SILENT_END}; go on with: {how}"):
                if not settings.resume:
                    write_facts(facts, study)
                yield study, stop_signal
        except KeyboardInterrupt as interrupt:
            raise KeyboardInterrupt(f"{str(interrupt) or 'SIGINT'}; go on with: {how}") from None


def conduct(
    context: SearchContext, study: Path, up: AbstractContextManager[None], stop_signal: StopSignal,
    callbacks: Sequence[Listener],
) -> Outcome:  # fmt: skip
    """Run a search on its context, in its new folder or the one that it resumes, until it ends or is told to. up: Ray
    runs inside."""
    settings, devices, data = context.settings, context.devices, context.data
    with open_journal(study, settings) as journal, redirect_output(study / "log.txt") as write:
        with damage_as_user_error(journal):
            check_same_text(context.data, journal.facts())
            check_same_kind(context.devices, journal.facts())
        precisions = f", precisions {', '.join(devices.precisions)}" if context.loop is None else ""
        place_text = f"{devices.slots} x {devices.name}{precisions}"
        write(f"{study}: {duration_text(settings.budget)} on {place_text}")
        for note in (*context.notes, *(f"{name}: {each.line(name)}" for name, each in context.recipes.items())):
            write(note)
        tensorboard = TensorBoard(study / "tensorboard", journal, settings, context.dimensions, context.metric)
        listeners: list[Listener] = [
            *(tensorboard, Screen(write, context.metric), *energy_listeners(journal, settings)),
            *([] if settings.address else [SystemRun(study / "tensorboard")]),  # on a cluster other machines train
            *(GuardedListener(each, write) for each in callbacks),
        ]
        there = None if settings.address is None else partial(slots_there, devices)
        engine = make_engine(context, journal, listeners, slots_there=there)
        go_on = model_resume_checkpoint if context.loop is None else resume_checkpoint
        warnings = [*loop_change_warnings(settings, journal)]  # before the facts are those of this run
        note_facts(context.facts(), journal)
        if settings.resume:
            notes = restore(engine, go_on, settings.deadline, devices.processor, settings.stop_below_gain)
            for line in (*notes, *warnings):
                write(line)
        if settings.memory_limit:
            keep_fewer_kernels()
        place = make_trial_environment(context, engine)
        clock, ledger = engine.accounting.clock, engine.accounting.ledger
        alive = run_driver_heartbeat(study, clock, ledger.can_wait)
        noted = record_overhead(journal, tensorboard)
        shown = show_live_panel(write, study, settings, clock, engine.wall_left, context.metric)
        with mirror_study(study, settings.mirror, clock, write), alive as pulse:
            engine.silence = pulse.silence
            with (
                stop_trials_on_signal(stop_signal, engine, study, write),
                shown,
                nullcontext() if stop_signal.name else up,
                noted,
            ):
                if not stop_signal.name:
                    kind: type[LeasedTrial] = TrainingTrial if context.loop is None else LoopTrial
                    given: dict[str, Any] = {"loop": context.loop}
                    if context.loop is None:
                        given = {"data": dict(data), "families": pickle_families_by_value()}
                    run_trials(engine, kind, devices.ray_resources, go_on, environment=place, **given)
            for line in conclude(context, engine, tensorboard, listeners):
                write(line)
        return Outcome(folder=study, found=bool(best_so_far(journal)), interrupted=engine.cut_off)


@contextmanager
def stop_trials_on_signal(
    stop_signal: StopSignal, engine: Engine, study: Path, write: Callable[[str], None]
) -> Iterator[None]:
    """Let a signal, also one that came before, end the search inside in order: trials close their segments and keep
    their checkpoints."""
    threads: list[Thread] = []

    def note(name: str) -> None:
        engine.stopping = engine.stopping or name

    def stop(name: str) -> None:
        note(name)
        (study / STOP_FILE).touch()
        # not written here: a signal may come in the midst of writing
        line = Thread(target=write, args=(f"{name}: ending in order; once more stops at once",))
        line.start()  # a second signal may come before it has begun
        threads.append(line)

    (study / STOP_FILE).unlink(missing_ok=True)
    try:
        stop_signal.listen(stop)
        yield
    finally:
        stop_signal.listen(note)
        (study / STOP_FILE).unlink(missing_ok=True)
        for each in threads:
            each.join()


@contextmanager
def open_journal(study: Path, settings: Settings) -> Iterator[Journal]:
    """Yield the journal of a new study, or of the one to resume. UserError: it cannot be opened, or more than the cap
    is spent."""
    if settings.resume:
        check_plain(study)
    with Journal(study, new=not settings.resume) as journal:
        close_what_a_kill_left_open(journal)
        if settings.budget < spent(journal):
            raise settings.spent_cap_error(spent(journal))
        yield journal


def conclude(
    context: SearchContext, engine: Engine, tensorboard: TensorBoard, listeners: Sequence[Listener]
) -> Iterator[str]:
    """Copy the winners to where people look for them, let them write samples, and yield lines on what was found.

    The listeners are told of the end once the last second is charged.
    """
    journal, ledger, settings = engine.accounting.journal, engine.accounting.ledger, context.settings
    ours, scores = context.loop is None and context.listed is None, dict[str, Score]()
    near = settings.deadline is not None and engine.wall_left() < (1 - NEAR) * settings.deadline
    if ours:
        scores = yield from keep_winners(context, engine, tensorboard)
    best = None if context.loop is None else keep_best(context.loop, journal)
    for listener in listeners:
        listener.on_close(engine)
    ended = {"reason": engine.ended_by, "spent": ledger.spent, "near_deadline": near, **settings.terms}
    wall = engine.wall_clock
    journal.write_facts(ended=ended | {"wall_clock": wall if math.isfinite(wall) else None})
    if ours:
        found, told_to_end = winners(journal), engine.stopping in signal.Signals.__members__
        families = [name for name in settings.families if name in found or not told_to_end]
        yield from last_lines(journal, found, scores, families)
    elif context.listed is None:
        yield from [best] if best else last_lines(journal, {}, {}, settings.families)
    else:
        yield from conclude_list(context, engine)
    yield from spending_lines(journal, cap=settings.budget, spent=ledger.spent, price=settings.price_per_hour)
    if context.listed and journal.rows("SELECT 1 FROM reports WHERE final LIMIT 1"):
        yield f"draw it: {script_command('analysis/plot.py')} experiment {shlex.quote(str(journal.folder))}"
    if engine.cut_off:
        later = {"deadline": "LATER"} if engine.cut_off == "deadline" else {}
        yield f"ended by {engine.cut_off}; go on with: {settings.resume_command(journal.folder, **later)}"


def conclude_list(context: SearchContext, engine: Engine) -> Iterator[str]:
    """Yield lines on the trials of a list together, on those that failed, and on what the cap did not pay for."""
    journal, settings, listed = engine.accounting.journal, context.settings, context.listed
    assert listed is not None
    yield from listed.lines(journal)
    policies = [family.policy for family in engine.families.values() if isinstance(family.policy, ListPolicy)]
    left = [each for policy in policies for each in policy.left_out]
    failed = journal.rows(f"SELECT trial, config, reason FROM trials WHERE {FAILED} ORDER BY trial")
    if failed:
        first = "; ".join(f"{label(json.loads(row['config']))}: {row['reason']}" for row in failed[:MAX_NAMED_CONFIGS])
        yield f"{len(failed)} failed: {first}{'; ...' if len(failed) > MAX_NAMED_CONFIGS else ''}"
    if left and any(family.policy.is_hopeless for family in engine.families.values()):
        yield f"{len(left)} of {len(listed.listed)} left out, as the first failed with one error"
    elif left and not engine.cut_off:
        named = ", ".join(label(each.config) for each in left[:MAX_NAMED_CONFIGS])
        which = f"{named}{', ...' if len(left) > MAX_NAMED_CONFIGS else ''}"
        how = f"a larger --budget goes on with them: {settings.resume_command(journal.folder, budget='MORE')}"
        yield f"{len(left)} of {len(listed.listed)} left out, as the cap does not pay for them: {which}; {how}"


def keep_winners(
    context: SearchContext, engine: Engine, tensorboard: TensorBoard
) -> Generator[str, None, dict[str, Score]]:
    """Export the winners of families of models to `best-FAMILY`, and let them write samples; yield a line for each that
    cannot be kept. Return the scores of those that translate."""
    journal, data, kind = engine.accounting.journal, context.data, context.devices.kind
    study, kept, scores = journal.folder, dict[str, Winner](), dict[str, Score]()
    for family, winner in winners(journal).items():
        try:
            into, tokenizer = study / f"best-{family}", data[family].tokenizer
            export(winner.checkpoint, into, tokenizer, averaged=winner.averaged)
            kept[family] = winner
        except DamagedCheckpoint as error:
            yield f"{family}: the best trial cannot be kept in best-{family}: {error}"
    if not engine.stopping:
        try:
            with interruptible():
                scores = write_samples(kept, engine, data, kind=kind)
        except KeyboardInterrupt as interrupt:
            engine.stopping = str(interrupt)
    for family, score in scores.items():
        tensorboard.translated(engine, kept[family].trial, score)
    note_prospects(context.settings, engine)
    return scores
