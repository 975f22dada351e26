"""What a learner allocates in its first steps: counted on a CPU by memray, which slows all it sees, on a GPU by torch.
"""

import gc
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import memray
import torch
from memray._memray import compute_statistics

from model.learner import Learner

FIRST_STEPS = 2
"""Until all is there that a step needs."""


@dataclass(frozen=True, kw_only=True)
class Allocations:
    """peak_bytes: the most that was held at once, of all that was allocated from the learner's making on."""

    peak_bytes: int
    a_step: float


@dataclass
class _Counted:
    """Of a stretch of code."""

    peak_bytes: int = 0
    count: int = 0


def count_allocations(make: Callable[[], Learner], device: torch.device, steps: int) -> Allocations:
    """Make a learner and let it step; the count is of so many steps after the first ones.

    Another one steps before, and is gone: what a process allocates once for each shape is not the learner's.
    """
    make().step(1.0)
    gc.collect()
    counting = _on_gpu if device.type == "cuda" else _by_memray
    with counting() as first:
        learner = make()
        for _ in range(FIRST_STEPS):
            learner.step(1.0)
    with counting() as rest:
        for _ in range(steps):
            learner.step(1.0)
    return Allocations(peak_bytes=first.peak_bytes, a_step=rest.count / steps)


@contextmanager
def _by_memray() -> Iterator[_Counted]:
    """Every call of the system's allocators, in all threads of this process."""
    found = _Counted()
    with tempfile.TemporaryDirectory(prefix="ration-") as folder:
        file = Path(folder) / "allocations"
        with memray.Tracker(file):
            yield found
        counted = compute_statistics(str(file))
    found.peak_bytes, found.count = counted.peak_memory_allocated, counted.total_num_allocations


@contextmanager
def _on_gpu() -> Iterator[_Counted]:
    """What torch hands out of the GPU's memory."""
    found = _Counted()
    torch.cuda.reset_peak_memory_stats()
    held, counted = torch.cuda.memory_allocated(), _handed_out()
    yield found
    torch.cuda.synchronize()
    found.peak_bytes, found.count = torch.cuda.max_memory_allocated() - held, _handed_out() - counted


def _handed_out() -> int:
    return int(torch.cuda.memory_stats().get("allocation.all.allocated", 0))
