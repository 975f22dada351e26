"""Going on with a study: what its journal says happened, told again to a new planner.

The journal is read as a stranger's: trials have names of one form, and paths are made of them, never read.
"""

import contextlib
import json
import math
import os
import re
import signal
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from model import checkpoint as checkpoints
from tune.errors import UserError
from tune.heartbeats import DRIVER, last_beat, still_there
from tune.journal import SHARE, Journal
from tune.ledger import GRACE_SECONDS
from tune.planner import Planner
from tune.records import TrialRecord
from tune.samples import PURPOSE as DECODING

MOST_MICRO_BATCHES = 2**20
LIVES_ON_SECONDS = 1.0
"""How long after its driver a process lives that had no time yet for a sign of life: until Ray sees to it, after .4 to
1.4 s as measured."""
OPEN_LEASES = f"""
    SELECT lease, trial, slot, leases.opened, {SHARE} AS share, purpose,
           leases.opened + reserved / {SHARE} + {GRACE_SECONDS} AS until, state = 'running' AS trains
    FROM leases JOIN slots USING (slot) JOIN trials USING (trial) WHERE leases.closed IS NULL"""
"""Until their graces are over. On one of a trial that does not train its configuration is measured, or the driver
itself works for it; that is not put down to it."""
OPEN_SLOTS = f"""
    SELECT slot, opened, {SHARE} AS share, MAX(lease) AS lease, trial
    FROM slots LEFT JOIN (SELECT lease, slot, trial FROM leases) USING (slot) WHERE closed IS NULL GROUP BY slot"""
"""With the last lease of each."""
STRETCHES = "purpose IN ('rung', 'final')"
"""Of leases, those that trials train on."""
LONGEST_REASON = 160
TRIAL_NAME = re.compile(r"t\d{3,9}")


def close_what_a_kill_left_open(journal: Journal) -> None:
    """Charge what was open when the driver died up to its last sign of life, and end processes left over.

    UserError: the journal says what cannot be.
    """
    with undamaged(journal):
        _close_what_a_kill_left_open(journal)


def _close_what_a_kill_left_open(journal: Journal) -> None:
    end_orphans(journal)
    leases = journal.rows(OPEN_LEASES)
    end = driver_end(journal, leases)
    ends: dict[int, float] = {}
    with journal.transaction():
        for lease in leases:
            ended = ends[lease["slot"]] = trial_end(journal, lease, end)
            known = charged_to(journal, "lease", lease["lease"])
            charged = max(known, (ended - lease["opened"]) * lease["share"])
            whose = lease["trial"] if lease["trains"] else None
            to = {"slot": lease["slot"], "trial": whose, "lease": lease["lease"]}
            journal.insert("charges", to | {"at": ended, "what": "lost", "seconds": charged - known})
            closed = lease["opened"] + charged / lease["share"]
            journal.update("leases", lease["lease"], {"closed": closed, "charged": charged})
            if lease["trains"]:
                journal.update("trials", lease["trial"], {"state": "paused", "reason": "killed"})
        for slot in journal.rows(OPEN_SLOTS):
            waited = max(end, min(last_sign(journal, slot, end), end + GRACE_SECONDS))
            ended, known = ends.get(slot["slot"], waited), charged_to(journal, "slot", slot["slot"])
            closed = max(ended, slot["opened"] + known / slot["share"])
            idle = (closed - slot["opened"]) * slot["share"] - known
            journal.insert("charges", {"at": ended, "slot": slot["slot"], "what": "idle", "seconds": idle})
            journal.update("slots", slot["slot"], {"closed": closed})


def end_orphans(journal: Journal) -> None:
    """End every trial process that a killed driver left behind, by the signs of life that it gave."""
    for row in journal.rows("SELECT trial FROM trials"):
        beat = last_beat(journal.folder, row["trial"]) if TRIAL_NAME.fullmatch(row["trial"]) else None
        if beat and still_there(beat):
            with contextlib.suppress(ProcessLookupError):
                os.kill(beat["pid"], signal.SIGKILL)


def driver_end(journal: Journal, leases: list[Any]) -> float:
    """Until when the driver held what was open: its last sign of life, or what it wrote last; not past all leases, nor
    past the cap where there are none."""
    last, beat = last_moment(journal), last_beat(journal.folder, DRIVER)
    caps = journal.facts().get("caps", [])
    latest = max((lease["until"] for lease in leases), default=last + (caps[-1]["seconds"] if caps else 0.0))
    return max(last, min(beat["at"], latest)) if beat else last


def trial_end(journal: Journal, lease: Any, end: float) -> float:
    """Until when a lease was used: the last sign of life of its trial, where that is after its driver's `end`.

    What the driver itself decodes ends with it.
    """
    lives_on = 0.0 if lease["purpose"] == DECODING else LIVES_ON_SECONDS
    return max(end, min(last_sign(journal, lease, end + lives_on), lease["until"]))


def last_sign(journal: Journal, lease: Any, unknown: float) -> float:
    """When the trial of a lease gave its last sign of life on it; `unknown` where it gave none."""
    named = lease["trial"] is not None and TRIAL_NAME.fullmatch(lease["trial"])
    beat = last_beat(journal.folder, lease["trial"]) if named else None
    return beat["at"] if beat is not None and beat["lease"] == lease["lease"] else unknown


def charged_to(journal: Journal, what: str, number: int) -> float:
    """Device-seconds charged to a lease or slot so far."""
    return float(journal.rows(f"SELECT TOTAL(seconds) AS known FROM charges WHERE {what} = ?", number)[0]["known"])


def last_moment(journal: Journal) -> float:
    """The study's clock at the last thing that was written down."""
    columns = {"reports": "at", "charges": "at", "decisions": "at", "leases": "closed", "slots": "closed"}
    return max(
        journal.rows(f"SELECT IFNULL(MAX({column}), 0) AS at FROM {table}")[0]["at"]
        for table, column in columns.items()
    )


def spent(journal: Journal) -> float:
    """Device-seconds of all slots, which must be closed."""
    return float(journal.rows(f"SELECT TOTAL((closed - opened) * {SHARE}) AS spent FROM slots")[0]["spent"])


def spent_beside(journal: Journal) -> float:
    """Of these, those on leases that were no stretch of a trial."""
    query = f"SELECT TOTAL(charged) AS charged FROM leases WHERE NOT {STRETCHES}"
    return float(journal.rows(query)[0]["charged"])


def check_plain(folder: Path) -> None:
    """UserError: a study's folder holds a link or a device, through which something outside could be written."""
    for place, folders, files in os.walk(folder):
        for path in (Path(place, name) for name in (*folders, *files)):
            with contextlib.suppress(FileNotFoundError):
                kind = stat.S_IFMT(path.lstat().st_mode)
                if kind not in (stat.S_IFREG, stat.S_IFDIR):
                    rule = "a study holds files and folders only, no links"
                    raise UserError(f"--resume: {str(path)!r} is none of ours: {rule}; take it away or begin anew")


@contextlib.contextmanager
def undamaged(journal: Journal) -> Iterator[None]:
    """UserError where what the journal says, read inside, cannot be."""
    try:
        yield
    except UserError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, OverflowError, IndexError) as error:
        what = f"{type(error).__name__}: {error}"[:LONGEST_REASON]
        raise UserError(f"--resume: {str(journal.folder)!r} has a damaged journal ({what}): begin anew") from error


def restore(planner: Planner, journal: Journal) -> None:
    """Bring a new planner to where the study stood. UserError: its journal says what cannot be."""
    with undamaged(journal):
        _restore(planner, journal)


def _restore(planner: Planner, journal: Journal) -> None:
    """Every trial, every rung, in the order in which it came about."""
    for row in journal.rows("SELECT * FROM trials ORDER BY trial"):
        if not TRIAL_NAME.fullmatch(row["trial"]) or row["family"] not in planner.families:
            raise ValueError(f"no trial is named {row['trial']!r}")
        record = TrialRecord(family=row["family"], config=dict(json.loads(row["config"])))
        planner.trials[row["trial"]] = record
        planner.families[row["family"]].suggestions.tried(row["trial"], record.config)
    for event in events(journal):
        tell(planner, event)
    for row in journal.rows("SELECT * FROM memory ORDER BY event"):
        remember_memory(planner, row["trial"], row["micro_batches"], row["measured"])
    for name, family in planner.families.items():
        query = f"SELECT TOTAL(charged) AS paid FROM leases JOIN trials USING (trial) WHERE family = ? AND {STRETCHES}"
        family.charged = journal.rows(query, name)[0]["paid"] / planner.books.ledger.share
    finished = {row["trial"] for row in journal.rows("SELECT trial FROM trials WHERE state = 'finished'")}
    for trial, record in planner.trials.items():
        folder = journal.folder / "checkpoints" / trial
        if trial in finished and planner.families[record.family].contest.trials[trial].state == "paused":
            checkpoints.forget_decay(folder)
        take_up_checkpoint(folder, record)


def note_cap(journal: Journal, seconds: float) -> float:
    """Write down the cap from now on, where it is another than before. Returns the first that the study had."""
    with undamaged(journal):
        caps = list(journal.facts().get("caps", []))
        if not all(0 <= cap["at"] < math.inf and 0 < cap["seconds"] < math.inf for cap in caps):
            raise ValueError(f"caps of {caps}")
    if not caps or caps[-1]["seconds"] != seconds:
        caps.append({"at": last_moment(journal), "seconds": seconds})
        journal.note(caps=caps)
    return float(caps[0]["seconds"])


def events(journal: Journal) -> list[dict[str, Any]]:
    """Leases, rungs reached, decays, deaths and ends of trials, and other caps, in order."""
    leases = journal.rows(
        f"SELECT opened AS at, 0 AS kind, trial, purpose, rung, goal, price FROM leases WHERE {STRETCHES}"
    )
    reports = journal.rows(
        "SELECT at, 1 AS kind, * FROM reports WHERE checkpoint IS NOT NULL OR final OR rung IS NOT NULL"
    )
    ends = journal.rows("SELECT at, 2 AS kind, trial, action, reason FROM decisions WHERE action IN ('stop', 'died')")
    caps = [cap | {"kind": 3} for cap in journal.facts()["caps"][1:]]
    rows = (dict(row) for row in (*leases, *reports, *ends, *caps))
    return sorted(rows, key=lambda event: (event["at"], event["kind"]))


def tell(planner: Planner, event: dict[str, Any]) -> None:
    """One event of the journal, as the planner heard of it then."""
    if event["kind"] == 3:
        for each in planner.families.values():
            each.contest.refit(event["seconds"] * each.seconds / planner.books.ledger.cap)
        return
    trial = event["trial"]
    record = planner.trials[trial]
    family = planner.families[record.family]
    if event["kind"] == 0:
        family.planned += 0.0 if trial in planner.cut_short else event["price"] / planner.books.ledger.share
        record.goal = event["goal"]
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
            family.reached(trial, event["rung"], event["valid_loss"])
        elif event["final"]:
            planner.cut_short.pop(trial, None)
            family.contest.finished(trial, event["valid_loss"])
    elif event["action"] == "died":
        record.deaths += 1
    else:
        planner.cut_short.pop(trial, None)
        if trial in family.contest.trials:
            family.contest.ended(trial, event["reason"])
        family.suggestions.tell(trial, 0, None)


def remember_memory(planner: Planner, trial: str, micro_batches: int, measured: int | None) -> None:
    """What a trial took of memory, or that it ran out of it and its batches are to be cut smaller."""
    record = planner.trials[trial]
    if not isinstance(micro_batches, int) or not 1 <= micro_batches <= MOST_MICRO_BATCHES:
        raise UserError(f"--resume: damaged journal: {trial} cannot have cut its batches into {micro_batches!r} parts")
    planner.families[record.family].memory.learn(record.config, micro_batches, measured)
    record.micro_batches = micro_batches * (2 if measured is None else 1)


def take_up_checkpoint(folder: Path, record: TrialRecord) -> None:
    """The newest sound checkpoint of a trial: there its next stretch begins."""
    path = checkpoints.latest(folder)
    if path is not None:
        record.checkpoint, record.steps = str(path), checkpoints.load(path).state["steps"]
