"""The machine's own bandwidth, measured in the same turns as the kernels that are held against it."""

from collections.abc import Mapping
from functools import cache
from statistics import median

import numpy as np

from kernels.elementwise import COPY, numba_loop, numba_streaming
from kernels.kernel import Bind, Call
from kernels.timing import Values

MARK = "peak "
"""Of a contender that is not a row."""


@cache
def _copies(parallel: bool) -> tuple[Bind, Bind]:
    return numba_loop(COPY, parallel=parallel), numba_streaming(COPY, parallel=parallel)


def contenders(moved_bytes: int, *, parallel: bool) -> dict[str, Call]:
    """Copies that move as many bytes, stored plainly and past the caches; on all cores too where `parallel`."""
    a, out = np.ones(max(1, moved_bytes // 16)), np.zeros(max(1, moved_bytes // 16))
    return {
        f"{MARK}{many} {place}": bind((a, a), out)
        for many in ((False, True) if parallel else (False,))
        for place, bind in enumerate(_copies(many))
    }


def bandwidth(values: Values, calls: Mapping[str, Call], *, parallel: bool) -> float | None:
    """Bytes a second of the best copy with so many threads; None where none was measured."""
    rates = [
        2 * calls[name].arguments[2].nbytes / median(seconds)
        for name, seconds in values.items()
        if name.startswith(f"{MARK}False") or (parallel and name.startswith(MARK))
    ]
    return max(rates, default=None)
