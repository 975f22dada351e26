"""Going on with a study: what its journal says happened is replayed to a new engine.

The journal is not trusted: trials must have names of one form, and their newest checkpoints are looked for in the
folders of these names.
"""

import contextlib
import json
import math
import os
import re
import sqlite3
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from tune.errors import UserError
from tune.machine import UNFINISHED
from tune.reports import from_row
from tune.search.engine import CONFIRM, DEATHS_ALLOWED, GO_ON, LEAST_LEASE_SECONDS, RETRY, Engine
from tune.search.family import TrialRecord
from tune.search.state import AgreedTerms, State, last_events, number, parse_agreed_terms
from tune.search_space import seedless
from tune.store.accounting import DECODING, RunningLease
from tune.store.heartbeat import DRIVER, GRACE_SECONDS, kill_worker, read_heartbeat
from tune.store.journal import DAMAGED, DAMAGED_REMEDY, SLOT_SHARE_SQL, Journal, as_mapping
from tune.store.mirror import is_copy
from tune.units import whole_text

MOST_MICRO_BATCHES = 2**20
TINY = 1e-9
LIVES_ON_SECONDS = 1.0
"""Seconds that a process lives on after its driver, if it had no time yet for a sign of life: until Ray ends it, after
.4 to 1.4 s as measured."""
OPEN_LEASES = f"""
    SELECT lease, trial, slot, leases.opened, {SLOT_SHARE_SQL} AS share, purpose,
           leases.opened + reserved / {SLOT_SHARE_SQL} + {GRACE_SECONDS} AS until, state = 'running' AS trains
    FROM leases JOIN slots USING (slot) JOIN trials USING (trial) WHERE leases.closed IS NULL"""
"""Query of open leases. until: the end of the grace; trains: whether the trial trains on it. If not, its configuration
is measured, or the driver itself works for it, and the lease is not charged to the trial."""
OPEN_SLOTS = f"""
    SELECT slot, opened, {SLOT_SHARE_SQL} AS share, MAX(lease) AS lease, trial
    FROM slots LEFT JOIN (SELECT lease, slot, trial FROM leases) USING (slot) WHERE closed IS NULL GROUP BY slot"""
"""Query of open slots, with the last lease of each."""
SEGMENTS = "purpose IN ('rung', 'final')"
"""Condition on a row of leases: a trial trains on it."""
LONGEST_REASON = 160
LEASES = ("start", "promote", "finish", CONFIRM, GO_ON)
"""The decisions that each opened one of these leases; leases and decisions are in the same order."""
TRIAL_NAME = re.compile(r"t\d{3,9}")


def close_what_a_kill_left_open(journal: Journal) -> None:
    """Charge what was open when the driver died up to its last sign of life, and end leftover processes.

    UserError: the journal says something impossible.
    """
    ends: dict[int, float] = {}
    with damage_as_user_error(journal):
        end_orphans(journal)
    with damage_as_user_error(journal), journal.transaction():
        leases = journal.rows(OPEN_LEASES)
        last, end = last_moment(journal), driver_end(journal, leases)
        share = share_of(journal)
        for _ in range(unseen_slots(journal)):
            unseen = journal.insert("slots", {"opened": last, "closed": end, "share": share})
            lost = (end - last) * share
            journal.insert("charges", {"at": end, "slot": unseen, "what": "lost", "seconds": lost})
        for lease in leases:
            lives_on = 0.0 if lease["purpose"] == DECODING else LIVES_ON_SECONDS  # the driver's own work ends with it
            ended = max(end, min(last_sign(journal, lease, end + lives_on), float(lease["until"])))
            ends[lease["slot"]] = ended
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
    """End every trial process that a killed driver left behind, as far as their signs of life tell of them."""
    for row in journal.rows("SELECT trial FROM trials"):
        if TRIAL_NAME.fullmatch(row["trial"]):
            kill_worker(journal.folder, row["trial"])


def driver_end(journal: Journal, leases: Sequence[sqlite3.Row]) -> float:
    """Return until when the driver held what was open: its last sign of life, also in the journal, or what it wrote
    last; not past all leases, nor, where there are none or the journal is of a copy, past the cap."""
    last, beat = last_moment(journal), read_heartbeat(journal.folder, DRIVER)
    caps = agreed_terms(journal)
    cap = caps[-1].seconds if caps else 0.0
    latest = max((lease["until"] for lease in leases), default=last + cap)
    if is_copy(journal.folder):  # the study may have gone on, with other leases, for what was left of the cap
        spent = f"TOTAL((IFNULL(closed, ?) - opened) * {SLOT_SHARE_SQL}) AS spent"
        rate = f"TOTAL((closed IS NULL) * {SLOT_SHARE_SQL}) AS rate"
        (held,) = journal.rows(f"SELECT {spent}, {rate} FROM slots", last)
        rate = held["rate"] + unseen_slots(journal) * share_of(journal)
        latest = last + max(0.0, cap - held["spent"]) / max(rate, TINY) - LIVES_ON_SECONDS
    alive = number(journal.facts().get("alive") or 0.0)
    return max(last, min(max(alive, beat.at if beat else 0.0), latest))


def unseen_slots(journal: Journal) -> int:
    """Return how many slots a search may have opened since the journal was copied; 0 where it is no copy of one that
    runs."""
    kept = journal.facts().get("slots_kept")
    had = as_mapping(journal.facts().get("devices")).get("slots")
    if not is_copy(journal.folder) or not isinstance(had, int):
        return 0
    had = min(had, kept) if isinstance(kept, int) and kept else had
    return max(0, had - len(journal.rows(OPEN_SLOTS)))


def share_of(journal: Journal) -> float:
    """Return the device-seconds in a second of a slot in the last run."""
    share = as_mapping(journal.facts().get("devices")).get("share")
    return float(share) if isinstance(share, int | float) and 0 < share < math.inf else 1.0


def last_sign(journal: Journal, lease: sqlite3.Row, unknown: float) -> float:
    """Return when the trial of a lease gave its last sign of life on it; `unknown` where it gave none."""
    named = lease["trial"] is not None and TRIAL_NAME.fullmatch(lease["trial"])
    beat = read_heartbeat(journal.folder, lease["trial"]) if named else None
    return beat.at if beat is not None and beat.lease == lease["lease"] else unknown


def charged_to(journal: Journal, what: str, number: int) -> float:
    """Return the device-seconds charged to a lease or slot so far."""
    return float(journal.rows(f"SELECT TOTAL(seconds) AS known FROM charges WHERE {what} = ?", number)[0]["known"])


def last_moment(journal: Journal) -> float:
    """Return the study's clock at the last thing that was written down."""
    columns = {"reports": "at", "charges": "at", "decisions": "at", "leases": "closed", "slots": "closed"}
    return max(
        float(journal.rows(f"SELECT IFNULL(MAX({column}), 0) AS at FROM {table}")[0]["at"])
        for table, column in columns.items()
    )


def spent(journal: Journal) -> float:
    """Return the device-seconds of all slots, which must be closed."""
    return float(journal.rows(f"SELECT TOTAL((closed - opened) * {SLOT_SHARE_SQL}) AS spent FROM slots")[0]["spent"])


def spent_beside(journal: Journal) -> float:
    """Return the device-seconds of leases that were no segment of a trial, which `spent` includes."""
    query = f"SELECT TOTAL(charged) AS charged FROM leases WHERE NOT {SEGMENTS}"
    return float(journal.rows(query)[0]["charged"])


def check_plain(folder: Path) -> None:
    """Check that a study's folder holds only files and folders, but for what a kill left of a trial's checkpoint, in
    which nothing looks: a loop may save links, which are replaced before it is whole. UserError: it holds a link or a
    device, through which something outside could be written."""
    for place, folders, files in os.walk(folder):
        for path in (Path(place, name) for name in (*folders, *files)):
            with contextlib.suppress(FileNotFoundError):
                kind = stat.S_IFMT(path.lstat().st_mode)
                if kind not in (stat.S_IFREG, stat.S_IFDIR):
                    rule = "a study holds files and folders only, no links"
                    raise UserError(f"--resume: {str(path)!r} is none of ours: {rule}; take it away or begin again")
        if Path(place).parent == folder / "checkpoints":
            folders[:] = [name for name in folders if not name.startswith(UNFINISHED)]


@contextlib.contextmanager
def damage_as_user_error(journal: Journal) -> Iterator[None]:
    """Turn the errors by which reading a damaged journal inside fails into a UserError."""
    try:
        yield
    except UserError:
        raise
    except DAMAGED as error:
        what = f"{type(error).__name__}: {error}"[:LONGEST_REASON]
        damaged = f"{str(journal.folder)!r} has a damaged journal ({what})"
        raise UserError(f"--resume: {damaged}: {DAMAGED_REMEDY}") from error


class Newest(Protocol):
    """Function that returns path and steps of the newest sound checkpoint in a trial's folder, or None; undecayed: of
    those from before its decay."""

    def __call__(self, folder: Path, *, undecayed: bool) -> tuple[str, int] | None: ...


def restore(
    engine: Engine, newest: Newest, deadline: float | None, processor: str, stop_below_gain: float | None = None
) -> list[str]:
    """Bring a new engine to where its study stood, and put it under these terms, as in Engine.apply_terms. Returns
    notes for the user. UserError: the journal says something impossible."""
    journal = engine.accounting.journal
    with damage_as_user_error(journal):
        replay_journal(engine.state, journal)
        limits = as_mapping(journal.facts().get("memory_limits"))
        for row in journal.rows("SELECT * FROM memory ORDER BY event"):
            limit = limits.get(str(row["event"]))
            known = None if limit is None else number(limit)
            remember_memory(engine, row["trial"], row["micro_batches"], row["measured"], known)
    notes = list(state_mismatch_warnings(engine.state, journal))
    for row in journal.rows(f"SELECT trial, MAX(lease), closed, charged FROM leases WHERE {SEGMENTS} GROUP BY trial"):
        if row["trial"] in engine.running and row["closed"] is not None:
            engine.close_killed(row["trial"], row["charged"])
    at_end = {row["trial"] for row in journal.rows("SELECT trial FROM trials WHERE state = 'finished'")}
    at_end |= {trial for trial, rung in engine.cut_short.items() if rung is None}
    notes += engine.apply_terms(deadline, processor, stop_below_gain)
    journal.write_facts(ended=None, alive=None, prospects={})
    kept = journal.facts().get("slots_kept")
    wall = engine.wall_left()
    lost = (deadline or 0.0) - engine.accounting.clock() - wall
    if lost >= LEAST_LEASE_SECONDS:  # all slots have to make up for it
        missed, away = whole_text(lost), whole_text(max(0.0, wall))
        notes.append(f"{missed} passed since the last run, and count: {away} left to --deadline")
        kept = None
    if isinstance(kept, int) and kept:
        engine.slots.most = min(engine.slots.most, kept)
    else:
        journal.write_facts(slots_kept=None)
    begin: dict[str, dict[str, float]] = {name: {} for name in engine.families}
    over = {row["trial"] for row in journal.rows("SELECT trial FROM trials WHERE state = 'stopped'")}
    for trial, record in engine.trials.items():
        if trial in over:  # for good, unlike one that failed: what it saved is not read and verified
            continue
        thawed = trial in at_end and engine.families[record.family].policy.trials[trial].state == "paused"
        record.begin_at(newest(journal.folder / "checkpoints" / trial, undecayed=thawed))
        begin[record.family][trial] = record.steps * (record.step_seconds or 0.0)
    for name, family in engine.families.items():
        family.policy.on_resumed(begin[name])
    for row in journal.rows("SELECT trial, reason FROM trials WHERE state = 'failed'"):
        record = engine.trials[row["trial"]]
        standing = engine.families[record.family].policy.trials[row["trial"]]
        if standing.rung >= 0 and record.checkpoint is not None and record.deaths <= DEATHS_ALLOWED:
            engine.retry(row["trial"], row["reason"])
    return notes


def confirmed_trial(record: TrialRecord, trials: Mapping[str, TrialRecord]) -> str | None:
    """Return the one of these trials whose configuration this one trains anew, with a seed of its own; None: there is
    none."""
    sought = record.family, seedless(record.config)
    if sought == (record.family, record.config):
        return None
    return next((name for name, each in trials.items() if (each.family, each.config) == sought), None)


def state_mismatch_warnings(state: State, journal: Journal) -> Iterator[str]:
    """Yield a warning that names the parts of the state in which the replayed one differs from the one that the journal
    was written in, if any do."""
    before, now = as_mapping(journal.facts().get("state")), state.digest()
    parts = sorted(part for part in before.keys() | now.keys() if before and before.get(part) != now.get(part))
    if parts:
        rule = "a fault of this program, unless it is another version than before; please report it"
        yield f"warning: the journal does not tell all that the search knew ({', '.join(parts)}): {rule}. It goes on."


def agreed_terms(journal: Journal) -> list[AgreedTerms]:
    """Return the terms that a study had, the first ones first; none where it is new. UserError: they are damaged."""
    with damage_as_user_error(journal):
        return parse_agreed_terms(journal.facts())


def note_cap(journal: Journal, seconds: float) -> None:
    """Write down the cap from now on, where it differs from the one before."""
    caps = agreed_terms(journal)
    if not caps or caps[-1].seconds != seconds:
        decision, report = last_events(journal)
        caps.append(AgreedTerms(at=last_moment(journal), seconds=seconds, decision=decision, report=report))
        journal.write_facts(caps=[each.to_json() for each in caps])


def replay_journal(state: State, journal: Journal) -> None:
    """Replay to a new state all that the journal says happened."""
    for row in journal.rows("SELECT * FROM trials ORDER BY LENGTH(trial), trial"):
        if not TRIAL_NAME.fullmatch(row["trial"]) or row["family"] not in state.families:
            raise ValueError(f"no trial is named {row['trial']!r}")
        record = TrialRecord(family=row["family"], config=dict(json.loads(row["config"])))
        record.confirms = confirmed_trial(record, state.trials)
        if record.confirms is None:
            state.families[row["family"]].suggestions.note_tried(row["trial"], record.config)
        state.trials[row["trial"]] = record
    leases = {row["lease"]: row for row in journal.rows(f"SELECT * FROM leases WHERE {SEGMENTS} ORDER BY lease")}
    segments = iter(leases.values())
    charges: dict[int, dict[str, float]] = {}
    for row in journal.rows("SELECT lease, what, seconds FROM charges WHERE lease IS NOT NULL ORDER BY charge"):
        of = charges.setdefault(row["lease"], {})
        of[row["what"]] = of.get(row["what"], 0.0) + row["seconds"] / state.share

    def close(trial: str) -> RunningLease:
        lease = leases[state.running[trial].assignment.lease]
        return state.close_lease(trial, lease["charged"])

    state.apply_terms(agreed_terms(journal)[0], new=True)
    for event in events(journal):
        if isinstance(event, AgreedTerms):
            state.apply_terms(event, new=False)
            continue
        trial, action = event["trial"], event["action"]
        if action is None:
            run = close(trial)
            run.charged = charges.get(run.assignment.lease, {})
            state.end_lease(run, from_row(dict(event)))
        elif trial in state.running:
            close(trial)
        if action in LEASES:
            lease = next(segments)
            check_parts(trial, lease["micro_batches"] or 1)
            state.open_lease(lease)
        elif action == "died":
            state.trials[trial].deaths += 1
        elif action in ("wait", RETRY):
            state.put_back(trial)
        elif action == "stop":
            state.stopped(trial, event["reason"])


def events(journal: Journal) -> list[sqlite3.Row | AgreedTerms]:
    """Return decisions, reports that ended a lease (rows without an `action`), and new terms, in the order in which
    they happened.

    A decision and new terms know the last report before them.
    """
    reports = journal.rows("""
        SELECT reports.*, parameters, report AS after, -1 AS place, NULL AS action
        FROM reports JOIN trials USING (trial)
        WHERE ended IS NOT NULL ORDER BY report""")
    decisions = journal.rows("SELECT trial, action, reason, at, report AS after, decision AS place FROM decisions")
    found: list[tuple[float, float, sqlite3.Row | AgreedTerms]] = [
        (row["after"], row["place"], row) for row in (*reports, *decisions)
    ]
    found += [(terms.report, terms.decision + 0.5, terms) for terms in agreed_terms(journal)[1:]]
    return [event for _, _, event in sorted(found, key=lambda each: each[:2])]


def remember_memory(engine: Engine, trial: str, micro_batches: int, measured: int | None, limit: float | None) -> None:
    """Restore what a trial took of memory, or that it ran out of it under this limit (None: an earlier version did not
    note it) and its batches are to be cut smaller."""
    record = engine.trials[trial]
    check_parts(trial, micro_batches)
    engine.families[record.family].memory.learn(record.config, micro_batches, measured, limit)
    record.micro_batches = micro_batches * (2 if measured is None else 1)


def check_parts(trial: str, micro_batches: object) -> None:
    """Check into how many parts a trial cut its batches. ValueError: no trial can have so many."""
    if not isinstance(micro_batches, int) or not 1 <= micro_batches <= MOST_MICRO_BATCHES:
        raise ValueError(f"{trial} cannot have cut its batches into {micro_batches!r} parts")
