"""Contenders timed in turns, so that what slows the machine slows all of them; ratios of their times; and what others
take of the machine meanwhile.
"""

import math
import os
import statistics
import time
import timeit
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from kernels.kernel import Call
from tune.arithmetic import RESAMPLES, Interval

VALUES = 20
VALUE_SECONDS = 0.01
"""A value is the mean of as many calls as take this long."""
SETTLING_SECONDS = 0.005
"""Before each value: the threads of the contender before go to sleep by then. A call that is not timed follows."""
SLOW_SECONDS, FEWER_VALUES = 1.0, 5
"""Where a round of all contenders takes longer, there are fewer rounds."""
TRIES = 3
CORES_TAKEN, LARGEST_SPREAD = 0.15, 0.1
"""Above these a run is disturbed, and a row is unstable. The first: tests/bench/disturbed.py, last at 92964c6."""

STAT = Path("/proc/stat")

Values = dict[str, list[float]]


def timer(call: Call) -> timeit.Timer:
    """Of the call with its arguments spelled out, as a caller would write it."""
    names = [f"x{place}" for place in range(len(call.arguments))]
    known: dict[str, Any] = dict(zip(names, call.arguments, strict=True)) | {"function": call.function}
    return timeit.Timer(f"function({', '.join(names)})", globals=known)


def calls_a_value(call: Call) -> int:
    """So many that they take VALUE_SECONDS; the doubling warms the call up too."""
    if call.before:
        call.before()
    clock, calls = timer(call), 1
    while (seconds := clock.timeit(calls)) < VALUE_SECONDS / 4:
        calls *= 4
    return max(1, math.ceil(calls * VALUE_SECONDS / max(seconds, 1e-9)))


def in_turns(calls: Mapping[str, Call]) -> Values:
    """Seconds a call: VALUES of each contender, in an order that is drawn anew for every round.

    In one order for all rounds a contender always pays for what the same other one leaves behind: dirty lines in the
    caches, and threads that wait for more to do, which took 7 % of a copy on one thread.
    """
    random = np.random.default_rng(0)
    numbers = {name: calls_a_value(call) for name, call in calls.items()}
    clocks = {name: timer(call) for name, call in calls.items()}
    values: Values = {name: [] for name in calls}
    rounds, done = VALUES, 0
    while done < rounds:
        began = timeit.default_timer()
        for name in random.permutation(list(calls)):
            if before := calls[name].before:
                before()
            time.sleep(SETTLING_SECONDS)
            if numbers[name] > 1:
                clocks[name].timeit(1)
            values[name].append(clocks[name].timeit(numbers[name]) / numbers[name])
        done += 1
        rounds = FEWER_VALUES if timeit.default_timer() - began > SLOW_SECONDS and done < FEWER_VALUES else rounds
    return values


class Watch:
    """Cores that others took since it was made: other processes, and other machines on the same one."""

    def __init__(self) -> None:
        self.began, self.busy, self.own = time.perf_counter(), _busy_seconds(), time.process_time()

    def cores_taken(self) -> float | None:
        """Mean over the time; None where the system does not tell."""
        cores = self.cores()
        return None if cores is None else max(0.0, cores[0] - cores[1])

    def cores(self) -> tuple[float, float] | None:
        """Those of the machine that were busy, and of these the ones of this process; as above."""
        busy = _busy_seconds()
        if self.busy is None or busy is None:
            return None
        seconds = max(time.perf_counter() - self.began, 1e-9)
        return (busy - self.busy) / seconds, (time.process_time() - self.own) / seconds


def _busy_seconds() -> float | None:
    """Of all cores together, stolen time included; it counts in hundredths of a second."""
    try:
        user, nice, system, _, _, irq, softirq, steal = map(int, STAT.read_text().split("\n")[0].split()[1:9])
    except (OSError, ValueError):
        return None
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def undisturbed(calls: Mapping[str, Call]) -> tuple[Values, bool]:
    """The values, and whether they are of a run that nobody disturbed.

    A run that was disturbed, or in which a contender's values spread too far, is made again, TRIES in all: of those
    that nobody disturbed the one with the fewest such contenders counts.
    """
    tries: list[tuple[bool, int, Values]] = []
    while len(tries) < TRIES and (True, 0) not in {each[:2] for each in tries}:
        watch = Watch()
        values = in_turns(calls)
        tries.append((not disturbed(watch), -sum(spread(each) > LARGEST_SPREAD for each in values.values()), values))
    quiet, _, values = max(tries, key=itemgetter(0, 1))
    return values, quiet


def disturbed(watch: Watch) -> bool:
    """Whether others took the machine since the watch was made; False where the system does not tell."""
    taken = watch.cores_taken()
    return taken is not None and taken > CORES_TAKEN


def spread(values: Sequence[float]) -> float:
    """The distance of the quartiles as a share of the median."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / middle


def interval(figure: Callable[[Mapping[str, Any]], Any], rounds: Mapping[str, Sequence[float]]) -> Interval:
    """A figure of the medians; its interval by the bootstrap over the rounds, which keeps what was measured together.

    figure: from the median of each series, a number or an array of them.
    """
    series = {name: np.asarray(values) for name, values in rounds.items()}
    count = len(next(iter(series.values())))
    drawn = np.random.default_rng(0).integers(count, size=(RESAMPLES, count))
    low, high = np.percentile(figure({name: np.median(x[drawn], axis=1) for name, x in series.items()}), (2.5, 97.5))
    return float(figure({name: np.median(x) for name, x in series.items()})), float(low), float(high)


def ratio(slow: Sequence[float], fast: Sequence[float]) -> Interval:
    """Of the medians of two that were measured together."""
    return interval(lambda median: median["slow"] / median["fast"], {"slow": slow, "fast": fast})
