"""The cap and the true account: real searches of many sizes, each held against what the operating system saw of it; a
cap that is extended; two trials on one GPU.
"""

import itertools
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from model.training.checkpoint import BEFORE_DECAY, STATE
from tests.soak.accounts import OFF_SECONDS, OFF_SHARE, UNSEEN_SECONDS, adds_up, compare, number, rows, spent, taken_up
from tests.soak.observer import Process
from tests.soak.search import Bench, Row, Search
from tune.errors import ROOT

ROUNDS = (
    # searches of one slot run two at a time, on a core each: (cap in seconds, slots, seconds between reports)
    ((60, 1, 1), (60, 1, 5)),
    ((120, 1, 5), (120, 1, 20)),
    ((240, 1, 1), (240, 1, 20)),
    *(((cap, 2, every),) for cap, every in ((60, 1), (60, 20), (120, 1), (120, 5), (180, 20), (240, 5), (240, 1))),
    *(((cap, 4, every),) for cap, every in ((60, 5), (120, 1), (120, 20), (180, 5), (240, 1), (240, 5), (240, 20))),
)
SHORT = (((120, 2, 1),),)
USED_SHARE, FROM_CAP = 0.97, 120
"""So much of the cap must be used, where it is at least so many seconds."""
SOME_CPU_SECONDS = 0.05
"""Of a process after the cap: less than one optimizer step."""


def cap_held(bench: Bench) -> Iterator[Row]:
    """Two rows: the cap, and the account."""
    found = []
    for searches in SHORT if bench.short else ROUNDS:
        with ThreadPoolExecutor(len(searches)) as together:
            seeds = [bench.chance.randrange(1000) for _ in searches]
            found += list(together.map(lambda asked, seed: _search(bench, *asked, seed), searches, seeds))
    large = [each for each in found if each["cap"] >= FROM_CAP]
    over = [each for each in found if each["spent"] > each["cap"] or each["exit"] or not each["adds up"]]
    late = max(each["CPU seconds after the cap"] for each in found)
    used = min(each["spent"] / each["cap"] for each in large)
    yield Row(
        what="cap",
        asked=f"spent <= cap in {len(found)} of {len(found)}; no optimizer step after it; >= 97 % used from 2 min on",
        measured=f"{len(found) - len(over)} of {len(found)}; {late:.2f} CPU seconds after it; "
        f"{100 * used:.1f} to {max(100 * each['spent'] / each['cap'] for each in large):.1f} % used",
        kept=not over and late <= SOME_CPU_SECONDS and used >= USED_SHARE,
        details=found,
    )
    true = [
        each
        for each in found
        if abs(each["off a slot"]) <= max(OFF_SECONDS, OFF_SHARE * each["spent"] / max(1, each["slots"]))
        and each["unseen"] <= UNSEEN_SECONDS
    ]
    yield Row(
        what="true account",
        asked="the journal within 1 % or 1 s a slot, the larger, of what the operating system saw",
        measured=f"{len(true)} of {len(found)} searches; off by {min(each['off a slot'] for each in found):+.2f} to "
        f"{max(each['off a slot'] for each in found):+.2f} s a slot",
        kept=len(true) == len(found),
        details=[],
    )


def _search(bench: Bench, cap: int, slots: int, every: int, seed: int) -> dict[str, Any]:
    study = bench.folder / f"cap-{cap}s-{slots}-slots-every-{every}s"
    search = Search(
        bench.observer, "--budget", f"{cap}s", "--devices", str(slots), "--oversubscribe", "--seed", str(seed),
        "--report-every", f"{every}s", "--out", study,
    )  # fmt: skip
    code = search.finish()
    bench.observer.look()
    processes = bench.observer.trials(search.driver)
    moment = cap_moment(processes, cap)
    held = compare(study, processes)
    return {
        "study": study.name, "cap": cap, "exit": code, "spent": spent(study), "adds up": adds_up(study),
        "in steps": number(study, "SELECT TOTAL(seconds) FROM charges WHERE what = 'steps'"),
        "wall seconds": (search.ended or 0.0) - search.begun,
        "CPU seconds after the cap": sum(process.cpu_after(moment) for process in processes),
        "slots": len(held), "off a slot": max((slot.off for slot in held if slot.outside), key=abs, default=0.0),
        "unseen": max((slot.journal for slot in held if not slot.outside), default=0.0),
    }  # fmt: skip


def cap_moment(processes: list[Process], cap: float) -> float:
    """When these processes, together, had been held for `cap` seconds by the clock on the wall."""
    ends = sorted(process.served_until for process in processes)
    held = 0.0
    moments = sorted({*(process.serves_from for process in processes), *ends})
    for begun, ended in itertools.pairwise(moments):
        serving = sum(each.serves_from <= begun and each.served_until >= ended for each in processes)
        if held + serving * (ended - begun) > cap:
            return begun + (cap - held) / serving
        held += serving * (ended - begun)
    return float("inf")


FIRST_CAP_SECONDS, TOTAL_SECONDS = 60, 150
SHORT_FIRST_CAP_SECONDS, SHORT_TOTAL_SECONDS = 44, 84
SAME_SECONDS = 0.2
"""Of training: so near are two readings of one moment of a trial's life."""


def cap_extended(bench: Bench) -> Iterator[Row]:
    """One row."""
    cap, total = (SHORT_FIRST_CAP_SECONDS, SHORT_TOTAL_SECONDS) if bench.short else (FIRST_CAP_SECONDS, TOTAL_SECONDS)
    study = bench.folder / "extended"
    code = Search(
        bench.observer, "--budget", f"{cap}s", "--families", "nanogpt", "--devices", "1", "--out", study
    ).finish()
    winner = rows(study, "SELECT trial, lease FROM reports WHERE final")[0]
    before_decay = training_seconds(study, winner["trial"])
    leases_before = int(number(study, "SELECT MAX(lease) FROM leases"))
    trials_before = {row["trial"] for row in rows(study, "SELECT trial FROM trials")}

    refused = Search(bench.observer, "--resume", study, "--budget", f"{cap // 2}s")
    is_refused = refused.finish() == 2 and refused.printed.count("\n") == 1 and "--budget" in refused.printed
    again = Search(bench.observer, "--resume", study, "--budget", f"{total}s")
    code += again.finish()

    later = [lease for lease in taken_up(study) if lease["lease"] > leases_before]
    old = [lease for lease in later if lease["trial"] in trials_before]
    winners = [lease for lease in old if lease["trial"] == winner["trial"]]
    went_on = winners[0]["began"] if winners else None
    as_asked = went_on is not None and abs(went_on - before_decay) <= SAME_SECONDS
    retrained = [lease["trial"] for lease in old if lease["began"] < SAME_SECONDS]
    decayed = any(lease["decayed"] for lease in later)
    yield Row(
        what="cap extended",
        asked="paused and finished trials are taken up, not retrained; the winner goes on from before its decay; less "
        "than spent is refused",
        measured=f"{cap} to {total} s: {len({lease['trial'] for lease in old})} old trials taken up, {len(retrained)} "
        f"retrained; the winner went on from {went_on or 0:.1f} s, its decay began at {before_decay:.1f} s; less was "
        f"{'refused' if is_refused else 'NOT refused'}; spent {spent(study):.1f} s",
        kept=code == 0 and as_asked and not retrained and decayed and is_refused and spent(study) <= total
        and adds_up(study),
        details=[{"winner": winner["trial"], "before decay": before_decay, "later": later, "said": refused.printed}],
    )  # fmt: skip


def training_seconds(study: Path, trial: str) -> float:
    """Of a trial's life, in the checkpoint from before its decay."""
    state = json.loads((study / "checkpoints" / trial / BEFORE_DECAY / STATE).read_text())
    return float(state["pace"]["training_seconds"])


PRETENDED = ROOT / "tests" / "tune" / "pretended.py"
SHARED_CAP_SECONDS, SHORT_SHARED_CAP_SECONDS = 120, 50
EACH = 2
LEAST_USED = 0.9
HALF = "SELECT COUNT(*) FROM leases WHERE ABS(charged - (closed - opened) / ?) > 0.01"


def gpu_shared(bench: Bench) -> Iterator[Row]:
    """One row."""
    cap, study = SHORT_SHARED_CAP_SECONDS if bench.short else SHARED_CAP_SECONDS, bench.folder / "sharing"
    search = Search(
        bench.observer, "--budget", f"{cap}s", "--families", "nanogpt", "--trials-per-gpu", str(EACH), "--out", study,
        script=(PRETENDED,),
    )  # fmt: skip
    code = search.finish()
    bench.observer.look()
    held = bench.observer.trials(search.driver)  # since each said so: what it imports before needs no GPU
    seen = sum(each.served_until - each.worked for each in held if each.worked is not None) / EACH
    query = f"SELECT SUM((closed - opened) / {EACH}) FROM slots WHERE slot IN (SELECT slot FROM leases)"
    charged, wrong = number(study, "SELECT SUM(seconds) FROM charges"), number(study, HALF, EACH)
    off = number(study, query) - seen
    at_once = most_at_once(study)
    yield Row(
        what="GPU shared",
        asked=f"{EACH} trials at once on the one GPU that Ray knows of, each charged 1/{EACH} of what it held; "
        f"spent <= cap, >= {LEAST_USED:.0%} used; the account within 1 s a slot of what the operating system saw",
        measured=f"{at_once} at once; {wrong:.0f} leases charged otherwise; spent {charged:.1f} of {cap} s; "
        f"off by {off:+.2f} s",
        kept=code == 0 and at_once == EACH and not wrong and LEAST_USED * cap <= charged <= cap
        and abs(off) <= OFF_SECONDS * EACH,
    )  # fmt: skip


def most_at_once(study: Path) -> int:
    """Leases that were open together."""
    leases = rows(study, "SELECT opened, closed FROM leases")
    return max(sum(one["opened"] <= each["opened"] < one["closed"] for one in leases) for each in leases)
