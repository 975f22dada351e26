"""The cap and the true account: real searches of many sizes, each held against what the operating system saw of it."""

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.soak.accounts import OFF_SECONDS, OFF_SHARE, adds_up, compare, number, spent
from tests.soak.bench import Bench, Row
from tests.soak.observer import Process
from tests.soak.search import Search

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


def measure(bench: Bench) -> Iterator[Row]:
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
    study = bench.study(f"cap-{cap}s-{slots}-slots-every-{every}s")
    search = Search(
        bench.observer, "--budget", f"{cap}s", "--devices", str(slots), "--oversubscribe", "--seed", str(seed),
        "--report-every", f"{every}s", "--out", study,
    )  # fmt: skip
    code = search.finish()
    bench.observer.look()
    processes = bench.observer.trials(search.driver)
    moment = cap_moment(processes, cap)
    held = compare(study, processes)  # of several slots at once it cannot be told which process was whose
    return {
        "study": study.name, "cap": cap, "exit": code, "spent": spent(study), "adds up": adds_up(study),
        "in steps": number(study, "SELECT TOTAL(seconds) FROM charges WHERE what = 'steps'"),
        "wall seconds": (search.ended or 0.0) - search.begun,
        "CPU seconds after the cap": sum(process.cpu_after(moment) for process in processes),
        "slots": len(held), "off a slot": sum(slot.off for slot in held) / max(1, len(held)),
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
