"""A trial's process killed at random moments: once, and it goes on from its checkpoint; twice, and it has failed."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.soak.accounts import adds_up, compare, rows, spent, taken_up
from tests.soak.bench import Bench, Row
from tests.soak.search import Search

CAP_SECONDS, SHORT_CAP_SECONDS = 240, 80
VICTIMS = (1, 2, 1)
SHORT_VICTIMS = (2,)
"""How often the process of each trial is killed that is chosen as a victim, one after the other."""
SOONEST_SECONDS, LATEST_SECONDS = 0.5, 4.0
"""A process is killed so long after its lease was opened and its process was seen to work, by chance."""
LOST_SECONDS = 60.0
"""The interval between two checkpoints: no more training than this may be lost."""
NEW_PROCESS_SECONDS = 2.5
"""A slot is charged from when Ray is asked for its process; beside other work Ray takes so long to begin one."""


def measure(bench: Bench) -> Iterator[Row]:
    """One row."""
    cap, victims = (SHORT_CAP_SECONDS, SHORT_VICTIMS) if bench.short else (CAP_SECONDS, VICTIMS)
    study = bench.study("trial-killed")
    search = Search(
        bench.observer, "--budget", f"{cap}s", "--families", "nanogpt", "--devices", "1", "--report-every", "1s",
        "--out", study,
    )  # fmt: skip
    search.wait_for("at rung 0")
    deaths: dict[str, int] = {}
    for times in victims:
        victim = None
        for _ in range(times):
            victim = kill_one(bench, search, study, victim, spare=set(deaths))
            if victim:
                deaths[victim] = deaths.get(victim, 0) + 1
    code = search.finish()
    bench.observer.look()
    slots = compare(study, bench.observer.trials(search.driver))
    found = [fate(study, trial, count) for trial, count in deaths.items()]
    right = [each for each in found if each["as it should"]]
    most = max((each["training lost"] for each in found), default=0.0)
    off = max(abs(slot.off) for slot in slots)
    yield Row(
        what="trial killed",
        asked=f"{sum(victims)} kills of {len(victims)} trials: goes on from its checkpoint, charged for the lost part; "
        "after 2 deaths recorded as failed",
        measured=f"{sum(deaths.values())} kills: {len(right)} of {len(found)} trials as asked, at most {most:.1f} s of "
        f"training lost; spent {spent(study):.1f} of {cap} s, off by at most {off:.2f} s a slot",
        kept=code == 0 and [deaths[trial] for trial in deaths] == list(victims) and len(right) == len(found)
        and spent(study) <= cap and adds_up(study) and all(abs(slot.off) <= NEW_PROCESS_SECONDS for slot in slots),
        details=found + [{"journal": slot.journal, "outside": slot.outside} for slot in slots],
    )  # fmt: skip


def kill_one(bench: Bench, search: Search, study: Path, victim: str | None, spare: set[str]) -> str | None:
    """SIGKILL the process of a trial that trains: of the victim, else of any but those to spare. Its name."""
    while not search.ends_within(0.1):
        running = rows(study, "SELECT trial, lease FROM leases WHERE closed IS NULL")
        chosen = [row for row in running if (row["trial"] == victim if victim else row["trial"] not in spare)]
        if not chosen:
            continue
        search.ends_within(bench.chance.uniform(SOONEST_SECONDS, LATEST_SECONDS))
        lease = chosen[0]["lease"]
        here = [process for process in bench.observer.trials(search.driver) if process.gone is None]
        if not here or not is_open(study, lease):
            continue
        here[-1].kill()
        while not search.ends_within(0.1) and is_open(study, lease):
            pass
        return str(chosen[0]["trial"])
    return None


def is_open(study: Path, lease: int) -> bool:
    """Whether a lease is still running."""
    return bool(rows(study, "SELECT 1 FROM leases WHERE lease = ? AND closed IS NULL", lease))


def fate(study: Path, trial: str, deaths: int) -> dict[str, Any]:
    """What became of a trial whose process died so often."""
    state = rows(study, "SELECT state, reason FROM trials WHERE trial = ?", trial)[0]
    lost = rows(study, "SELECT seconds FROM charges WHERE trial = ? AND what = 'lost' AND seconds > 0", trial)
    leases = [each for each in taken_up(study) if each["trial"] == trial]
    again = [max(0.0, before["ended"] - after["began"]) for before, after in itertools.pairwise(leases)]
    charged = len(lost) == deaths
    ends_right = state["state"] == "failed" if deaths > 1 else state["state"] != "failed"
    return {
        "trial": trial, "deaths": deaths, **state, "charged as lost": [row["seconds"] for row in lost],
        "training lost": max(again, default=0.0),
        "as it should": charged and ends_right and max(again, default=0.0) <= LOST_SECONDS,
    }  # fmt: skip
