"""How long steps of several ranks take, and how much of that is communication: ways to take a step, timed in turns.

All are timed at a rate of zero, so that weights stay what they are and ranks that do not communicate stay alike.
"""

import math
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from operator import itemgetter
from typing import Any

import torch
import torch.distributed as dist

from kernels.timing import CORES_TAKEN, Watch
from model.training.ddp import ParallelLearner, ranks, value_of_first_rank
from model.training.learner import Learner
from tune.errors import UserError
from tune.experiments.training import batch_rows, of_rows
from tune.units import counted

WARM_CALLS = 3  # DistributedDataParallel rebuilds its buckets after the first step
TURN_SECONDS = 0.2
LEAST_CALLS = 2  # the first reading of a turn is of a call before the turn
LEAST_ROUNDS, MOST_ROUNDS = 5, 40
MARGIN = 1.5  # no round begins unless this many times the longest so far is left
# the readings' names in DistributedDataParallel's logger, which has them in nanoseconds
LOGGED = {"communication": "backward_comm_time", "overlapped": "backward_compute_comm_overlap_time"}

Reading = Mapping[str, float] | None
Ways = dict[str, Callable[[], Reading]]
Rounds = dict[str, list[float]]
"""By way, and by reading as `way reading`: seconds of a call, as the mean of a turn, one for each round."""


def undisturbed(
    ways: Ways, learner: Learner, left: Callable[[], float], watch: Callable[[], Watch] = Watch
) -> tuple[Rounds, dict[str, Any]]:
    """Return the rounds of in_turns(), and `others_cores`, the cores that others took meanwhile, with whether that
    `disturbed` them.

    Disturbed rounds are measured once more, where there is time for it; those with fewer cores taken count.
    """
    seen, began = watch(), time.perf_counter()
    rounds = in_turns(ways, learner, left, keep=left() / 2)
    taken, longest = others_cores(seen), (time.perf_counter() - began) / len(next(iter(rounds.values())))
    spare = left() - MARGIN * (LEAST_ROUNDS + WARM_CALLS) * longest
    if taken > CORES_TAKEN and value_of_first_rank(spare, learner.device) > 0:
        seen = watch()
        again = in_turns(ways, learner, left)
        taken, rounds = min((taken, rounds), (others_cores(seen), again), key=itemgetter(0))
    return rounds, {"others_cores": taken, "disturbed": taken > CORES_TAKEN}


def others_cores(watch: Watch) -> float:
    """Return how many busy cores of a machine none of the ranks used, for the machine with the most; 0: no system
    tells."""
    mine = platform.node(), watch.cores()
    gathered: list[Any] = [mine]
    if ranks() > 1:
        gathered = [None] * ranks()
        dist.all_gather_object(gathered, mine)
    known = [(node, *cores) for node, cores in gathered if cores is not None]
    own = {node: sum(cores for at, _, cores in known if at == node) for node, *_ in known}
    return max((max(0.0, busy - own[node]) for node, busy, _ in known), default=0.0)


def in_turns(ways: Ways, learner: Learner, left: Callable[[], float], *, keep: float = 0.0) -> Rounds:
    """Time each way for a turn in each round of in_rounds(). A reading is of the call before the one that returns
    it."""
    calls = {name: _calls_a_turn(way, learner) for name, way in ways.items()}
    turns = {name: partial(_turn, name, way, calls[name], learner) for name, way in ways.items()}
    return in_rounds(turns, left, keep=keep, agreed=lambda seconds: value_of_first_rank(seconds, learner.device))


def least_seconds(*calls: float) -> float:
    """Return the seconds that in_turns() needs for ways whose calls take so many each: to warm up, and for the first
    LEAST_ROUNDS."""
    turns = sum(max(TURN_SECONDS, LEAST_CALLS * seconds) for seconds in calls)
    return (WARM_CALLS + LEAST_CALLS) * sum(calls) + MARGIN * LEAST_ROUNDS * turns


def in_rounds(
    turns: Mapping[str, Callable[[], Mapping[str, float]]],
    left: Callable[[], float],
    *,
    keep: float = 0.0,
    agreed: Callable[[float], float] = float,
) -> Rounds:
    """Take each turn in each round, beginning with another one each time, for as long as seconds are `left`; return the
    seconds that turns return, by name.

    keep: seconds that rounds after the first LEAST_ROUNDS must leave; agreed: returns the first rank's seconds on all
    ranks, so that all end with the same round. UserError: there is no time for the first LEAST_ROUNDS.
    """
    rounds: Rounds = {}
    names, longest = list(turns), 0.0
    for done in range(MOST_ROUNDS):
        if done >= LEAST_ROUNDS and agreed(left() - keep - MARGIN * longest) < 0:
            break
        if agreed(left() - MARGIN * longest * (LEAST_ROUNDS - done)) < 0:
            needed = f" need about {math.ceil(LEAST_ROUNDS * MARGIN * longest)} s" if longest else ""
            rounds_of = f"{LEAST_ROUNDS} rounds of {counted(len(names), 'way')}"
            raise UserError(f"{rounds_of}{needed}: give more --budget with --resume")
        began = time.perf_counter()
        for place in range(len(names)):
            for what, seconds in turns[names[(place + done) % len(names)]]().items():
                rounds.setdefault(what, []).append(seconds)
        longest = max(longest, time.perf_counter() - began)
    return rounds


def _calls_a_turn(way: Callable[[], Reading], learner: Learner) -> int:
    for _ in range(WARM_CALLS):
        way()
    seconds = _turn("", way, LEAST_CALLS, learner)[""]
    return int(value_of_first_rank(max(LEAST_CALLS, math.ceil(TURN_SECONDS / seconds)), learner.device))


def _turn(name: str, way: Callable[[], Reading], calls: int, learner: Learner) -> dict[str, float]:
    if ranks() > 1:
        dist.barrier()
    learner.synchronize()
    began = time.perf_counter()
    readings = [way() for _ in range(calls)]
    learner.synchronize()
    means = {name: (time.perf_counter() - began) / calls}
    for what in readings[-1] or ():
        means[f"{name} {what}"] = statistics.fmean(reading[what] for reading in readings[1:] if reading)
    return means


def steps(learner: Learner) -> Ways:
    """Return a way to take a step; on several ranks also a step without communication, and the communication of as many
    bytes alone."""
    if not isinstance(learner, ParallelLearner):
        return plain_steps({"step": learner})
    size = gradient_bytes(learner)
    together = partial(dist.all_reduce, torch.zeros(size // 4, device=learner.device))
    return {"step": _logged(learner), "unsynced": partial(_unsynced, learner), f"all_reduce {size}": together}


def plain_steps(learners: Mapping[str, Learner]) -> Ways:
    """Return a way to take a step of each learner, of which nothing but the time is read."""
    return {name: partial(_step, learner) for name, learner in learners.items()}


def accumulations(learner: Learner, counts: tuple[int, ...]) -> Ways:
    """Return ways to take steps on batches so many times as large, in as many parts; gradients are communicated with
    the last one."""
    return {f"accumulate {count}": _accumulated(learner, count) for count in counts}


def gradient_bytes(learner: Learner) -> int:
    """Return the bytes that the ranks exchange in each step."""
    return sum(parameter.numel() * parameter.element_size() for parameter in learner.parameter_names)


def _step(learner: Learner) -> None:
    learner.step(0.0)


def _unsynced(learner: ParallelLearner) -> None:
    with learner.together.no_sync():
        learner.step(0.0)


def _logged(learner: ParallelLearner) -> Callable[[], Reading]:
    """Return a step whose readings are what DistributedDataParallel's logger says of the step before."""
    learner.together._set_ddp_runtime_logging_sample_rate(1)

    def step() -> Reading:
        learner.step(0.0)
        logged = learner.together._get_ddp_logging_data()
        return {name: logged.get(key, math.nan) / 1e9 for name, key in LOGGED.items()}

    return step


def _accumulated(learner: Learner, count: int) -> Callable[[], Reading]:
    """Return a step on several batches in a row; its readings are of its last part."""
    rows = count * batch_rows(learner.config, learner.data)
    larger, step = learner.feed(of_rows(learner.config, learner.data, rows)), steps(learner)["step"]

    def accumulate() -> Reading:
        batches = learner.batches
        learner.batches, learner.micro_batches = larger, count
        try:
            return step()
        finally:
            learner.batches, learner.micro_batches = batches, 1

    return accumulate
