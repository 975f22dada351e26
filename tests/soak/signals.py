"""Signals to the driver: SIGTERM and Ctrl-C, once and twice, as a scheduler or a person sends them, and going on after
each; SIGSTOP at random moments, for a while each, and it goes on.
"""

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.soak.accounts import OFF_SECONDS, adds_up, compare, decodes, last_slot, spent
from tests.soak.search import Bench, Row, Search
from tune.store.journal import JOURNAL_FILE

CAP_SECONDS = 60
ORDERLY_SECONDS, AT_ONCE_SECONDS = 20.0, 6.0
BETWEEN_SECONDS = 0.3
"""From the first Ctrl-C to the second."""
CASES = (("SIGTERM", 1), ("Ctrl-C", 1), ("Ctrl-C", 2), ("SIGTERM", 2))
SHORT_CASES = (("SIGTERM", 1), ("Ctrl-C", 2))
CODES = {"SIGTERM": 128 + signal.SIGTERM, "Ctrl-C": 128 + signal.SIGINT}


def signalled(bench: Bench) -> Iterator[Row]:
    """One row. Two searches of one slot run at a time, on a core each."""
    cases = SHORT_CASES if bench.short else CASES
    moments = [bench.chance.uniform(0.0, 6.0) for _ in cases]
    with ThreadPoolExecutor(2) as together:
        found = list(together.map(lambda case, moment: _case(bench, *case, moment), cases, moments))
    once = [each["seconds"] for each in found if each["times"] == 1]
    twice = [each["seconds"] for each in found if each["times"] == 2]
    yield Row(
        what="signals",
        asked=f"once: ends in order within {ORDERLY_SECONDS:.0f} s; twice: at once; --resume goes on from both",
        measured=f"once: {max(once):.1f} s; twice: {max(twice):.1f} s; {sum(each['resumed'] for each in found)} of "
        f"{len(found)} resumed to their ends within the cap",
        kept=all(each["as it should"] for each in found),
        details=found,
    )


def _case(bench: Bench, name: str, times: int, moment: float) -> dict[str, Any]:
    """A search told to end so many times, some seconds after its first result; then resumed."""
    study = bench.folder / f"{name}-{times}".lower()
    search = Search(
        bench.observer, "--budget", f"{CAP_SECONDS}s", "--families", "nanogpt", "--devices", "1", "--out", study
    )
    search.wait_for("at rung 0")
    search.ends_within(moment)
    send = search.interrupt if name == "Ctrl-C" else lambda: search.tell(signal.SIGTERM)
    told = time.monotonic()
    send()
    if times == 2:
        search.ends_within(BETWEEN_SECONDS)
        told = time.monotonic()
        if search.ended is None:
            send()
    code = search.finish()
    assert search.ended is not None
    seconds = search.ended - told
    told_all = "\nspent " in search.printed
    if times == 1:
        in_order = told_all and f"--resume {study}" in search.printed and adds_up(study) and code == CODES[name]
    else:
        in_order = not told_all and bool(code)
    again = Search(bench.observer, "--resume", study)
    to_its_end = again.finish() == 0 and "after its decay" in again.printed
    resumed = to_its_end and adds_up(study) and spent(study) <= CAP_SECONDS
    quick = seconds <= (ORDERLY_SECONDS if times == 1 else AT_ONCE_SECONDS)
    return {
        "signal": name, "times": times, "seconds": seconds, "exit": code, "in order": in_order, "resumed": resumed,
        "spent": spent(study), "as it should": quick and in_order and resumed,
        "printed": search.printed + again.printed,
    }  # fmt: skip


STOPS, EACH = 20, 5
ROUNDS = (((60, 1), (60, 1)), ((90, 2),))
"""Searches of one slot run two at a time: (cap in seconds, slots). Over again until there were so many stops."""
AIMED = ((240, 1), (240, 1))
"""Searches that are long enough to be sure to decode their winner, and are stopped as they do, and not before."""
SHORT_STOPS, SHORT_EACH, SHORT_ROUNDS = 2, 2, (((40, 1),),)
SHORTEST_SECONDS, LONGEST_SECONDS = 1.0, 30.0
"""Of a stop."""
SOONEST_SECONDS, LATEST_SECONDS = 0.3, 6.0
"""After its first slot was opened, or it went on, a driver is stopped at a moment between these, by chance."""
LOOK_SECONDS = 0.02
"""Between two looks whether the winner is decoded."""
OVER_SECONDS = 1.0
"""What is spent may be this far over the cap."""


def driver_stopped(bench: Bench) -> Iterator[Row]:
    """One row."""
    stops, rounds = (SHORT_STOPS, SHORT_ROUNDS) if bench.short else (STOPS, ROUNDS)
    found: list[dict[str, Any]] = []
    while sum(len(each["stops"]) for each in found) < stops and len(found) < stops:
        for searches in rounds:
            found += _side_by_side(bench, searches, len(found), aimed=False)
    found += () if bench.short else _side_by_side(bench, AIMED, len(found), aimed=True)
    count = sum(len(each["stops"]) for each in found)
    decoding = sum(each["while decoding"] for each in found)
    over = max(each["spent"] - each["cap"] for each in found)
    off = [seconds for each in found for seconds in each["off"]]
    yield Row(
        what="driver stopped",
        asked=f"{stops} stops of {SHORTEST_SECONDS:.0f} to {LONGEST_SECONDS:.0f} s, decoding included: spent <= cap + "
        f"{OVER_SECONDS:.0f} s; nothing charged twice or lost; the account within 1 s a slot of what the operating "
        "system saw",
        measured=f"{count} stops in {len(found)} searches, {decoding} while decoding; spent at most {over:+.2f} s "
        f"beside the cap; {sum(each['adds up'] for each in found)} accounts add up, off by {min(off):+.2f} to "
        f"{max(off):+.2f} s a slot",
        kept=count >= stops and (decoding > 0 or bench.short) and over <= OVER_SECONDS
        and all(each["adds up"] and _ended_well(each) for each in found)
        and all(each["account holds"] for each in found),
        details=found,
    )  # fmt: skip


def _side_by_side(
    bench: Bench, searches: tuple[tuple[int, int], ...], begun: int, *, aimed: bool
) -> list[dict[str, Any]]:  # fmt: skip
    seeds = [bench.chance.randrange(1000) for _ in searches]
    names = [f"stopped-{begun + place}" for place in range(len(searches))]
    with ThreadPoolExecutor(len(searches)) as together:
        return list(
            together.map(lambda name, asked, seed: _stopped(bench, name, asked, seed, aimed), names, searches, seeds)
        )


def _stopped(bench: Bench, name: str, asked: tuple[int, int], seed: int, aimed: bool) -> dict[str, Any]:
    """One search of (cap, slots), stopped as often as it can be, or, where it is aimed, once, as it decodes."""
    (cap, slots), study, each = asked, bench.folder / name, 1 if aimed else SHORT_EACH if bench.short else EACH
    search = Search(
        bench.observer, "--budget", f"{cap}s", "--devices", str(slots), "--oversubscribe", "--report-every", "1s",
        "--seed", str(seed), "--out", study, *(("--families", "translation") if aimed else ()),
    )  # fmt: skip
    search.until(lambda: (study / JOURNAL_FILE).exists() and last_slot(study) >= 0)
    stops: list[float] = []
    decoding = False
    while len(stops) < each and not _moment(bench, search, study, aimed):
        search.tell(signal.SIGSTOP)
        decoding = decoding or decodes(study)
        stops.append(bench.chance.uniform(SHORTEST_SECONDS, LONGEST_SECONDS))
        search.ends_within(stops[-1])
        search.tell(signal.SIGCONT)
    code = search.finish()
    bench.observer.look()
    held = compare(study, bench.observer.trials(search.driver))
    return {
        "study": name, "seed": seed, "cap": cap, "exit": code, "stops": stops, "while decoding": decoding,
        "spent": spent(study), "adds up": adds_up(study), "off": [slot.off for slot in held if slot.outside],
        "account holds": all(slot.is_within(OFF_SECONDS) for slot in held),
        "slots": [{"journal": slot.journal, "outside": slot.outside} for slot in held], "printed": search.printed,
    }  # fmt: skip


def _ended_well(found: dict[str, Any]) -> bool:
    """A driver that slept for most of its cap may find nothing, and says so."""
    return not found["exit"] or (found["exit"] == 1 and "no trial reached a rung" in found["printed"])


def _moment(bench: Bench, search: Search, study: Path, aimed: bool) -> bool:
    """Wait for when to stop it: when it decodes, or by chance. Whether it ended before."""
    if not aimed:
        return search.ends_within(bench.chance.uniform(SOONEST_SECONDS, LATEST_SECONDS))
    return not search.until(lambda: decodes(study), LOOK_SECONDS)
