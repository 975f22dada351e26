"""Trials that hang, raise errors and diverge, or take more memory than there is: each costs little, is told why, and
the rest goes on.
"""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.soak.accounts import adds_up, number, rows, spent
from tests.soak.search import Bench, Row, Search
from tune.errors import ROOT
from tune.store.heartbeat import is_worker_alive, read_heartbeat

FAULTY = ROOT / "tests" / "tune" / "faulty.py"
CAP_SECONDS, SHORT_CAP_SECONDS = 240, 110
FAULTS = {"diverges": "t001", "hangs": "t002", "raises": "t003"}
GRACE_SECONDS = 3.0
"""A trial that hangs may outstay its lease by its grace and so much as it takes to end a process."""
SHARE_AFTER_DIVERGING = 0.02
HUNG = "error: hung: no sign of life by the end of its lease"
RAISED = "error: its faulty raised ArithmeticError: the flux capacitor (faulty.py:"


def faulty_trials(bench: Bench) -> Iterator[Row]:
    """Three rows of one search."""
    cap = SHORT_CAP_SECONDS if bench.short else CAP_SECONDS
    study = bench.folder / "faults"
    told = bench.folder / "faults.json"
    told.write_text(json.dumps(FAULTS))
    search = Search(
        bench.observer, "--budget", f"{cap}s", "--families", "nanogpt", "--devices", "2", "--oversubscribe",
        "--report-every", "1s", "--out", study, script=(FAULTY, told),
    )  # fmt: skip
    code = search.finish()
    finals = number(study, "SELECT COUNT(*) FROM reports WHERE final")
    sound = code == 0 and adds_up(study) and spent(study) <= cap and finals == 1
    yield _hang(study, sound, spent_text=f"spent {spent(study):.1f} of {cap} s")
    yield _error(study, sound, search.printed)
    yield _diverged(study, sound, cap)


def _hang(study: Path, sound: bool, *, spent_text: str) -> Row:
    leases = rows(study, "SELECT reserved, charged FROM leases WHERE trial = 't002'")
    over = [lease["charged"] - lease["reserved"] for lease in leases]
    ended = rows(study, "SELECT reason FROM decisions WHERE trial = 't002' AND reason LIKE 'error%'")
    beat = read_heartbeat(study, "t002")
    return Row(
        what="hang",
        asked=f"ended within {GRACE_SECONDS:.0f} s of its lease, charged, its process gone; the rest goes on",
        measured=f"{len(leases)} leases, outstayed by {min(over):.1f} to {max(over):.1f} s; {spent_text}",
        kept=sound and all(0 <= seconds <= GRACE_SECONDS for seconds in over)
        and {row["reason"] for row in ended} == {HUNG} and beat is not None and not is_worker_alive(beat.by),
        details=leases,
    )  # fmt: skip


def _error(study: Path, sound: bool, printed: str) -> Row:
    (trial,) = rows(study, "SELECT state, reason FROM trials WHERE trial = 't003'")
    on_screen = [line for line in printed.splitlines() if "t003" in line and RAISED in line]
    return Row(
        what="error",
        asked="failed, and not tried again; its type, first line and place on the screen and in the journal",
        measured=f"{trial['state']}, {trial['reason']!r}; {len(on_screen)} lines on the screen",
        kept=sound and trial["state"] == "failed" and trial["reason"].startswith(RAISED)
        and [": stop: " in line for line in on_screen] == [True],
        details=[trial],
    )  # fmt: skip


def _diverged(study: Path, sound: bool, cap: float) -> Row:
    """The steps after a trial's last sound report are those after it diverged, and some before."""
    found: list[dict[str, Any]] = []
    for row in rows(study, "SELECT trial FROM trials WHERE reason = 'diverged'"):
        last = "SELECT IFNULL(MAX(at), 0) + 0.001 FROM reports WHERE trial = ? AND train_loss IS NOT NULL"
        steps = f"SELECT TOTAL(seconds) FROM charges WHERE trial = ? AND what = 'steps' AND at > ({last})"
        leases = number(study, "SELECT COUNT(*) FROM leases WHERE trial = ?", row["trial"])
        found.append(row | {"leases": leases, "seconds": number(study, steps, row["trial"], row["trial"])})
    diverged = {each["trial"] for each in found}
    words = [sys.executable, str(ROOT / "analysis" / "rank.py"), str(study), "--json"]
    ranked = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    places = [row["trial"] in diverged for row in ranked if row["state"] != "failed"]
    last_of_all = places == sorted(places) and places.count(True) == len(diverged)
    after = sum(each["seconds"] for each in found)
    tried = number(study, "SELECT COUNT(*) FROM trials")
    return Row(
        what="NaN",
        asked=f"<= {100 * SHARE_AFTER_DIVERGING:.0f} % of the cap goes to trials after they diverged; they rank last",
        measured=f"{len(found)} of {tried:.0f} diverged; {100 * after / cap:.2f} % of the cap after it, at most; they "
        f"{'rank' if last_of_all else 'do NOT rank'} last",
        kept=sound and bool(found) and after <= SHARE_AFTER_DIVERGING * cap and last_of_all
        and all(each["leases"] == 1 for each in found),
        details=found,
    )  # fmt: skip


MEMORY_CAP_SECONDS, SHORT_MEMORY_CAP_SECONDS = 360, 90
GREEDY = {"outgrows": "t001"}
LIMIT = "400MB"
"""Less than what the greedy trial holds with whole batches, more than with two parts."""
LOST_SHARE = 0.02


def out_of_memory(bench: Bench) -> Iterator[Row]:
    """One row."""
    cap = SHORT_MEMORY_CAP_SECONDS if bench.short else MEMORY_CAP_SECONDS
    study = bench.folder / "memory"
    told = bench.folder / "memory.json"
    told.write_text(json.dumps(GREEDY))
    search = Search(
        bench.observer, "--budget", f"{cap}s", "--families", "nanogpt", "--memory-limit", LIMIT, "--out", study,
        script=(FAULTY, told),
    )  # fmt: skip
    code = search.finish()
    refused = rows(study, "SELECT trial, reason FROM trials WHERE reason LIKE 'memory: needs about %'")
    launched = {row["trial"] for row in rows(study, "SELECT trial FROM leases")}
    cut = rows(study, "SELECT DISTINCT trial FROM memory WHERE micro_batches > 1 AND measured IS NOT NULL")
    ran_out = rows(study, "SELECT DISTINCT trial, lease, slot FROM memory JOIN leases USING (lease, trial) "
                   "WHERE measured IS NULL")  # fmt: skip
    again = [trial for trial, times in Counter(row["trial"] for row in ran_out).items() if times > 1]
    fitted = "SELECT DISTINCT trial FROM reports WHERE micro_batches > 1 AND ended = 'rung'"
    greedy, fits = set(GREEDY.values()), {row["trial"] for row in rows(study, fitted)}
    as_injected = greedy == {row["trial"] for row in ran_out} and greedy <= fits
    used_again = [row for row in ran_out if number(
        study, "SELECT COUNT(*) FROM leases WHERE slot = ? AND lease > ?", row["slot"], row["lease"]
    )]  # fmt: skip
    hopeless = "SELECT trial FROM trials WHERE reason LIKE 'memory: ran out%'"
    lost = number(study, f"SELECT TOTAL(seconds) FROM charges WHERE trial IN ({hopeless})")
    start_up = number(study, "SELECT AVG(seconds) FROM charges WHERE what = 'start'")
    lost += len(ran_out) * start_up
    yield Row(
        what="out of memory",
        asked="predicted before launch; a part that fits is found; nothing runs out twice; its process is not used "
        f"again; <= {100 * LOST_SHARE:.0f} % of the cap lost",
        measured=f"limit {LIMIT}: {len(refused)} refused, {len(cut)} cut, {len(ran_out)} ran out, {len(again)} of them "
        f"twice; {len(used_again)} processes used again; {100 * lost / cap:.1f} % of the cap lost; spent "
        f"{spent(study):.1f} of {cap} s",
        kept=code == 0 and adds_up(study) and spent(study) <= cap and not {row["trial"] for row in refused} & launched
        and as_injected and not again and not used_again and lost <= LOST_SHARE * cap,
        details=[*refused, *ran_out, {"start-up": start_up}],
    )  # fmt: skip
