"""Run a study of one experiment, from its settings to its tables: the points without a row are measured, each on a
group of workers and all within the cap, and TensorBoard shows the rows."""

import json
import shlex
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import ray
from tensorboard.plugins.text.summary_v2 import text_pb

from tune.backend.session import check_no_ray, local_ray
from tune.backend.worker_group import LeaseOver, RankSetup, Task, WorkerGroup, start_mailbox
from tune.display.console import LineWriter, Progress, redirect_output
from tune.display.tensorboard import EventFile, SystemRun, scalar
from tune.errors import script_command
from tune.experiments.base import (
    END_SECONDS,
    START_SECONDS,
    Experiment,
    ExperimentContext,
    ExperimentSettings,
    Point,
    Row,
    Trials,
    affordable_points,
    affordable_share,
    groups,
    make_experiment_context,
    price,
)
from tune.experiments.lists import run_list
from tune.experiments.tables import final_tables, lines_of
from tune.facts import check_same_kind, check_same_text, facts_of, note_facts
from tune.machine import write_whole
from tune.registry import pickle_families_by_value
from tune.search.resume import damage_as_user_error, last_moment, note_cap, spent
from tune.signals import StopSignal, interruptible
from tune.store import heartbeat
from tune.store.accounting import Accounting, Hold, Ledger
from tune.store.journal import Journal
from tune.store.queries import EXPERIMENT_ROWS_QUERY, last_rows
from tune.study import open_journal, study_folder
from tune.table_text import markdown
from tune.units import duration_text, whole_text

LATE_SECONDS = 60.0
"""Seconds that a lease has beyond what a group should take, where the cap pays for them: on a busy machine processes
start late."""
MOST_TIMES = 2.0
"""Largest multiple of its worth that a point gets, where points before it left seconds over."""
OVERDUE = "its processes were still at work when their lease ended: give a larger --budget with --resume"
TOO_LATE = "what was left of the cap did not pay for it: give a larger --budget with --resume"


@dataclass(frozen=True, kw_only=True)
class PointRunner:
    """Measures the points of an experiment on a Ray that is up. trials: those that everything is charged to; write:
    takes a line for the user."""

    experiment: Experiment
    context: ExperimentContext
    accounting: Accounting
    trials: Trials
    write: LineWriter

    @cached_property
    def _events(self) -> EventFile:
        """The TensorBoard run of the experiment, which bears its name."""
        return EventFile(self.accounting.journal.folder / "tensorboard" / self.experiment.name)

    @cached_property
    def _system(self) -> SystemRun:
        return SystemRun(self.accounting.journal.folder / "tensorboard")

    @cached_property
    def _progress(self) -> Progress:
        return Progress(self.write)

    @cached_property
    def _shared_data(self) -> Any:
        """The data, put into Ray once for all groups."""
        return ray.put(self.context.data)

    def rows(self) -> list[Row]:
        """Return the last row of each point, in the order of the points; then what was measured of points that followed
        from fewer rows and do not any more, or on a number of devices that none is on here."""
        found, points = self._found(), [*self.context.points, *self._further()]
        here = {point.devices for point in points}
        measured = {key: row for key, row in found.items() if "skipped" not in row}
        follows, divides = bool(self.experiment.further), self.experiment.divides
        once = [key for key, row in measured.items() if follows or not (divides or row["devices"] in here)]
        keys = dict.fromkeys([*(point.key for point in points), *once])
        return [found[key] for key in keys if key in found]

    def _rows(self, points: Sequence[Point]) -> list[Row]:
        found = self._found()
        return [found[point.key] for point in points if point.key in found]

    def _found(self) -> dict[str, Row]:
        """Return the last row of each point that has one, by the point's key."""
        return last_rows(self.accounting.journal.rows(EXPERIMENT_ROWS_QUERY, self.experiment.name))

    def _further(self) -> list[Point]:
        """Return the points that follow from the first ones, once each of these has its row."""
        rows = self._rows(self.context.points)
        further = self.experiment.further
        return further(rows) if further and len(rows) == len(self.context.points) else []

    def measure(self) -> None:
        """Give each point that has none its row: measured, or skipped where the cap does not pay for it."""
        self._measure(self.context.points)
        self._measure(self._further())

    def _measure(self, points: Sequence[Point]) -> None:
        in_turn = [point for group in groups(points) for point in group]
        left = unmeasured(in_turn, self.accounting.journal, self.experiment.name)
        while count := affordable_points(left, self.accounting.ledger.left):
            share = affordable_share(left[:count], self.accounting.ledger.left)
            first, *others = groups(left[:count])
            left = left[self._measured(first, share, price([point for group in others for point in group], share)) :]
        known = {row["key"] for row in self.rows()}
        for point in left:
            if point.key not in known:  # else the row that it has says more
                self._keep(point, {"skipped": TOO_LATE})

    def conclude(self) -> None:
        """Show the tables of all rows, on the screen and on TensorBoard."""
        tables = final_tables(self.experiment, self.rows())
        for line in lines_of(tables):
            self.write(line)
        for table in tables:
            self._events.add(*text_pb(table.title, markdown(replace(table, title=""))).value, step=0)

    def _measured(self, group: Sequence[Point], share: float, later: float) -> int:
        """Measure a group's points in turn, until its processes are lost or its time is over; return how many have a
        row now. later: the price of the other groups. LeaseOver: the lease ended while they were at work."""
        devices, done = group[0].devices, 0
        slots = self.context.devices.slots_of(devices)
        seconds = START_SECONDS + END_SECONDS + sum(point.seconds_at(share) for point in group) + LATE_SECONDS
        longest, again = self.accounting.ledger.affordable(None, slots), self._keys_with_rows(group)
        seconds = min(max(seconds, longest - later / devices) if again else seconds, longest)
        first = self.trials.trial_of(group[0])
        with Hold(self.accounting, first, self.experiment.name, devices=slots, seconds=seconds) as hold:
            try:
                with self._group(devices, hold) as workers:
                    workers.wait_until_ready()
                    while done < len(group):
                        others = sum(point.seconds_at(share) for point in group[done + 1 :])
                        worth, retried = group[done].seconds_at(share), group[done].key in again
                        seconds, after = hold.seconds_left - END_SECONDS, later + devices * others
                        seconds = allotted(worth, seconds, others, last=after == 0, retried=retried)
                        if done and seconds < group[done].least_seconds:
                            break  # what was late took its time: the cap may pay for another hold
                        workers.watch = partial(self._watch, group[done], self.accounting.clock(), seconds, after)
                        self._ask(workers, group[done], seconds)
                        done += 1
            except RuntimeError as error:
                hold.charge("lost")
                self._keep(group[done], {"skipped": f"{error}: go on with --resume"})
                done += 1
            except LeaseOver:
                for point in group[done : done + 1]:  # none, where all are done and the processes are late to end
                    self._keep(point, {"skipped": OVERDUE})
                raise
        return done

    def _keys_with_rows(self, points: Sequence[Point]) -> set[str]:
        """Return the keys of the points that were skipped before, and not for want of money alone."""
        stored = self.accounting.journal.rows(EXPERIMENT_ROWS_QUERY, self.experiment.name)
        rows = [json.loads(value) for (value,) in stored]
        return {row["key"] for row in rows if row.get("skipped") != TOO_LATE} & {point.key for point in points}

    def _watch(self, point: Point, began: float, seconds: float, later: float) -> None:
        """Show what is under way; called every second."""
        self._system.write_figures(self.accounting.ledger.spent)
        passed = self.accounting.clock() - began
        after = f"; then at most {whole_text(later)} of a device for the others" if later else ""
        self._progress(f"{point.devices} x {point.text}: {passed:.0f} s of at most {seconds:.0f} s{after}")

    def _ask(self, group: WorkerGroup, point: Point, seconds: float) -> None:
        if seconds < point.least_seconds:
            self._keep(point, {"skipped": TOO_LATE})
            return
        trial = group.hold.trial = self.trials.begin(point)
        asked = point.asked | self.experiment.settings_for(point, self.rows())
        row = group.do(Task(asked=asked, changes=point.config, trial=trial, seconds=seconds))
        self._keep(point, row | {"start_up_seconds": group.start_up_seconds})

    @contextmanager
    def _group(self, devices: int, hold: Hold) -> Iterator[WorkerGroup]:
        """Yield the group of processes of a hold. They are gone before the hold ends: dismissed or dead, or else ended
        with their Ray."""
        assert self.experiment.work is not None
        folder = self.accounting.journal.folder / "checkpoints"
        setup = RankSetup(
            work=self.experiment.work, mailbox=start_mailbox(), config=self.context.config, data=self._shared_data,
            folder=folder, families=pickle_families_by_value(), ends=hold.moment,
        )  # fmt: skip
        group = WorkerGroup(devices, setup, self.context.devices.gpus, hold)
        try:
            yield group
            group.shut_down()
        except RuntimeError:
            raise
        except BaseException:
            ray.shutdown()
            raise

    def _keep(self, point: Point, row: Row) -> None:
        known = {"key": point.key, "devices": point.devices, "asked": point.asked, "config": dict(point.config)}
        whole = known | {"trial": self.trials.trial_of(point)} | row
        if "skipped" not in row or not any_measured(self._rows([point])):  # else the row that it has says more
            named = {"experiment": self.experiment.name, "value": json.dumps(whole)}
            self.accounting.journal.insert("rows", {"at": self.accounting.clock(), **named})
            for name, text in self.experiment.files(self.rows()).items():
                write_whole(self.accounting.journal.folder / name, text)
            self._draw(whole)
        result = f"skipped: {row['skipped']}" if "skipped" in row else self.experiment.line(whole)
        self.write(f"{point.devices} x {point.text}: {result}")
        self.trials.measured(point, row)

    def _draw(self, row: Row) -> None:
        """Write the numbers of a row to TensorBoard, of its intervals, which are tuples, the first, and no lists, under
        names of what was asked and of the configuration."""
        asked = " ".join(str(value) for value in {**row["asked"], **row["config"]}.values())
        figures = {name: value[0] if isinstance(value, tuple) else value for name, value in row.items()}
        numbers = {name: value for name, value in figures.items() if isinstance(value, int | float)}
        self._events.add(*(scalar(f"{asked}/{name}", value) for name, value in numbers.items()), step=row["devices"])


def allotted(worth: float, left: float, others: float, *, last: bool = False, retried: bool = False) -> float:
    """Return the seconds that a point gets of those left to its group: what it is worth and what points before it left
    over, up to MOST_TIMES its worth; one that is retried, as it had too little, all but what the points after it are
    worth. others: that; last: whether none comes after it, in another group either."""
    spare = left - others - (LATE_SECONDS if others or not (last or retried) else 0.0)
    spare = spare if retried else min(MOST_TIMES * worth, spare)
    return min(max(worth, spare), left)


def unmeasured(points: Sequence[Point], journal: Journal, experiment: str) -> list[Point]:
    """Return the points without a row, those that were skipped for a reason that --resume remedies, and those that are
    not `resolved`, as their time was over."""
    rows = last_rows(journal.rows(EXPERIMENT_ROWS_QUERY, experiment))
    done = {key for key, row in rows.items() if "--resume" not in str(row.get("skipped")) and row.get("resolved", True)}
    return [point for point in points if point.key not in done]


LARGER_BUDGET = "go on with a larger --budget"


def missing(points: Sequence[Point], journal: Journal, experiment: str, go_on: str) -> Iterator[str]:
    """Yield lines on the points that were not measured, or not to the end: those that going on measures, and those that
    it does not. go_on: the command."""
    rows, left = last_rows(journal.rows(EXPERIMENT_ROWS_QUERY, experiment)), unmeasured(points, journal, experiment)
    never = [point for point in points if point not in left and "skipped" in rows[point.key]]
    how = f"; {LARGER_BUDGET}: {go_on} --budget MORE"
    for which, what, remedy in ((left, "not measured, or not to the end", how), (never, "cannot be measured here", "")):
        if which:
            names = "; ".join(f"{point.devices} x {point.text}" for point in which)
            yield f"{len(which)} of {len(points)} {what}: {names}{remedy}"


def run_experiment(experiment: Experiment, settings: ExperimentSettings) -> int:
    """Run an experiment; return the exit code. UserError, with nothing written: a setting cannot be used."""
    assert not settings.plan, "a plan spends nothing"
    if experiment.work is None:
        return run_list(experiment, settings)
    check_no_ray()
    context = make_experiment_context(experiment, settings)
    text = {context.settings.family: context.data}
    facts = facts_of(context.settings, context.devices, text, experiment=experiment.name)
    with study_folder(context.settings, facts) as (study, stop_signal):
        return conduct(experiment, context, study, stop_signal)


def conduct(experiment: Experiment, context: ExperimentContext, study: Path, stop_signal: StopSignal) -> int:
    """Run an experiment in the folder of its study, new or resumed; return the exit code: after a signal 128 plus its
    number."""
    settings, devices, ended, stopped_by = context.settings, context.devices, "done", 0
    with open_journal(study, settings) as journal, redirect_output(study / "log.txt") as write:
        with damage_as_user_error(journal):
            check_same_text({settings.family: context.data}, journal.facts())
            check_same_kind(devices, journal.facts())
        write(f"{study}: {duration_text(settings.budget)} on {devices.slots} x {devices.name}")
        for note in context.notes:
            write(note)
        bench = make_point_runner(experiment, context, journal, write)
        try:
            with heartbeat.run_driver_heartbeat(study, bench.accounting.clock), local_ray(devices.slots, devices.gpus):
                if stop_signal.name:
                    raise KeyboardInterrupt(stop_signal.name)
                with interruptible():
                    bench.measure()
        except KeyboardInterrupt as error:
            ended, stopped_by = "interrupted", signal.Signals.__members__.get(str(error), signal.SIGINT)
        except LeaseOver:
            ended = "overdue: the processes were still at work when their lease ended"
        bench.trials.pause(ended.partition(":")[0])
        bench.conclude()
        used = bench.accounting.ledger.spent
        journal.write_facts(ended={"reason": ended, "spent": used})
        write(f"spent {duration_text(round(used, 1))} of {duration_text(settings.budget)}")
        for line in what_shows(study, bench.rows()):
            write(line)
        go_on = settings.resume_command(study)
        left = missing(context.points, journal, experiment.name, go_on)
        for line in left if ended == "done" else [f"{ended}; {remedy(ended, go_on)}"]:
            write(line)
        return 128 + stopped_by if stopped_by else exit_code(ended, bench.rows())


def what_shows(study: Path, rows: Sequence[Row]) -> Iterator[str]:
    """Yield lines with the commands that show an experiment's rows, once one is measured."""
    if any_measured(rows):
        folder = shlex.quote(str(study))
        yield f"draw it: {script_command('analysis/plot.py')} experiment {folder}"
        yield f"its tables for a report: {script_command('tune/experiment.py')} --tables {folder} --latex"


def any_measured(rows: Sequence[Row]) -> bool:
    """Whether any of these rows was measured, not skipped."""
    return any("skipped" not in row for row in rows)


def remedy(ended: str, go_on: str) -> str:
    """Return how to go on with what did not end by itself: with the same cap only after an interrupt. go_on: the
    command."""
    return f"go on with: {go_on}" if ended == "interrupted" else f"{LARGER_BUDGET}: {go_on} --budget MORE"


def exit_code(ended: str, rows: Sequence[Row]) -> int:
    """Return the exit code of an experiment with these rows: 0 where it went through and measured anything."""
    return 0 if ended == "done" and any_measured(rows) else 1


def make_point_runner(
    experiment: Experiment, context: ExperimentContext, journal: Journal, write: LineWriter
) -> PointRunner:
    """Return the runner of a study's points, on a clock that goes on where the journal ends; note cap and facts in the
    journal."""
    settings, begun, before = context.settings, time.monotonic(), last_moment(journal)

    def clock() -> float:
        return before + time.monotonic() - begun

    ledger = Ledger(cap=settings.budget, clock=clock, spent_before=spent(journal), share=context.devices.share)
    note_cap(journal, settings.budget)
    text = {settings.family: context.data}
    note_facts(facts_of(settings, context.devices, text, experiment=experiment.name), journal)
    journal.write_facts(ended=None)
    (journal.folder / heartbeat.HEARTBEAT_FOLDER).mkdir(exist_ok=True)
    return PointRunner(
        experiment=experiment, context=context, accounting=Accounting(journal, ledger, clock),
        trials=Trials(journal, context.config, clock), write=write,
    )  # fmt: skip
