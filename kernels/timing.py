"""Timing of contenders in turns, so that what slows the machine slows all of them; ratios of their times; and how much
of the machine other processes take meanwhile.
"""

import math
import statistics
import time
import timeit
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from kernels.kernel import Call
from tune.arithmetic import RESAMPLES, Interval
from tune.machine import core_seconds

VALUES = 20
VALUE_SECONDS = 0.01
"""Seconds of the calls whose mean is a value."""
SETTLING_SECONDS = 0.005
"""Pause before each value, in which the threads of the last contender go to sleep. A call that is not timed follows."""
SLOW_SECONDS, FEWER_VALUES = 1.0, 5
"""Seconds of a round of all contenders above which there are only so many rounds."""
TRIES = 3
CORES_TAKEN, LARGEST_SPREAD = 0.15, 0.1
"""Cores taken by others above which a run is disturbed (by tests/bench/disturbed.py, last at 92964c6), and spread above
which a row is unstable."""

Values = dict[str, list[float]]


def timer(call: Call) -> timeit.Timer:
    """Return a timer of a call with its arguments spelled out, as a caller would write it."""
    names = [f"x{place}" for place in range(len(call.arguments))]
    known: dict[str, Any] = dict(zip(names, call.arguments, strict=True)) | {"function": call.function}
    return timeit.Timer(f"function({', '.join(names)})", globals=known)


def calls_a_value(call: Call) -> int:
    """Return how many calls take about VALUE_SECONDS; finding it out warms the call up too."""
    if call.before:
        call.before()
    clock, calls = timer(call), 1
    while (seconds := clock.timeit(calls)) < VALUE_SECONDS / 4:
        calls *= 4
    return max(1, math.ceil(calls * VALUE_SECONDS / max(seconds, 1e-9)))


def in_turns(calls: Mapping[str, Call]) -> Values:
    """Time VALUES of each contender, in seconds a call, in an order that is drawn anew for every round.

    In a fixed order a contender always pays for what the same other one leaves behind: dirty cache lines, and threads
    that wait for more to do, which cost 7 % of a copy on one thread.
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
    """Watches how many cores others take since it was made: other processes, and other virtual machines."""

    def __init__(self) -> None:
        self.began, self.busy, self.own = time.perf_counter(), core_seconds(), time.process_time()

    def cores_taken(self) -> float | None:
        """Return how many cores others took in the mean; None where the system does not tell."""
        cores = self.cores()
        return None if cores is None else max(0.0, cores[0] - cores[1])

    def cores(self) -> tuple[float, float] | None:
        """Return how many cores were busy in the mean, and how many of them by this process; None as above."""
        busy = core_seconds()
        if self.busy is None or busy is None:
            return None
        seconds = max(time.perf_counter() - self.began, 1e-9)
        return (busy[0] - self.busy[0]) / seconds, (time.process_time() - self.own) / seconds


def time_undisturbed(calls: Mapping[str, Call]) -> tuple[Values, bool]:
    """Return the values of a run, and whether nobody disturbed it.

    A run that was disturbed, or in which a contender's values spread too far, is repeated, up to TRIES in all; of the
    undisturbed ones, else of all, that with the fewest such contenders counts.
    """
    tries: list[tuple[bool, int, Values]] = []
    while len(tries) < TRIES and (True, 0) not in {each[:2] for each in tries}:
        watch = Watch()
        values = in_turns(calls)
        tries.append((not is_disturbed(watch), -sum(spread(each) > LARGEST_SPREAD for each in values.values()), values))
    quiet, _, values = max(tries, key=itemgetter(0, 1))
    return values, quiet


def is_disturbed(watch: Watch) -> bool:
    """Whether others took the machine since the watch was made; False where the system does not tell."""
    taken = watch.cores_taken()
    return taken is not None and taken > CORES_TAKEN


def spread(values: Sequence[float]) -> float:
    """Return the distance of the quartiles as a share of the median."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / middle


def interval(figure: Callable[[Mapping[str, Any]], Any], rounds: Mapping[str, Sequence[float]]) -> Interval:
    """Return a figure of the medians and its 95 % interval, by the bootstrap over rounds, which keeps what was measured
    together.

    figure: computes it from the median of each series, for numbers or arrays.
    """
    series = {name: np.asarray(values) for name, values in rounds.items()}
    count = len(next(iter(series.values())))
    drawn = np.random.default_rng(0).integers(count, size=(RESAMPLES, count))
    low, high = np.percentile(figure({name: np.median(x[drawn], axis=1) for name, x in series.items()}), (2.5, 97.5))
    return float(figure({name: np.median(x) for name, x in series.items()})), float(low), float(high)


def ratio(slow: Sequence[float], fast: Sequence[float]) -> Interval:
    """Return the ratio of the medians of two series that were measured together, with its interval."""
    return interval(lambda median: median["slow"] / median["fast"], {"slow": slow, "fast": fast})
