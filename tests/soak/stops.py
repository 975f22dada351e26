"""The driver stopped: searches whose driver gets SIGSTOP at random moments, for a while each, and goes on."""

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.soak.accounts import OFF_SECONDS, adds_up, compare, decodes, last_slot, spent
from tests.soak.bench import Bench, Row
from tests.soak.search import Search
from tune.store.journal import FILE

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


def measure(bench: Bench) -> Iterator[Row]:
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
        and all(abs(seconds) <= OFF_SECONDS for seconds in off),
        details=found,
    )  # fmt: skip


def _side_by_side(
    bench: Bench, searches: tuple[tuple[int, int], ...], begun: int, *, aimed: bool
) -> list[dict[str, Any]]:  # fmt: skip
    seeds = [bench.chance.randrange(1000) for _ in searches]
    names = [f"stopped-{begun + place}" for place in range(len(searches))]
    with ThreadPoolExecutor(len(searches)) as together:
        return list(
            together.map(lambda name, asked, seed: _search(bench, name, asked, seed, aimed), names, searches, seeds)
        )


def _search(bench: Bench, name: str, asked: tuple[int, int], seed: int, aimed: bool) -> dict[str, Any]:
    """One search of (cap, slots), stopped as often as it can be, or, where it is aimed, once, as it decodes."""
    (cap, slots), study, each = asked, bench.study(name), 1 if aimed else SHORT_EACH if bench.short else EACH
    search = Search(
        bench.observer, "--budget", f"{cap}s", "--devices", str(slots), "--oversubscribe", "--report-every", "1s",
        "--seed", str(seed), "--out", study, *(("--families", "translation") if aimed else ()),
    )  # fmt: skip
    while not _has_slot(study) and not search.ends_within(0.1):
        pass
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
        "slots": [{"journal": slot.journal, "outside": slot.outside} for slot in held], "printed": search.printed,
    }  # fmt: skip


def _ended_well(found: dict[str, Any]) -> bool:
    """A driver that slept for most of its cap may find nothing, and says so."""
    return not found["exit"] or (found["exit"] == 1 and "no trial reached a rung" in found["printed"])


def _moment(bench: Bench, search: Search, study: Path, aimed: bool) -> bool:
    """Wait for when to stop it: when it decodes, or by chance. Whether it ended before."""
    if not aimed:
        return search.ends_within(bench.chance.uniform(SOONEST_SECONDS, LATEST_SECONDS))
    while not decodes(study) and not search.ends_within(LOOK_SECONDS):
        pass
    return search.ended is not None


def _has_slot(study: Path) -> bool:
    return (study / FILE).exists() and last_slot(study) >= 0
