"""The driver killed: one search, SIGKILLed again and again at random moments, and resumed at once each time."""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.soak.accounts import Held, adds_up, compare, decodes, last_slot, number, spent, taken_up
from tests.soak.bench import Bench, Row
from tests.soak.search import Search

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


def measure(bench: Bench) -> Iterator[Row]:
    """One row."""
    kills, cap = (SHORT_KILLS, SHORT_CAP_SECONDS) if bench.short else (KILLS, CAP_SECONDS)
    study = bench.study("kill")
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
        and all(abs(seconds) <= allowed for seconds in off)
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
    while not (study / "study.json").exists() and search.ended is None:
        search.ends_within(0.1)
    if when == "some time":
        search.ends_within(bench.chance.uniform(SOONEST_SECONDS, LATEST_SECONDS))
    while when == "decoding" and not decodes(study) and not search.ends_within(LOOK_SECONDS):
        pass
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
