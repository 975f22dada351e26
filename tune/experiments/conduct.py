"""A study of one experiment, from its settings to its tables."""

import signal
import time
from pathlib import Path

from tune.backend.session import local_ray
from tune.backend.worker_group import LeaseOver
from tune.display.console import Voice, last_word, screen_apart
from tune.errors import called, told_in_one_line
from tune.experiments.base import Experiment, ExperimentContext, ExperimentSettings, Trials, survey
from tune.experiments.lists import run_list
from tune.experiments.runner import Bench
from tune.search.resume import last_moment, note_cap, spent, undamaged
from tune.search_context import check_same_text, facts_of, note_facts, write_facts
from tune.signals import Told, ended_in_order, interruptible
from tune.store import heartbeat
from tune.store.accounting import Accounting, Ledger
from tune.store.journal import Journal
from tune.study import SILENT_END, interrupted_at_once, open_journal
from tune.units import duration_text

INTERRUPTED = 128 + signal.SIGINT
"""The exit code of a shell's."""


def run_experiment(experiment: Experiment, settings: ExperimentSettings) -> int:
    """The exit code. UserError, with nothing written: a setting that cannot serve."""
    assert not settings.plan, "a plan spends nothing"
    if experiment.work is None:
        return run_list(experiment, settings)
    context = survey(experiment, settings)
    text = {context.settings.family: context.data}
    facts = facts_of(context.settings, context.devices, text, experiment=experiment.name)
    with ended_in_order() as told:
        study = context.settings.resume or context.settings.make_folder()
        how = go_on(experiment, study)
        last = last_word(f"{study}: {SILENT_END}; {how}")
        with told_in_one_line(f"--resume {study}"), interrupted_at_once(how), last:
            if not context.settings.resume:
                write_facts(facts, study)
            return conduct(experiment, context, study, told)


def go_on(experiment: Experiment, study: Path) -> str:
    """How to."""
    return f"go on with: {called('tune/experiment.py')} {experiment.name} --resume {study}"


def conduct(experiment: Experiment, context: ExperimentContext, study: Path, told: Told) -> int:
    """As run_experiment, in a folder that was made for it or that it has."""
    settings, devices, ended = context.settings, context.devices, "done"
    with open_journal(study, settings) as journal, screen_apart(study / "log.txt") as write:
        with undamaged(journal):
            check_same_text({settings.family: context.data}, journal.facts())
        write(f"{study}: {duration_text(settings.budget)} on {devices.slots} x {devices.name}")
        for note in context.notes:
            write(note)
        bench = make_bench(experiment, context, journal, write)
        try:
            with heartbeat.beating(study, bench.accounting.clock), local_ray(devices.slots, devices.gpus):
                if told.name:
                    raise KeyboardInterrupt(told.name)
                with interruptible():
                    bench.measure()
        except KeyboardInterrupt:
            ended = "interrupted"
        except LeaseOver:
            ended = "overdue: the processes were still at work when their lease ended"
        bench.conclude()
        used = bench.accounting.ledger.spent
        journal.note(ended={"reason": ended, "spent": used})
        write(f"spent {duration_text(round(used, 1))} of {duration_text(settings.budget)}")
        write(f"draw it: {called('analysis/plot.py')} experiment {study}")
        write(f"its tables for a report: {called('tune/experiment.py')} --tables {study} --latex")
        if ended != "done":
            write(f"{ended}; {go_on(experiment, study)}")
    return {"done": 0, "interrupted": INTERRUPTED}.get(ended, 1)


def make_bench(experiment: Experiment, context: ExperimentContext, journal: Journal, write: Voice) -> Bench:
    """On a clock that goes on where the journal ends."""
    settings, begun, before = context.settings, time.monotonic(), last_moment(journal)

    def clock() -> float:
        return before + time.monotonic() - begun

    ledger = Ledger(cap=settings.budget, clock=clock, spent_before=spent(journal), share=context.devices.share)
    note_cap(journal, settings.budget)
    text = {settings.family: context.data}
    note_facts(facts_of(settings, context.devices, text, experiment=experiment.name), journal)
    (journal.folder / heartbeat.FOLDER).mkdir(exist_ok=True)
    return Bench(
        experiment=experiment, points=context.points, config=context.config, data=context.data,
        devices=context.devices, accounting=Accounting(journal, ledger, clock),
        trials=Trials(journal, context.config, clock), folder=journal.folder, write=write,
    )  # fmt: skip
