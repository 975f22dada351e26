"""SIGTERM and Ctrl-C, once and twice, as a scheduler or a person sends them, and going on after each."""

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.soak.accounts import adds_up, spent
from tests.soak.bench import Bench, Row
from tests.soak.search import Search

CAP_SECONDS = 60
ORDERLY_SECONDS, AT_ONCE_SECONDS = 20.0, 6.0
BETWEEN_SECONDS = 0.3
"""From the first Ctrl-C to the second."""
CASES = (("SIGTERM", 1), ("Ctrl-C", 1), ("Ctrl-C", 2), ("SIGTERM", 2))
SHORT_CASES = (("SIGTERM", 1), ("Ctrl-C", 2))
CODES = {"SIGTERM": 128 + signal.SIGTERM, "Ctrl-C": 128 + signal.SIGINT}


def measure(bench: Bench) -> Iterator[Row]:
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
    study = bench.study(f"{name}-{times}".lower())
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
    in_order = times == 2 or (f"--resume {study}" in search.printed and adds_up(study) and code == CODES[name])
    again = Search(bench.observer, "--resume", study)
    to_its_end = again.finish() == 0 and "after its decay" in again.printed
    resumed = to_its_end and adds_up(study) and spent(study) <= CAP_SECONDS
    quick = seconds <= (ORDERLY_SECONDS if times == 1 else AT_ONCE_SECONDS)
    return {
        "signal": name, "times": times, "seconds": seconds, "exit": code, "in order": in_order, "resumed": resumed,
        "spent": spent(study), "as it should": quick and in_order and resumed,
        "printed": search.printed + again.printed,
    }  # fmt: skip
