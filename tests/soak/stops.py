"""The driver stopped: searches whose driver gets SIGSTOP at random moments, for a while each, and goes on."""

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.soak.accounts import OFF_SECONDS, adds_up, compare, decodes, last_slot, spent
from tests.soak.bench import Bench, Row
from tests.soak.search import Search

STOPS, EACH = 20, 5
ROUNDS = (((60, 1), (60, 1)), ((90, 2),))
"""Searches of one slot run two at a time: (cap in seconds, slots). Over again until there were so many stops."""
SHORT_STOPS, SHORT_EACH, SHORT_ROUNDS = 2, 2, (((40, 1),),)
SHORTEST_SECONDS, LONGEST_SECONDS = 1.0, 30.0
"""Of a stop."""
SOONEST_SECONDS, LATEST_SECONDS = 0.3, 6.0
"""After its first slot was opened, or it went on, a driver is stopped at a moment between these, by chance."""
LOOK_SECONDS = 0.02
"""Between two looks whether the winner is decoded."""
OVER_SECONDS = 1.0
"""What is spent may be this far over the cap."""


def measure(bench: Bench) -> Iterator[Row]:
    """One row."""
    stops, rounds = (SHORT_STOPS, SHORT_ROUNDS) if bench.short else (STOPS, ROUNDS)
    found: list[dict[str, Any]] = []
    while sum(len(each["stops"]) for each in found) < stops and len(found) < stops:
        for searches in rounds:
            with ThreadPoolExecutor(len(searches)) as together:
                seeds = [bench.chance.randrange(1000) for _ in searches]
                names = [f"stopped-{len(found) + place}" for place in range(len(searches))]
                found += together.map(lambda name, asked, seed: _search(bench, name, *asked, seed),
                                      names, searches, seeds)  # fmt: skip
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
        and all(each["adds up"] and not each["exit"] for each in found)
        and all(abs(seconds) <= OFF_SECONDS for seconds in off),
        details=found,
    )  # fmt: skip


def _search(bench: Bench, name: str, cap: int, slots: int, seed: int) -> dict[str, Any]:
    """One search, stopped as often as it can be; the last time while it decodes its winner."""
    study, each = bench.study(name), SHORT_EACH if bench.short else EACH
    search = Search(
        bench.observer, "--budget", f"{cap}s", "--devices", str(slots), "--oversubscribe", "--report-every", "1s",
        "--seed", str(seed), "--out", study,
    )  # fmt: skip
    while not _has_slot(study) and not search.ends_within(0.1):
        pass
    stops: list[float] = []
    decoding = False
    while len(stops) < each and not search.ends_within(bench.chance.uniform(SOONEST_SECONDS, LATEST_SECONDS)):
        if len(stops) == each - 1:
            while not decodes(study) and not search.ends_within(LOOK_SECONDS):
                pass
        if search.ended is None:
            search.tell(signal.SIGSTOP)
            decoding = decodes(study)
            stops.append(bench.chance.uniform(SHORTEST_SECONDS, LONGEST_SECONDS))
            search.ends_within(stops[-1])
            search.tell(signal.SIGCONT)
    code = search.finish()
    bench.observer.look()
    held = compare(study, bench.observer.trials(search.driver))
    return {
        "study": name, "seed": seed, "cap": cap, "exit": code, "stops": stops, "while decoding": decoding,
        "spent": spent(study), "adds up": adds_up(study), "off": [slot.off for slot in held if slot.outside],
        "slots": [{"journal": slot.journal, "outside": slot.outside} for slot in held], "printed": search.printed,
    }  # fmt: skip


def _has_slot(study: Path) -> bool:
    return (study / "study.json").exists() and last_slot(study) >= 0
