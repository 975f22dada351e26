"""Steps with a batch of some size: how long they take, and, in a process of their own, whether they fit in memory.

A process of its own keeps probes independent: what the heap keeps, and what a library allocates once, ends with it.
"""

import multiprocessing
import os
import pickle
import signal
import threading
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from model.config import Config, Data
from model.cost.memory_estimate import held_bytes, most_bytes
from model.data.batches import Batch
from model.families import register_family
from model.nn.precision import on_threads
from model.training.graph import make_learner
from model.training.learner import Learner
from model.training.memory import MemoryLimit, PeakMemory, available_bytes, give_back_freed, ran_out
from model.training.time_budget import warm_up
from tune.errors import UserError

FITS, RAN_OUT, KILLED, TOO_LATE = "fits", "out of memory", "killed", "out of time"
FIRST_STEPS = 3
"""Steps after which a batch counts as fitting: the first one makes kernels, and the heap settles."""
SLOWER = 1.3
"""How many times as long as the first steps later ones may take, on a busy machine."""
CLOSING_SECONDS = 1.0
"""Seconds that are kept for the end of the process."""
LEAST_STEPS, MEASURED_STEPS, MEASURED_SECONDS = 2, 20, 0.5
"""Least steps to time in this process, then until there are so many or so many seconds are over: the first step is
slow, and a search waits for them."""

Outcome = dict[str, Any]
"""What came of a probe, JSON-able. ended: one of the four above; why: the signal that killed the process; seconds: of
the process, from its start on; free_bytes: of a GPU, before.

Where the batch fits: parameters, epoch_steps, step_seconds; ready_seconds: until that was known; memory_bytes: the most
that was taken beside what the process had before; tensor_bytes: of torch's tensors, by its own count; and of a second
epoch epoch_seconds, and share: how much of it was timed.
"""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """A probe to run. config: with the batch's size; limit: bytes of memory, None for all there are; share: the part of
    each of two epochs to train, 0 for none.

    seconds: that all of it may take; families: a user's own, as the caller pickled them.
    """

    config: Config
    device: torch.device
    limit: int | None
    share: float
    seconds: float
    families: bytes = pickle.dumps({})


class TooLarge(Exception):
    """A batch does not fit in memory as a whole."""


class _Whole(Learner):
    """A Learner that never cuts a batch into parts."""

    def _by_parts(self, batch: Batch) -> Tensor:
        if self.is_out_of_memory:
            raise TooLarge
        return super()._by_parts(batch)


def try_batch(probe: Probe, data: Data) -> Outcome:
    """Try a batch in a process, which has ended then, and return what came of it. UserError: it failed for another
    reason than memory."""
    began = time.monotonic()
    context = multiprocessing.get_context("spawn")
    line, end = context.Pipe(duplex=False)
    process = context.Process(target=_life, args=(end, probe, data, began + probe.seconds), daemon=True)
    process.start()
    end.close()
    try:
        found = line.recv() if line.poll(probe.seconds) else {"ended": TOO_LATE}
    except EOFError:  # it died before it said anything
        process.join()
        code = process.exitcode or 0
        killed = {"ended": KILLED, "why": signal.Signals(-code).name} if code < 0 else None
        found = killed or {"error": f"its process ended with the exit code {code}"}
    finally:
        process.kill()
        process.join()
    if "error" in found:
        raise UserError(f"batch: a step of {probe.config.batch_tokens} tokens failed: {found['error']}")
    return found | {"seconds": time.monotonic() - began}


def _life(line: Connection, probe: Probe, data: Data, ends: float) -> None:
    """Run a probe and send its outcome: all that the process does."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    for name, family in pickle.loads(probe.families).items():
        register_family(name, family)
    torch.set_num_threads(1)
    limit = MemoryLimit(probe.limit, probe.device)
    free = available_bytes(probe.device) if probe.device.type == "cuda" else None
    try:
        found = _steps(probe, data, limit, ends)
    except Exception as error:
        ended = isinstance(error, TooLarge) or ran_out(error)  # while limited, when more errors mean that
        limit.lift()
        found = {"ended": RAN_OUT} if ended else {"error": f"{type(error).__name__}: {error}"}
    limit.lift()
    line.send({"free_bytes": free} | found)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "it was started by another process"
    parent.join()
    os._exit(1)


def _steps(probe: Probe, data: Data, limit: MemoryLimit, ends: float) -> Outcome:
    limit.begin()
    memory = PeakMemory(probe.device)
    learner = _Whole(probe.config, data, probe.device)
    _advance(learner, FIRST_STEPS)
    step = _advance(learner, 1)
    ready = probe.seconds - (ends - time.monotonic())
    found: Outcome = {
        "parameters": learner.parameters, "epoch_steps": len(learner.batches), "ready_seconds": ready,
        "step_seconds": step,
    }  # fmt: skip
    if probe.share:
        found |= _second_epoch(learner, probe.share, step, ends)
    taken = max(memory.bytes(), limit.counted_bytes())
    limit.lift()
    held = held_bytes(learner.model, learner.optimizer, learner.average)
    tensors = held + most_bytes(lambda: learner.step(1.0), probe.device)
    return found | {"ended": FITS, "memory_bytes": taken, "tensor_bytes": tensors}


def _second_epoch(learner: Learner, share: float, step: float, ends: float) -> Outcome:
    """Time the second of two equal numbers of steps, a share of an epoch each, or as much as there is time for."""
    affordable = (ends - time.monotonic() - CLOSING_SECONDS) / (2 * SLOWER * step)
    steps = max(1, int(min(share * len(learner.batches), affordable)))
    _advance(learner, steps)
    seconds, share = _advance(learner, steps), steps / len(learner.batches)
    return {"epoch_seconds": seconds / share, "share": share, "step_seconds": seconds / steps}


def step_seconds(
    config: Config, data: Data, device: torch.device, *, micro_batches: int = 1, seconds: float = MEASURED_SECONDS
) -> list[float]:  # fmt: skip
    """Return the seconds of a few steps with batches in so many parts, timed in this process for about so many seconds;
    the first is slow.

    On a CPU they are CPU seconds, so that what else runs there does not count.
    """
    clock = time.process_time if device.type == "cpu" else time.monotonic
    taken: list[float] = []
    with torch.random.fork_rng(devices=[0] if device.type == "cuda" else []), on_threads(1):
        learner = make_learner(config, data, device, micro_batches)
        while len(taken) < LEAST_STEPS or (len(taken) < MEASURED_STEPS and sum(taken) < seconds):
            began = clock()
            learner.take_steps([1.0])
            learner.synchronize()
            taken.append(clock() - began)
    del learner
    give_back_freed()  # other processes train there
    return taken


def _advance(learner: Learner, steps: int) -> float:
    """Take steps and return their seconds. TooLarge: memory did not hold a whole batch."""
    learner.synchronize()
    began = time.perf_counter()
    for _ in range(steps):
        learner.step(warm_up(learner.steps, learner.config.warm_up_steps))
    learner.synchronize()
    return time.perf_counter() - began
