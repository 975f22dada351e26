"""What a process beside does to the kernels' medians: the ground for `kernels.timing.CORES_TAKEN`.

python tests/bench/disturbed.py, on a quiet machine: a minute.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

sys.path[0] = str(Path(__file__).resolve().parents[2])

from kernels import timing
from kernels.kernel import Call
from kernels.registry import KERNELS
from kernels.settings import parse_sizes
from kernels.timing import Watch

SHARES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5)
"""Of one core that the process beside takes."""
TURNS = 3
IMPLEMENTATIONS = ("njit", "njit-parallel")
BUSY = """
import sys, time
share, period = float(sys.argv[1]), 0.02
while True:
    end = time.perf_counter() + share * period
    while time.perf_counter() < end:
        pass
    time.sleep((1 - share) * period)
"""


@contextmanager
def beside(share: float) -> Iterator[None]:
    """A process that is busy for so much of the time."""
    process = subprocess.Popen([sys.executable, "-c", BUSY, str(share)]) if share else None
    try:
        yield
    finally:
        if process:
            process.kill()
            process.wait()


def calls() -> dict[str, Call]:
    """In the caches, too large for them, and bound by arithmetic; on one thread and on all."""
    found = {}
    small, large = parse_sizes("full")
    for name, size in (("triad", small), ("triad", large), ("monte_carlo_pi", 1_000_000)):
        kernel = KERNELS[name]
        inputs, output = kernel.arrays(size, seed=0)
        for implementation in kernel.implementations:
            if implementation.name in IMPLEMENTATIONS:
                found[f"{name} {size:,} {implementation.name}"] = implementation.build()(inputs, output)
    return found


def main() -> int:
    """A line for each share: cores taken as the watch saw them, and medians over those without the process."""
    timed, alone = calls(), dict[str, float]()
    print("share  cores taken", *timed, sep="  ")
    for _ in range(TURNS):
        for share in SHARES:
            with beside(share):
                watch = Watch()
                medians = {name: median(values) for name, values in timing.in_turns(timed).items()}
                taken = watch.cores_taken()
            alone = alone if share else medians
            ratios = (f"{value / alone[name]:{len(name)}.3f}" for name, value in medians.items())
            print(f"{share:5.2f}  {'unknown' if taken is None else f'{taken:11.3f}'}", *ratios, sep="  ", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
