"""How long a search takes to its first optimizer step, beside what Ray and torch take to start with nothing to do."""

import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.bench.contenders import PAIRS, TEXT
from tests.bench.table import Row
from tune.machine import stat_of
from tune.store.heartbeat import DRIVER, FOLDER
from tune.store.journal import FILE

ROOT = Path(__file__).resolve().parents[2]
TURNS, SHORT_TURNS = 7, 1
ASKED = 3.0
"""Seconds, at most, from where the bare one has begun to the end of the first step."""
PERIOD_SECONDS = 0.2
"""Between two looks at the processes; what they took at a moment between is on the line between both."""
LONGEST_SECONDS = 300.0
"""No start takes longer; one that does has failed."""
TICKS = os.sysconf("SC_CLK_TCK")
BARE = """
import time, ray

@ray.remote
class Actor:
    def begun(self):
        import torch
        return torch.ones(1).item()

ray.init(num_cpus={cpus}, include_dashboard=False, log_to_driver=False)
ray.get(Actor.remote().begun.remote())
print(time.time(), flush=True)
time.sleep({longest})
"""


@dataclass(frozen=True, kw_only=True)
class Start:
    """Seconds from the command to the moment, by the wall clock and of all its processes' CPU time."""

    wall: float
    cpu: float


class Account(threading.Thread):
    """CPU seconds of a process and all that it begot, look by look."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid, self._ended = pid, threading.Event()
        self._looks = [(time.time(), 0.0)]
        self.start()

    def run(self) -> None:
        """Until `end`."""
        while not self._ended.wait(PERIOD_SECONDS):
            self._looks.append((time.time(), self._taken()))

    def end(self) -> None:
        """Look no more."""
        self._ended.set()
        self.join()

    def at(self, moment: float) -> float:
        """What they had taken at a moment of the system's clock; it waits for a look that is later."""
        while self._looks[-1][0] < moment:
            time.sleep(PERIOD_SECONDS)
        (before, some), (after, more) = next(
            pair for pair in zip(self._looks, self._looks[1:], strict=False) if pair[1][0] >= moment
        )
        return some + (more - some) * (moment - before) / (after - before)

    def _taken(self) -> float:
        """With those that are gone and were waited for."""
        parents, taken = dict[int, int](), dict[int, float]()
        for name in filter(str.isdigit, os.listdir("/proc")):
            if fields := stat_of(name):
                parents[int(name)], taken[int(name)] = int(fields[1]), sum(map(int, fields[11:15])) / TICKS
        family = {self._pid}
        while more := {pid for pid, parent in parents.items() if parent in family} - family:
            family |= more
        return sum(taken.get(pid, 0.0) for pid in family)


@contextmanager
def started(words: Sequence[str | Path]) -> Iterator[tuple[subprocess.Popen[str], float, Account]]:
    """A command while it runs, when it was given, and the account of its processes; it is ended, in order."""
    began = time.time()
    process = subprocess.Popen(
        [sys.executable, *map(str, words)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    account = Account(process.pid)
    try:
        yield process, began, account
    finally:
        account.end()
        process.terminate()  # a shell that put this in the background may have its SIGINT ignored
        process.communicate(timeout=LONGEST_SECONDS)


def bare(cpus: int) -> Start:
    """Ray with one actor, which imports torch."""
    with started(["-c", BARE.format(cpus=cpus, longest=LONGEST_SECONDS)]) as (process, began, account):
        assert process.stdout is not None
        moment = float(process.stdout.readline())
        return Start(wall=moment - began, cpu=account.at(moment))


def ours(flags: Sequence[str | Path]) -> Start:
    """A search to the end of the first step that any trial of it took."""
    with tempfile.TemporaryDirectory(prefix="ration-") as folder:
        study = Path(folder, "study")
        with started(["tune/run.py", *flags, "--out", study]) as (process, began, account):
            while (moment := first_step(study)) is None:
                assert process.poll() is None and time.time() - began < LONGEST_SECONDS, "it took no step"
                time.sleep(PERIOD_SECONDS)
            return Start(wall=moment - began, cpu=account.at(moment))


def first_step(study: Path) -> float | None:
    """When the first step ended, by the system's clock; None where no trial has told of one yet.

    What a first report was charged lies before it, and of its steps all but the first took their median.
    """
    query = """
        SELECT first.at, steps, step_seconds, SUM(seconds), SUM(seconds * (what IN ('start', 'steps')))
        FROM (SELECT lease, MIN(at) AS at, steps, step_seconds FROM reports WHERE steps GROUP BY lease) AS first
        JOIN charges ON charges.lease = first.lease AND charges.at <= first.at GROUP BY first.lease"""
    try:
        beat = study / FOLDER / DRIVER
        began = beat.stat().st_mtime - json.loads(beat.read_text())["at"]  # of the study's own clock
        with closing(sqlite3.connect(f"file:{study / FILE}?mode=ro", uri=True)) as journal:
            found = journal.execute(query).fetchall()
    except (OSError, ValueError, sqlite3.Error):
        return None
    return min(
        (began + at - whole + own - (steps - 1) * median for at, steps, median, whole, own in found), default=None
    )


def start(data: Path, *, short: bool) -> Iterator[Row]:
    """The second start of a search whose texts are prepared, on one core as the bare one, and of both families."""
    text, pairs = ("--text-corpus", data / TEXT), ("--translation-corpus", data / PAIRS)
    for what, cpus, flags in (
        ("nanogpt on one core", 1, ("--budget", "4m", "--families", "nanogpt", *text, "--devices", "1")),
        ("both families", os.cpu_count() or 1, ("--budget", "4m", *text, *pairs)),
    ):
        ours(flags)  # prepares the text, and reads what is imported
        found = [(bare(cpus), ours(flags)) for _ in range(SHORT_TURNS if short else TURNS)]
        for name, seconds in (("wall", "seconds"), ("cpu", "CPU seconds of all processes")):
            plain, begun = ([getattr(one, name) for one in each] for each in zip(*found, strict=True))
            more = [late - early for early, late in zip(plain, begun, strict=True)]
            asked = name == "wall" or cpus == 1  # else processes of several trials are counted
            yield Row(
                what=f"to the first step of a second search, {what}, {seconds}",
                against=f"Ray, one actor and import torch: {statistics.median(plain):.1f}",
                asked=f"<= {ASKED:.0f} more" if asked else "",
                measured=f"{statistics.median(more):.1f} more ({min(more):.1f} to {max(more):.1f}): "
                f"{statistics.median(begun):.1f}",
                reached=statistics.median(more) <= ASKED if asked else None,
            )  # fmt: skip
