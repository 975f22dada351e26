"""The state of a search: what its events made of its trials and families.

Each event changes it here and nowhere else, both while a search runs and where its journal is read: restoring is
replaying. Events come as reports and as rows of the journal, whose seconds are device-seconds.
"""

import hashlib
import json
import math
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Self

from tune.reports import Report
from tune.search.family import Family, TrialRecord
from tune.search.forecast import Progress
from tune.search.ladder import Ladder
from tune.store.accounting import Assignment, RunningLease
from tune.store.journal import Fact, Journal, as_mapping

MOST_ETA = 16.0
"""Largest eta of a ladder that a journal may have."""
MOST_RUNGS = 64
"""Highest top rung of a ladder that a journal may have: each takes eta times what the one below takes."""


@dataclass(frozen=True, kw_only=True)
class AgreedTerms:
    """The terms of a study from a moment on, as `caps` of its journal has them.

    at: that moment; seconds: the cap; deadline: in seconds from the study's start; stop_below_gain: nats a device-hour
    (None: no least gain is asked for); families: where cap or deadline differ from before, or a smaller gain is asked
    for, what each may use, in seconds of a slot, and its ladder; decision, report: numbers of the last ones before.
    """

    at: float
    seconds: float
    deadline: float | None = None
    stop_below_gain: float | None = None
    processor: str | None = None
    families: Mapping[str, tuple[float, Ladder]] = field(default_factory=dict)
    decision: float = 0
    report: float = 0

    @classmethod
    def read(cls, fact: Fact) -> Self:
        """Read what `to_json` returned. LookupError, TypeError, ValueError: it says something impossible."""
        terms = as_mapping(fact)
        numbers = ("at", "seconds", "deadline", "stop_below_gain", "decision", "report")
        known = {name: number(terms[name]) for name in numbers if terms.get(name) is not None}
        if not known["seconds"]:
            raise ValueError(f"a cap of {terms}")
        processor = terms.get("processor")
        return cls(
            at=known.pop("at"), **known, processor=None if processor is None else str(processor),
            families={
                name: (number(as_mapping(each)["seconds"]), ladder_of(as_mapping(each)))
                for name, each in as_mapping(terms.get("families")).items()
            },
        )  # fmt: skip

    def asks_for_less(self, before: "AgreedTerms | None") -> bool:
        """Whether a smaller least gain is asked for than by the terms before (None: there were none)."""
        return before is not None and (self.stop_below_gain or 0.0) < (before.stop_below_gain or 0.0)

    def to_json(self) -> dict[str, Fact]:
        """Return them as plain data; what is not known is left out."""
        families = {
            name: {"seconds": seconds, "ladder": ladder.to_json()} for name, (seconds, ladder) in self.families.items()
        }
        known = {name: value for name, value in vars(self).items() if value is not None}
        return known | {"families": families}


def parse_agreed_terms(facts: Mapping[str, Fact]) -> list[AgreedTerms]:
    """Return the terms that a study had, the first ones first. Where they are damaged it raises what `AgreedTerms.read`
    does."""
    caps = facts.get("caps") or ()
    if not isinstance(caps, Sequence):
        raise TypeError(f"caps of {caps!r}")
    return [AgreedTerms.read(each) for each in caps]


def last_events(journal: Journal) -> tuple[int, int]:
    """Return the numbers of the last decision and of the last report of a study so far."""
    (last,) = journal.rows("""
        SELECT (SELECT IFNULL(MAX(decision), 0) FROM decisions) AS decision,
               (SELECT IFNULL(MAX(report), 0) FROM reports) AS report""")
    return last["decision"], last["report"]


class State:
    """The state of a search. running: trials on a lease, by name; cut_short: those on their way without a lease, and
    the rung (None: the end).

    folder: the study's, in which checkpoints are; share: the device-seconds in a second of a slot.
    """

    def __init__(self, families: Mapping[str, Family], folder: Path, share: float) -> None:
        self.families, self._folder, self.share = families, folder, share
        self.trials: dict[str, TrialRecord] = {}
        self.running: dict[str, RunningLease] = {}
        self.cut_short: dict[str, int | None] = {}
        self._slots: set[int] = set()
        self._terms: AgreedTerms | None = None

    def open_lease(self, row: sqlite3.Row) -> RunningLease:
        """Apply a lease that a trial was given: its first, for its next rung or its last segment, or to go on with what
        it had."""
        trial, rung, slot = row["trial"], row["rung"], row["slot"]
        record = self.trials[trial]
        family = self.families[record.family]
        if trial in self.cut_short:
            del self.cut_short[trial]
        else:
            family.refusals = family.refusals if trial in family.policy.trials else 0
        record.goal = row["goal"]
        record.micro_batches = row["micro_batches"] or family.memory.micro_batches(record.config) or 1
        if record.confirms is not None:
            family.policy.on_confirming(trial, record.confirms)
        elif rung is None:
            family.policy.on_finishing(trial)
        else:
            family.policy.on_promoted(trial, rung, row["price"] / self.share)
        counted = rung is None or record.goal is not None
        assignment = Assignment(
            trial=trial, family=record.family, config=record.config, slot=slot, lease=row["lease"], rung=rung,
            opened=row["opened"], seconds=row["reserved"] / self.share, steps=record.goal,
            training_seconds=None if counted else family.policy.rung_seconds(rung), checkpoint=record.checkpoint,
            micro_batches=record.micro_batches,
        )  # fmt: skip
        self.running[trial] = RunningLease(
            assignment=assignment, fresh_slot=slot not in self._slots, steps_before=record.steps,
            micro_batches=record.micro_batches,
        )  # fmt: skip
        self._slots.add(slot)
        family.leases[trial] = assignment.seconds
        if rung is not None:
            family.rungs_until[trial] = assignment.opened + assignment.seconds
        return self.running[trial]

    def close_lease(self, trial: str, charged: float) -> RunningLease:
        """Apply the end of a lease, for which so many device-seconds were charged; the trial is on its way until more
        is known."""
        run = self.running.pop(trial)
        family = self.families[run.assignment.family]
        family.charged += charged / self.share
        del family.leases[trial]
        if run.assignment.rung is not None:
            del family.rungs_until[trial]
        self.cut_short[trial] = run.assignment.rung
        return run

    def end_lease(self, run: RunningLease, report: Report) -> str | None:
        """Apply the last report of a lease that is closed. Returns why the trial should be stopped; None: it should
        not."""
        assignment, valid = run.assignment, report.valid
        trial, family, record = assignment.trial, self.families[assignment.family], self.trials[assignment.trial]
        record.steps = report.steps - report.lost
        record.checkpoint = str(self._folder / report.checkpoint) if report.checkpoint else record.checkpoint
        if report.step_seconds and not record.step_seconds:
            record.step_seconds = report.step_seconds
            if record.confirms is None:
                family.time(report.step_seconds)
        record.gap = max(record.gap, report.gap or 0.0)
        family.gap = max(family.gap, report.gap or 0.0)
        if report.gap is not None and family.step_seconds is None and report.step_seconds:
            family.policy.on_life_known(family.life_steps * report.step_seconds, report.gap)
        family.step_seconds = family.step_seconds or report.step_seconds
        if report.step_seconds:
            splits = () if assignment.rung is None else (report.whole, report.test)
            whole = sum(each.seconds for each in splits if each)
            slowdown = report.step_seconds / (record.step_seconds or 1.0)
            family.cost_model.learn(run, slowdown=slowdown, aside=whole + run.charged.get("lost", 0.0))
        seconds = report.steps * (record.step_seconds or 0.0)
        if report.ended == "rung" and valid is not None:
            del self.cut_short[trial]
            warm = report.steps >= family.warm_up_steps
            progress = Progress(
                size=report.parameters, tokens=report.tokens, seconds=seconds, warm=warm, gap=record.gap,
                numbers=report.numbers,
            )  # fmt: skip
            family.note_rung(trial, assignment.rung or 0, valid.loss, progress)
        elif report.ended == "final" and valid is not None:
            del self.cut_short[trial]
            beside = sum(amount for what, amount in run.charged.items() if what not in ("start", "steps"))
            family.policy.on_finished(trial, seconds, beside)
        elif report.ended == "returned" and valid is not None:
            del self.cut_short[trial]
            trained = run.charged.get("steps", 0.0) > 0  # steps before the lease: not in the journal
            if assignment.rung is not None and trained:
                family.note_rung(trial, assignment.rung, valid.loss, Progress(tokens=report.tokens, seconds=seconds))
            family.policy.on_returned(trial, trained=trained)
        elif report.ended == "turned" and report.better_evaluation is not None:
            del self.cut_short[trial]
            family.policy.on_turned(trial, report.better_evaluation.loss, seconds)
            if assignment.rung is not None:
                family.suggestions.tell(trial, assignment.rung, report.better_evaluation.loss)
        elif report.ended == "diverged":
            return "diverged"
        elif report.ended == "unmeasured":
            return "memory: ran out of it in the evaluation at its end"
        elif report.ended != "stopped" and report.numbers is not None and valid is None:
            if not record.gap or assignment.seconds >= family.longest_silence:
                why = "it hung, or restores too slowly" if record.gap else "report more often"
                return f"error: no report within its lease of {assignment.seconds:.0f} s: {why}"
            # its next report takes longer than any before: it waits for a lease that is long enough
            record.gap = max(record.gap, assignment.seconds)
        elif report.ended != "stopped" and record.steps <= run.steps_before:
            if report.numbers is not None:
                if assignment.checkpoint or not report.checkpoint:  # else it saved its step 0
                    return "price: its lease ended before its goal, and nothing new was saved"
            elif report.steps <= run.steps_before:  # else its steps were held up, and there was no time to save them
                return "price: its lease paid for no step"
        return None

    def put_back(self, trial: str) -> None:
        """Let a trial wait where it was before: what is left does not pay for the rest of its segment, or it failed."""
        self.cut_short.pop(trial, None)
        self.families[self.trials[trial].family].policy.on_interrupted(trial)

    def stopped(self, trial: str, reason: str) -> None:
        """End a trial for good, also one that was never begun because it does not fit in memory."""
        family = self.families[self.trials[trial].family]
        self.cut_short.pop(trial, None)
        reached = family.policy.trials[trial].rung if trial in family.policy.trials else -1
        if trial in family.policy.trials:
            family.policy.on_ended(trial, reason)
        else:
            family.refusals += 1
        if self.trials[trial].confirms is None:
            family.suggestions.tell(trial, reached + 1, None)

    def apply_terms(self, now: AgreedTerms, *, new: bool) -> None:
        """Apply another cap, deadline or least gain from now on (in `families`: what that makes of each; the ladders of
        a `new` study are made so already), or another processor, of which no price is known.

        Where there is more to explore, or a smaller gain is enough, a trial whose last segment was cut short waits, as
        one that had its decay does.
        """
        before, self._terms = self._terms, now
        for name, (_, ladder) in now.families.items() if not new else ():
            policy = self.families[name].policy
            if ladder.explore > policy.ladder.explore or now.asks_for_less(before):
                for trial in [trial for trial, rung in self.cut_short.items() if rung is None]:
                    if self.trials[trial].family == name and self.trials[trial].confirms is None:
                        self.put_back(trial)
            policy.refit(ladder)
        if before is not None and before.processor not in (None, now.processor):
            for family in self.families.values():
                family.cost_model.reset()
                family.timed = min(1, family.timed)  # their mean counts as one trial of the new processor

    def digest(self) -> dict[str, str]:
        """Return a digest of each part of the state, without steps and checkpoints of trials, which the disk tells."""
        on_their_way = self.cut_short | {trial: run.assignment.rung for trial, run in self.running.items()}
        records = {
            trial: [
                *(each.family, each.step_seconds, each.goal, each.deaths, each.micro_batches),
                *([each.gap] if each.gap else []),
            ]
            for trial, each in self.trials.items()
        }
        parts: dict[str, object] = {"trials": records, "on their way": on_their_way}
        for name, family in self.families.items():
            parts |= {f"{part} of {name}": value for part, value in family.state().items()}
        texts = {part: json.dumps(value, sort_keys=True).encode() for part, value in parts.items()}
        return {part: hashlib.sha256(text).hexdigest()[:12] for part, text in texts.items()}


OPTIONAL_LADDER_FIELDS = ("life", "confirm", "own", "slots", "within", "deadline")
"""Fields of a ladder that are not told where they are infinite or the journal is an earlier version's."""


def ladder_of(terms: Mapping[str, Fact]) -> Ladder:
    """Read the ladder that was agreed for a family. ValueError: it is damaged."""
    stored = as_mapping(terms["ladder"])
    known = {name: number(value) for name, value in stored.items() if name != "top"}
    top, whole = stored.get("top"), {*stored, *OPTIONAL_LADDER_FIELDS} == {each.name for each in fields(Ladder)}
    sound = whole and isinstance(top, int) and 0 <= top <= MOST_RUNGS and known["first"] > 0
    if not sound or not (1 < known["eta"] <= MOST_ETA and known["fall_kept"] < 1 and known.get("life", 1.0) > 0):
        raise ValueError("a ladder that it tells of cannot be climbed")
    assert isinstance(top, int)
    return Ladder(top=top, **known)


def number(fact: Fact) -> float:
    """Return a number that a fact holds. ValueError: it is no number, or none that a study can have."""
    if not isinstance(fact, int | float) or not 0 <= fact < math.inf:
        raise ValueError(f"{fact!r} cannot be")
    return fact
