"""The kernels' figures: ratios of implementations that took turns, each beside what is aimed at and its floor."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median

from kernels import benchmark, timing
from kernels.benchmark import KERNELS
from kernels.kernel import THREADS
from kernels.settings import parse_sizes
from tests.bench.table import Row
from tune.experiments.kernels import cluster

SAMPLES = 1_000_000
"""Of pi: the most that pure Python is timed with."""
ROUNDS, ROUND_SECONDS = 20, 0.1
"""Inside a Ray task against outside."""
LARGEST_SLOWDOWN = 1.03
SEED = 0
UNSTABLE = "unstable: not quoted"


@dataclass(frozen=True, kw_only=True)
class Figure:
    """How many times as fast `fast` is as `slow`; but: in what else the two differ."""

    kernel: str
    fast: str
    slow: str
    aim: float
    floor: float
    but: str = ""


def _vector(kernel: str) -> Iterator[Figure]:
    yield Figure(kernel=kernel, fast="njit", slow="c", aim=1.00, floor=0.93)
    yield Figure(kernel=kernel, fast="njit-parallel", slow="c-parallel", aim=0.98, floor=0.90)
    yield Figure(kernel=kernel, fast="streaming", slow="c-streaming", aim=0.98, floor=0.92)
    yield Figure(kernel=kernel, fast="vectorize-parallel", slow="njit-parallel", aim=1.0, floor=0.85)


def _piece(kernel: str, aim: float, floor: float) -> Iterator[Figure]:
    yield Figure(kernel=kernel, fast="njit", slow="torch", aim=aim, floor=floor)
    yield Figure(kernel=kernel, fast="njit-parallel", slow="torch-parallel", aim=aim, floor=floor)


GENERATORS = ", which draws from the standard library's Mersenne twister, not from splitmix64"
FIGURES = (
    *(figure for kernel in ("copy", "vector_add", "triad", "hypotenuse") for figure in _vector(kernel)),
    Figure(kernel="monte_carlo_pi", fast="njit", slow="c", aim=1.2, floor=0.95),
    Figure(kernel="monte_carlo_pi", fast="njit", slow="python", aim=300, floor=200, but=GENERATORS),
    Figure(kernel="monte_carlo_pi", fast="njit-parallel", slow="python", aim=550, floor=350, but=GENERATORS),
    *_piece("softmax", 1.0, 0.7), *_piece("layer_norm", 1.3, 1.0), *_piece("cross_entropy", 1.5, 1.2),
)  # fmt: skip


def figures(*, short: bool) -> Iterator[Row]:
    """Those of one process, kernel by kernel; sizes in the caches are shown, and only the large ones are judged."""
    for name, group in groupby(FIGURES, key=lambda figure: figure.kernel):
        wanted = list(group)
        names = {each for figure in wanted for each in (figure.fast, figure.slow)}
        asked = (SAMPLES,) if name == "monte_carlo_pi" else (10_000,) if short else parse_sizes("full")
        found = benchmark.measure(name, asked, sorted(names), SEED)
        for size in asked:
            rows = {row["implementation"]: row for row in found if row["size"] == size}
            for figure in wanted:
                yield _row(figure, rows, judged=size == asked[-1])
        if name == "monte_carlo_pi":
            yield _exact(found)


def _row(figure: Figure, rows: dict[str, benchmark.Row], *, judged: bool) -> Row:
    fast, slow = rows[figure.fast], rows[figure.slow]
    reached: bool | None = None
    missing = [row["status"] for row in (fast, slow) if row["median_seconds"] is None]
    if missing:
        measured = missing[0]
    elif fast["unstable"] or slow["unstable"]:
        measured = UNSTABLE
    else:
        times, low, high = timing.ratio(slow["values_seconds"], fast["values_seconds"])
        measured = f"{times:.3g} ({low:.3g} to {high:.3g}); aim {'reached' if times >= figure.aim else 'missed'}"
        reached = times >= figure.floor if judged else None
    return Row(
        what=f"{figure.kernel}, {fast['size']:,}: {figure.fast}", against=f"{figure.slow}{figure.but}",
        asked=f"aim {figure.aim:g}, floor {figure.floor:g}" if judged else "", measured=measured, reached=reached,
    )  # fmt: skip


def _exact(found: Sequence[benchmark.Row]) -> Row:
    """Of those that count the same samples; the gate held them against NumPy."""
    counters = {row["implementation"]: row["correct"] for row in found if row["implementation"] != "python"}
    timed = {name: correct for name, correct in counters.items() if correct is not None}
    return Row(
        what="monte_carlo_pi: hits", against="NumPy's", asked="the same",
        measured=", ".join(f"{name} {correct}" for name, correct in timed.items()),
        reached=bool(timed) and all(correct == "exact" for correct in timed.values()),
    )  # fmt: skip


class Held:
    """A kernel's call, bound where this is made, and how long it takes there."""

    def __init__(self, kernel: str, implementation: str, size: int) -> None:
        made = KERNELS[kernel]
        (chosen,) = [each for each in made.implementations if each.name == implementation]
        self._timer = timing.timer(chosen.build()(*made.arrays(size, SEED)))

    def seconds(self, calls: int) -> float:
        """Of one call, of so many in a row."""
        return self._timer.timeit(calls) / calls


def inside_ray(*, short: bool) -> Iterator[Row]:
    """The same call inside a Ray worker and outside, in turns."""
    large = 10_000 if short else parse_sizes("full")[-1]
    tried = ("triad", "njit-parallel", large), ("monte_carlo_pi", "njit", SAMPLES), ("softmax", "njit-parallel", large)
    with cluster() as up:
        ray = up.ray
        for kernel, implementation, size in tried:
            there = ray.remote(num_cpus=THREADS)(Held).remote(kernel, implementation, size)
            here = Held(kernel, implementation, size)
            values = in_turns([here.seconds, lambda calls, at=there: ray.get(at.seconds.remote(calls))])
            ray.kill(there)
            times, low, high = timing.ratio(values[1], values[0])
            stable = max(map(timing.spread, values)) <= timing.LARGEST_SPREAD
            yield Row(
                what=f"{kernel}, {size:,}: {implementation}, inside a Ray task", against="outside, in time",
                asked=f"aim 1.00, at most {LARGEST_SLOWDOWN:g}",
                measured=f"{times:.3g} ({low:.3g} to {high:.3g})" if stable else UNSTABLE,
                reached=times <= LARGEST_SLOWDOWN if stable else None,
            )  # fmt: skip


def in_turns(places: Sequence[Callable[[int], float]]) -> list[list[float]]:
    """Seconds a call, of rounds in which another place is first each time."""
    calls = max(1, round(ROUND_SECONDS / median(place(1) for _ in range(3) for place in places)))
    values: list[list[float]] = [[] for _ in places]
    for turn in range(ROUNDS):
        for offset in range(len(places)):
            place = (turn + offset) % len(places)
            values[place].append(places[place](calls))
    return values
