"""Measured costs of a learner: how much it allocates at once, how often, and how long its steps take beside
another's."""

import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from model.nn.precision import prepare
from model.training.learner import Learner

FIRST_STEPS = 2
"""Steps until all that a step needs is allocated."""
COUNTED_STEPS = 2
ALL_STEPS = 1 + FIRST_STEPS + COUNTED_STEPS
TURNS = 9
"""Times that two learners take steps each, after a first time that is not counted, when a graph is captured."""
AT_ONCE = {"cpu": 1, "cuda": 10}
"""Steps that are timed at once, by kind of device: a GPU is waited for as rarely as in a training."""


@dataclass
class Allocations:
    """Allocations of a piece of code; peak_bytes: the most held at once; count: number of allocations."""

    peak_bytes: int = 0
    count: float = 0.0


def count_allocations(make: Callable[[], Learner], device: torch.device) -> Allocations:
    """Make a learner and let it step; return its peak from its making on, and how often one step allocates.

    Another one takes a step before and is dropped: what a process allocates once for each shape is not the learner's.
    """
    make().step(1.0)
    gc.collect()
    counting = _on_gpu if device.type == "cuda" else _by_memray
    with counting() as first:
        learner = make()
        for _ in range(FIRST_STEPS):
            learner.step(1.0)
    with counting() as rest:
        for _ in range(COUNTED_STEPS):
            learner.step(1.0)
    return Allocations(peak_bytes=first.peak_bytes, count=rest.count / COUNTED_STEPS)


def step_ratio(one: Learner, other: Learner) -> float:
    """Return how many times as long the steps of one take as those of the other: the median over turns, as a busy
    machine slows both alike. Both learn nothing: their rate is zero."""
    ratios = [_seconds(one) / _seconds(other) for _ in range(1 + TURNS)]
    return statistics.median(ratios[1:])


def _seconds(learner: Learner) -> float:
    prepare(learner.config.precision, learner.device)  # switches of the process, which the other learner may have set
    began = time.perf_counter()
    learner.take_steps([0.0] * AT_ONCE[learner.device.type])
    learner.synchronize()
    return time.perf_counter() - began


@contextmanager
def _by_memray() -> Iterator[Allocations]:
    """Count every call of the system's allocators, in all threads of this process."""
    import memray  # takes 50 ms, which no start of a search has to wait for
    from memray._memray import compute_statistics

    found = Allocations()
    with tempfile.TemporaryDirectory(prefix="ration-") as folder:
        file = Path(folder) / "allocations"
        with memray.Tracker(file):
            yield found
        counted = compute_statistics(str(file))
    found.peak_bytes, found.count = counted.peak_memory_allocated, counted.total_num_allocations


@contextmanager
def _on_gpu() -> Iterator[Allocations]:
    """Count what torch hands out of the GPU's memory."""
    found = Allocations()
    torch.cuda.reset_peak_memory_stats()
    held, counted = torch.cuda.memory_allocated(), _handed_out()
    yield found
    torch.cuda.synchronize()
    found.peak_bytes, found.count = torch.cuda.max_memory_allocated() - held, _handed_out() - counted


def _handed_out() -> int:
    return int(torch.cuda.memory_stats().get("allocation.all.allocated", 0))
