"""The search itself: what the engine takes, whether its forecasts hold, and how long it takes to the first step."""

import json
import math
import os
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.bench.contenders import PAIRS, TEXT
from tests.bench.table import Row
from tests.tune.search.alone import Alone
from tune.curves.recorded import PUBLISHED, Curve, load_table
from tune.errors import ROOT
from tune.search.forecast import FEWEST_SIZES
from tune.search.other_caps import SPREAD
from tune.search.scaling_law import Forecaster, Observation
from tune.store.heartbeat import DRIVER, HEARTBEAT_FOLDER
from tune.store.journal import JOURNAL_FILE

SLOTS = 1000
CAP, SHORT_CAP = 4.8e8, 2e7
"""Device-seconds, of which the ladder makes so many trials; each follows a power law, a tenth diverge."""
MOST_CPU_SECONDS = 60.0
"""CPU seconds of one core, at most, of 10,000 trials."""


def slots(_: Path, *, short: bool) -> Iterator[Row]:
    """CPU seconds, on a tenth and on a hundredth of the slots too. No text is read."""
    for held in (SLOTS, SLOTS // 10, SLOTS // 100):
        search = Alone(seconds=SHORT_CAP if short else CAP, slots=held, diverging=0.1, configs=10**6)
        began = time.process_time()
        search.run()
        seconds, trials = time.process_time() - began, len(search.engine.trials)
        leases = search.rows("SELECT COUNT(*) AS leases FROM leases")[0]["leases"]
        assert search.spent <= search.seconds and len(search.rows("SELECT slot FROM slots")) >= held
        yield Row(
            what=f"{trials:,} trials and {leases:,} leases on {held:,} slots, CPU seconds",
            against="",
            asked=f"< {MOST_CPU_SECONDS:.0f}",
            measured=f"{seconds:.1f}, {1000 * seconds / leases:.2f} ms a lease",
            reached=seconds < MOST_CPU_SECONDS if trials >= 10_000 else None,
        )  # fmt: skip


SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2)
"""Of the life, that is known of each trial; the end is that of the life, at the rate or schedule of the table."""
RUNGS = (1 / 8, 1 / 4, 1 / 2, 1)
"""Of that: when its losses were seen."""
TRIALS, SEEDS = 10, 20
LEAST, MOST = 0.7, 0.9

Inside = tuple[int, int]
"""How many ends are inside, and of how many."""


def intervals(data: Path, *, short: bool) -> Iterator[Row]:
    """The published tables, and recorded ones (.jsonl) that lie in the folder; then all of a kind as one."""
    kinds: dict[str, list[list[Inside]]] = {}
    for path in (*sorted(PUBLISHED.glob("*.jsonl")), *sorted(data.glob("*.jsonl"))):
        table = load_table(path)
        curves = table.curves
        seconds = min(curve.seconds for curve in curves) if table.is_own_mode else None
        found = [inside(curves, share, seconds, seeds=2 if short else SEEDS) for share in SHARES]
        yield _row(table.name, found)
        kinds.setdefault("own mode" if table.is_own_mode else "recorded", []).append(found)
    for kind, tables in kinds.items():
        yield _row(f"all {len(tables)} of {kind}", [pooled(share) for share in zip(*tables, strict=True)])


def pooled(found: Iterable[Inside]) -> Inside:
    """Of several, as one."""
    hits, counts = zip(*found, strict=True)
    return sum(hits), sum(counts)


def _row(what: str, found: list[Inside]) -> Row:
    shares = [(f"1/{1 / share:.0f}", *each) for share, each in zip(SHARES, found, strict=True) if each[1]]
    told = {name: hits / count for name, hits, count in [*shares, ("all", *pooled(found))] if count}
    return Row(
        what=f"{what}: ends inside the interval of 80 %, by what is known of the life",
        against=", ".join(told), asked=f"{LEAST:g} to {MOST:g}",
        measured=", ".join(f"{share:.2f}" for share in told.values()),
        reached=LEAST <= told.get("all", 0.0) <= MOST,
    )  # fmt: skip


def inside(curves: tuple[Curve, ...], share: float, seconds: float | None, *, seeds: int) -> Inside:
    """Of the ends of curves, predicted at a share of their lives. seconds: of the lives; None: each has its own."""
    hits = count = 0
    for seed in range(seeds):
        tried = random.Random(seed).sample(curves, min(TRIALS, 2 * len(curves) // 3))
        lives = [(curve, curve.max_steps if seconds is None else seconds / curve.step_seconds) for curve in tried]
        known = [(curve, life, seen(curve, share * life)) for curve, life in lives]
        known = [(curve, life, losses) for curve, life, losses in known if losses and math.isfinite(curve.loss(life))]
        if len({curve.parameters for curve, _, _ in known}) < FEWEST_SIZES:
            continue
        forecaster = Forecaster.fit([losses for _, _, losses in known])
        for curve, life, losses in known:
            loss, doubt = forecaster.interval(curve.parameters, losses, life)
            hits += abs(math.log(curve.loss(life) / loss)) < SPREAD * doubt
            count += 1
    return hits, count


def seen(curve: Curve, steps: float) -> list[Observation]:
    """What is known of a trial after so many steps: its losses after the warm-up."""
    least = max(curve.warm_up_steps, curve.report_every)
    return [
        Observation(size=curve.parameters, tokens=at, loss=curve.loss(at))
        for at in (rung * steps for rung in RUNGS) if at >= least and math.isfinite(curve.loss(at))
    ]  # fmt: skip


TURNS, SHORT_TURNS = 7, 1
ASKED = 3.0
"""Seconds, at most, from where the bare one has begun to the end of the first step."""
PERIOD_SECONDS = 0.2
"""Between two looks at the processes; what they took at a moment between is on the line between both."""
LONGEST_SECONDS = 300.0
"""No start takes longer; one that does has failed."""
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
        self._process, self._ended = psutil.Process(pid), threading.Event()
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
        taken = 0.0
        for process in (self._process, *self._process.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                taken += sum(process.cpu_times()[:4])
        return taken


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
        beat = study / HEARTBEAT_FOLDER / DRIVER
        began = beat.stat().st_mtime - json.loads(beat.read_text())["said"]  # of the study's own clock
        with closing(sqlite3.connect(f"file:{study / JOURNAL_FILE}?mode=ro", uri=True)) as journal:
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
