"""The machine's own bandwidth, measured in the same turns as the kernels that are held against it."""

from collections.abc import Collection
from functools import cache
from statistics import median

import numpy as np

from kernels.elementwise import COPY, numba_loop, numba_streaming
from kernels.kernel import Bind, Call, on_line
from kernels.timing import Values

ONE, ALL, GPU = "one thread", "all threads", "gpu"
"""Where a copy runs."""
MARK = "peak "
"""Of a contender that is not a row."""
PAIR = 16
"""Bytes that a copy moves an element: one float64 in, one out."""


@cache
def _copies(place: str) -> tuple[Bind, Bind]:
    parallel = place == ALL
    return numba_loop(COPY, parallel=parallel), numba_streaming(COPY, parallel=parallel)


def contenders(moved_bytes: int, places: Collection[str]) -> dict[str, Call]:
    """Copies that move as many bytes: on a CPU stored plainly and past the caches; on a GPU torch's own."""
    elements = max(1, moved_bytes // PAIR)
    found: dict[str, Call] = {}
    if on_cpu := [place for place in (ONE, ALL) if place in places]:
        a, out = on_line(np.ones(elements)), on_line(np.zeros(elements))
        found |= {
            f"{MARK}{place} {way}": bind((a, a), out)
            for place in on_cpu
            for way, bind in zip(("plain", "streaming"), _copies(place), strict=True)
        }
    if GPU in places:
        from kernels import torch_yardsticks  # seconds to import

        found |= {f"{MARK}{GPU} {way}": call for way, call in torch_yardsticks.device_copies(elements).items()}
    return found


def bandwidth(values: Values, moved_bytes: int, place: str) -> float | None:
    """Bytes a second of the best copy there, of those on one thread too where all may be used; None without any."""
    starts = tuple(MARK + each for each in ((ONE, ALL) if place == ALL else (place,)))
    elements = max(1, moved_bytes // PAIR)
    return max((PAIR * elements / median(own) for name, own in values.items() if name.startswith(starts)), default=None)
