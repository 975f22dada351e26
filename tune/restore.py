"""Going on with a study: what its journal says happened, told again to a new planner.

The journal is read as a stranger's: trials have names of one form, and paths are made of them, never read.
"""

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

from model import checkpoint as checkpoints
from tune.heartbeats import last_beat, still_there
from tune.journal import Journal
from tune.planner import Planner
from tune.records import TrialRecord

TRIAL_NAME = re.compile(r"t\d{3,9}")


def close_what_a_kill_left_open(journal: Journal) -> None:
    """Charge what was open when the driver died up to its last sign of life, and end processes left over."""
    end = last_moment(journal)
    with journal.transaction():
        for lease in journal.rows("SELECT * FROM leases WHERE closed IS NULL"):
            beat = last_beat(journal.folder, lease["trial"]) if TRIAL_NAME.fullmatch(lease["trial"]) else None
            if beat and beat["lease"] == lease["lease"]:
                if still_there(beat):
                    os.kill(beat["pid"], signal.SIGKILL)
                end = max(end, min(beat["at"], lease["opened"] + lease["reserved"]))
            known = journal.rows("SELECT TOTAL(seconds) AS known FROM charges WHERE lease = ?", lease["lease"])[0][
                "known"
            ]
            charged = max(known, end - lease["opened"])
            to = {name: lease[name] for name in ("slot", "trial", "lease")}
            journal.insert("charges", to | {"at": end, "what": "lost", "seconds": charged - known})
            journal.update("leases", lease["lease"], {"closed": lease["opened"] + charged, "charged": charged})
            journal.update("trials", lease["trial"], {"state": "paused", "reason": "killed"})
        for slot in journal.rows("SELECT * FROM slots WHERE closed IS NULL"):
            known = journal.rows("SELECT TOTAL(seconds) AS known FROM charges WHERE slot = ?", slot["slot"])[0]["known"]
            closed = max(end, slot["opened"] + known)
            journal.insert(
                "charges", {"at": end, "slot": slot["slot"], "what": "idle", "seconds": closed - slot["opened"] - known}
            )
            journal.update("slots", slot["slot"], {"closed": closed})


def last_moment(journal: Journal) -> float:
    """The study's clock at the last thing that was written down."""
    columns = {"reports": "at", "charges": "at", "decisions": "at", "leases": "closed", "slots": "closed"}
    return max(
        journal.rows(f"SELECT IFNULL(MAX({column}), 0) AS at FROM {table}")[0]["at"]
        for table, column in columns.items()
    )


def spent(journal: Journal) -> float:
    """Device-seconds of all slots, which must be closed."""
    return float(journal.rows("SELECT TOTAL(closed - opened) AS spent FROM slots")[0]["spent"])


def restore(planner: Planner, journal: Journal) -> None:
    """Bring a new planner to where the study stood: every trial, every rung, in the order in which it came about."""
    for row in journal.rows("SELECT * FROM trials ORDER BY trial"):
        if not TRIAL_NAME.fullmatch(row["trial"]) or row["family"] not in planner.families:
            raise ValueError(
                f"--resume: {str(journal.folder)!r} has a damaged journal: no trial is named {row['trial']!r}"
            )
        record = TrialRecord(family=row["family"], config=json.loads(row["config"]))
        planner.trials[row["trial"]] = record
        planner.families[row["family"]].suggestions.tried(row["trial"], record.config)
    for event in events(journal):
        tell(planner, event)
    for name, family in planner.families.items():
        query = "SELECT TOTAL(charged) AS charged FROM leases JOIN trials USING (trial) WHERE family = ?"
        family.charged = journal.rows(query, name)[0]["charged"]
        if planner.books.ledger.cap > journal.facts()["cap_seconds"]:
            family.contest.refit(family.seconds)
    for trial, record in planner.trials.items():
        take_up_checkpoint(journal.folder / "checkpoints" / trial, record)


def events(journal: Journal) -> list[dict[str, Any]]:
    """Leases, rungs reached, decays and ends of trials, in order."""
    leases = journal.rows("SELECT opened AS at, 0 AS kind, trial, purpose, rung FROM leases")
    reports = journal.rows(
        "SELECT at, 1 AS kind, * FROM reports WHERE checkpoint IS NOT NULL OR final OR rung IS NOT NULL"
    )
    ends = journal.rows("SELECT at, 2 AS kind, trial, reason FROM decisions WHERE action = 'stop'")
    return sorted((dict(row) for row in (*leases, *reports, *ends)), key=lambda event: (event["at"], event["kind"]))


def tell(planner: Planner, event: dict[str, Any]) -> None:
    """One event of the journal, as the planner heard of it then."""
    trial = event["trial"]
    record = planner.trials[trial]
    family = planner.families[record.family]
    if event["kind"] == 0:
        planner.cut_short[trial] = event["rung"]
        if event["purpose"] == "final":
            family.contest.finishing(trial)
        elif event["rung"] == 0 and trial not in family.contest.trials:
            family.contest.started(trial)
        else:
            family.contest.promoted(trial, event["rung"])
    elif event["kind"] == 1:
        record.step_seconds = record.step_seconds or event["step_seconds"]
        family.step_seconds = family.step_seconds or event["step_seconds"]
        if event["rung"] is not None:
            planner.cut_short.pop(trial, None)
            family.contest.reported(trial, event["rung"], event["valid_loss"])
            family.suggestions.tell(trial, event["rung"], event["valid_loss"])
        elif event["final"]:
            planner.cut_short.pop(trial, None)
            family.contest.finished(trial, event["valid_loss"])
    else:
        planner.cut_short.pop(trial, None)
        family.contest.ended(trial, event["reason"])
        family.suggestions.tell(trial, 0, None)


def take_up_checkpoint(folder: Path, record: TrialRecord) -> None:
    """The checkpoint from before its decay of a trial that had one, else the newest that is sound."""
    path, saved = checkpoints.load_or_older(folder / checkpoints.BEFORE_DECAY)
    if path is not None and saved is not None:
        record.checkpoint, record.steps = str(path), saved.state["steps"]
