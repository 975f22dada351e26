"""The state of a search: what its events made of its trials and families.

Each event changes it here and nowhere else, both while a search runs and where its journal is read: restoring is
replaying. Events are told as reports and as rows of the journal, in device-seconds.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from tune.errors import UserError
from tune.reports import Report
from tune.search.family import Family
from tune.search.records import Assignment, Running, TrialRecord
from tune.search.successive_halving import Ladder

MOST_RUNGS = 64
"""Of a ladder: each doubles what the one below takes."""


class State:
    """running: trials on a lease, by name; cut_short: those on their way without one, and the rung (None: the end).

    folder: the study's, in which checkpoints are; share: the device-seconds in a second of a slot.
    """

    def __init__(self, families: Mapping[str, Family], folder: Path, share: float) -> None:
        self.families, self._folder, self.share = families, folder, share
        self.trials: dict[str, TrialRecord] = {}
        self.running: dict[str, Running] = {}
        self.cut_short: dict[str, int | None] = {}
        self._slots: set[int] = set()
        self._processor: str | None = None

    def leased(self, row: Mapping[str, Any]) -> Running:
        """A trial was given a lease: its first, for its next rung or its last stretch, or to go on with what it had."""
        trial, rung, slot = row["trial"], row["rung"], row["slot"]
        record = self.trials[trial]
        family = self.families[record.family]
        if trial in self.cut_short:
            del self.cut_short[trial]
        else:
            family.refusals = family.refusals if trial in family.policy.trials else 0
        record.goal = row["goal"]
        record.micro_batches = row["micro_batches"] or family.memory.micro_batches(record.config) or 1
        if rung is None:
            family.policy.finishing(trial)
        else:
            family.policy.promoted(trial, rung, row["price"] / self.share)
        counted = rung is None or record.goal is not None
        assignment = Assignment(
            trial=trial, family=record.family, config=record.config, slot=slot, lease=row["lease"], rung=rung,
            opened=row["opened"], seconds=row["reserved"] / self.share, steps=record.goal,
            training_seconds=None if counted else family.policy.rung_seconds(rung), checkpoint=record.checkpoint,
            micro_batches=record.micro_batches,
        )  # fmt: skip
        self.running[trial] = Running(
            assignment=assignment, fresh_slot=slot not in self._slots, steps_before=record.steps,
            micro_batches=record.micro_batches,
        )  # fmt: skip
        self._slots.add(slot)
        return self.running[trial]

    def closed(self, trial: str, charged: float) -> Running:
        """A lease is over, for which so much was charged; the trial is on its way until more is known."""
        run = self.running.pop(trial)
        self.families[run.assignment.family].charged += charged / self.share
        self.cut_short[trial] = run.assignment.rung
        return run

    def ended(self, run: Running, report: Report) -> str | None:
        """The last report of a lease that is closed. Returns why the trial should be stopped, if it should."""
        assignment, valid = run.assignment, report.valid
        trial, family, record = assignment.trial, self.families[assignment.family], self.trials[assignment.trial]
        record.steps = report.steps
        record.checkpoint = str(self._folder / report.checkpoint) if report.checkpoint else record.checkpoint
        record.step_seconds = record.step_seconds or report.step_seconds
        family.step_seconds = family.step_seconds or report.step_seconds
        if report.step_seconds:
            family.prices.learn(run, slowdown=report.step_seconds / (record.step_seconds or 1.0))
        if report.ended == "rung" and valid is not None:
            del self.cut_short[trial]
            family.reached(trial, assignment.rung or 0, valid.loss)
        elif report.ended == "final" and valid is not None:
            del self.cut_short[trial]
            family.policy.finished(trial)
        elif report.ended == "diverged":
            return "diverged"
        elif report.ended == "unmeasured":
            return "memory: ran out of it in the evaluation at its end"
        elif report.ended != "stopped" and record.steps <= run.steps_before:
            return "price: its lease paid for no step"
        return None

    def waits(self, trial: str) -> None:
        """What is left does not pay for a trial that was cut short: it waits where it was before."""
        del self.cut_short[trial]
        self.families[self.trials[trial].family].policy.interrupted(trial)

    def stopped(self, trial: str, reason: str) -> None:
        """A trial is over for good, also one that was never begun because it does not fit in memory."""
        family = self.families[self.trials[trial].family]
        self.cut_short.pop(trial, None)
        if trial in family.policy.trials:
            family.policy.ended(trial, reason)
        else:
            family.refusals += 1
        family.suggestions.tell(trial, 0, None)

    def agreed(self, row: Mapping[str, Any], *, new: bool) -> None:
        """From now on the study has another cap or deadline (in `families`: what that makes of each contest; one of a
        `new` study was made so), or another processor, of which no price is known."""
        for name, terms in row.get("families", {}).items() if not new else ():
            if ladder := ladder_of(terms):
                self.families[name].policy.refit(ladder)
        if row.get("processor") != self._processor and self._processor is not None:
            for family in self.families.values():
                family.prices.forget()
        self._processor = row.get("processor")

    def digest(self) -> dict[str, str]:
        """A digest of each part of the state. Steps and checkpoints of trials are the disk's to tell."""
        on_their_way = self.cut_short | {trial: run.assignment.rung for trial, run in self.running.items()}
        records = {
            trial: [each.family, each.step_seconds, each.goal, each.deaths, each.micro_batches]
            for trial, each in self.trials.items()
        }
        parts: dict[str, Any] = {"trials": records, "on their way": on_their_way}
        for name, family in self.families.items():
            parts |= {f"{part} of {name}": value for part, value in family.state().items()}
        return {part: _hash(value) for part, value in parts.items()}


def ladder_of(terms: Mapping[str, Any] | None) -> Ladder | None:
    """Of what was agreed for a family; None where an earlier version left the ladder out. UserError: it is none."""
    if not terms or "ladder" not in terms:
        return None
    told = terms["ladder"]
    names = {each.name for each in fields(Ladder)}
    whole = isinstance(told, dict) and {*told, "life"} == names
    sound = whole and isinstance(told["top"], int) and told["top"] <= MOST_RUNGS
    if not sound or not all(0 <= value < math.inf for value in told.values()) or told["first"] == 0:
        raise UserError("--resume: damaged journal: a ladder that it tells of cannot be climbed: begin anew")
    return Ladder(**told)


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]
