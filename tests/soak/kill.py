"""Killed at random moments: the driver, again and again, and resumed at once each time; a trial's process, once, and it
goes on from its checkpoint, or twice, and it has failed.
"""

import itertools
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.soak.accounts import Held, adds_up, compare, decodes, last_slot, number, rows, spent, taken_up
from tests.soak.search import Bench, Row, Search

KILLS, CAP_SECONDS = 20, 480
SHORT_KILLS, SHORT_CAP_SECONDS = 1, 48
SOONEST_SECONDS, LATEST_SECONDS = 1.0, 24.0
"""After the start of a run it is killed at a moment between these, by chance."""
CHECKPOINT_SECONDS = 60.0
"""The interval between two checkpoints of a segment, and so the training that a kill may cost."""
HEARTBEAT_SECONDS = 1.0
"""How far the charge of a trial, or of a slot between two, may be off after a kill."""
BUSY = 2.5
"""The short form runs wherever the tests do, beside other work, and allows so much more."""
ENDING_SECONDS = 40.0
"""How long after the last run an agent of Ray's may still be ending."""
LOOK_SECONDS = 0.02
"""Between two looks whether the winner is decoded."""
ASTRAY = "does not tell all that the search knew"
"""As --resume says where the engine that it rebuilt has another digest than the one that was killed."""
TOLD = re.compile(r"(t\d+) \w+ (?:at rung (\d+)|after its decay): perplexity")


@dataclass(frozen=True, kw_only=True)
class Life:
    """One run of the search, until it was killed or over: its driver, what it printed, and the last slots around it."""

    driver: int
    seconds: float
    killed: bool
    decoded: bool
    printed: str
    slot_before: int
    slot: int


def driver_killed(bench: Bench) -> Iterator[Row]:
    """One row."""
    kills, cap = (SHORT_KILLS, SHORT_CAP_SECONDS) if bench.short else (KILLS, CAP_SECONDS)
    study = bench.folder / "kill"
    lives = [life(bench, study, "--budget", f"{cap}s", "--report-every", "1s", "--out", study)]
    while len(lives) < kills and lives[-1].killed:
        lives.append(life(bench, study, "--resume", study))
    if lives[-1].killed:
        lives.append(life(bench, study, "--resume", study, when="decoding"))
    if lives[-1].killed:
        lives.append(life(bench, study, "--resume", study, when="never"))
    orphans = left_over(bench, lives)
    slots = [slot for each in lives for slot in slots_of(bench, study, each)]
    starting = [slot.journal for slot in slots if not slot.outside]
    lost = [told for each in lives for told in TOLD.findall(each.printed) if not is_in(study, *told)]
    training = max((seconds for _, seconds in lost_training(study)), default=0.0)
    killed, decoding = sum(each.killed for each in lives), sum(each.killed and each.decoded for each in lives)
    astray = sum(ASTRAY in each.printed for each in lives)
    off = [slot.off for slot in slots if slot.outside]
    allowed = HEARTBEAT_SECONDS * (BUSY if bench.short else 1)
    yield Row(
        what="driver killed",
        asked=f"{kills} kills, and one while decoding: no printed report lost; the engine's digest the same; charges "
        f"off by <= {HEARTBEAT_SECONDS:.0f} s a trial; spent <= cap; training lost <= {CHECKPOINT_SECONDS:.0f} s; "
        "no orphan",
        measured=f"{killed} kills, {decoding} while decoding: {len(lost)} reports lost; {astray} other digests; "
        f"charges off by {min(off):+.2f} to {max(off):+.2f} s ({len(starting)} more were killed before their process "
        f"worked: charged {max(starting, default=0):.1f} s at most); spent {spent(study):.1f} of {cap} s; "
        f"at most {training:.1f} s of training lost; {len(orphans)} orphans",
        kept=killed >= kills and (decoding > 0 or bench.short) and not lost and not astray
        and all(slot.is_within(allowed) for slot in slots)
        and spent(study) <= cap and adds_up(study) and training <= CHECKPOINT_SECONDS and not orphans,
        details=[
            {
                "seconds": each.seconds, "killed": each.killed, "reports printed": len(TOLD.findall(each.printed)),
                "slots": [{"journal": slot.journal, "outside": slot.outside} for slot in slots_of(bench, study, each)],
            }
            for each in lives
        ] + [{"training lost": dict(lost_training(study)), "reports lost": lost, "orphans": orphans}],
    )  # fmt: skip


def left_over(bench: Bench, lives: list[Life]) -> list[int]:
    """Processes that do not end by themselves."""
    deadline = time.monotonic() + ENDING_SECONDS
    while True:
        found = [process.pid for each in lives for process in bench.observer.alive(each.driver)]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(1.0)


def life(bench: Bench, study: Path, *flags: str | Path, when: str = "some time") -> Life:
    """One run, killed at a random moment of it, or when it decodes its winner, or never; the first not before it has a
    journal to resume from.
    """
    slot_before = last_slot(study) if (study / "study.json").exists() else -1
    search = Search(bench.observer, *flags)
    search.until((study / "study.json").exists)
    if when == "some time":
        search.ends_within(bench.chance.uniform(SOONEST_SECONDS, LATEST_SECONDS))
    if when == "decoding":
        search.until(lambda: decodes(study), LOOK_SECONDS)
    if when == "never":
        search.finish()
    was_over, seconds = search.ended is not None, time.monotonic() - search.begun
    search.kill()
    return Life(
        driver=search.driver, seconds=seconds, killed=not was_over, decoded=decodes(study), printed=search.printed,
        slot_before=slot_before, slot=last_slot(study),
    )  # fmt: skip


def slots_of(bench: Bench, study: Path, each: Life) -> list[Held]:
    """The two accounts of the slots of one run."""
    return compare(study, bench.observer.trials(each.driver), after=each.slot_before, to=each.slot)


def is_in(study: Path, trial: str, rung: str) -> bool:
    """Whether a result that was printed is in the journal, once."""
    what, values = ("rung = ?", (trial, int(rung))) if rung else ("final", (trial,))
    return number(study, f"SELECT COUNT(*) FROM reports WHERE trial = ? AND {what}", *values) == 1


def lost_training(study: Path) -> list[tuple[str, float]]:
    """Seconds of training that each lease had to do again: where the one before had ended, less where it began."""
    ended: dict[str, float] = {}
    lost = []
    for lease in taken_up(study):
        lost.append((f"{lease['trial']} lease {lease['lease']}", ended.get(lease["trial"], 0.0) - lease["began"]))
        ended[lease["trial"]] = lease["ended"]
    return [(name, max(0.0, seconds)) for name, seconds in lost]


TRIALS_CAP_SECONDS, SHORT_TRIALS_CAP_SECONDS = 240, 80
VICTIMS = (1, 2, 1)
SHORT_VICTIMS = (2,)
"""How often the process of each trial is killed that is chosen as a victim, one after the other."""
SOONEST_DEATH_SECONDS, LATEST_DEATH_SECONDS = 0.5, 4.0
"""A process is killed so long after its lease was opened and its process was seen to work, by chance."""
NEW_PROCESS_SECONDS = 2.5
"""A slot is charged from when Ray is asked for its process; beside other work Ray takes so long to begin one."""


def trial_killed(bench: Bench) -> Iterator[Row]:
    """One row."""
    cap, victims = (SHORT_TRIALS_CAP_SECONDS, SHORT_VICTIMS) if bench.short else (TRIALS_CAP_SECONDS, VICTIMS)
    study = bench.folder / "trial-killed"
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
        and spent(study) <= cap and adds_up(study) and all(slot.is_within(NEW_PROCESS_SECONDS) for slot in slots),
        details=found + [{"journal": slot.journal, "outside": slot.outside} for slot in slots],
    )  # fmt: skip


def kill_one(bench: Bench, search: Search, study: Path, victim: str | None, spare: set[str]) -> str | None:
    """SIGKILL the process of a trial that trains: of the victim, else of any but those to spare. Its name."""
    while not search.ends_within(0.1):
        running = rows(study, "SELECT trial, lease FROM leases WHERE closed IS NULL")
        chosen = [row for row in running if (row["trial"] == victim if victim else row["trial"] not in spare)]
        if not chosen:
            continue
        search.ends_within(bench.chance.uniform(SOONEST_DEATH_SECONDS, LATEST_DEATH_SECONDS))
        lease = chosen[0]["lease"]
        here = [process for process in bench.observer.trials(search.driver) if process.gone is None]
        if not here or not is_open(study, lease):
            continue
        here[-1].kill()
        search.until(lambda lease=lease: not is_open(study, lease))
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
        "as it should": charged and ends_right and max(again, default=0.0) <= CHECKPOINT_SECONDS,
    }  # fmt: skip
