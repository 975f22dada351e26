"""The memory model: whether a configuration will fit, known before its launch and corrected by what others took."""

import math
from collections.abc import Callable, Mapping

from tune.search_space import Value
from tune.units import bytes_text

OVERHEAD_BYTES = {"translation": 250e6, "nanogpt": 100e6}
"""Bytes that a trial takes on a CPU whatever the size of its model: a kernel for each shape of batch and layer,
compiled code, and what the heap does not use again. On a GPU it takes none."""
ESTIMATE_FACTOR = 1.1
"""How many times the estimated bytes of its model a trial takes, beside the overhead."""
RAN_OUT_FACTOR = 1.02
"""How many times the limit a trial that ran out of memory counts as having taken."""


def first_overhead(family: str, kind: str) -> float:
    """Return the overhead on a kind of device before any trial was measured; for a user's own family, the largest."""
    return 0.0 if kind == "cuda" else OVERHEAD_BYTES.get(family, max(OVERHEAD_BYTES.values()))


class MemoryModel:
    """What the trials of one family need. Pure: it follows from what was learned, in whatever order.

    limit: bytes that a trial may take, inf where there is none; overhead: bytes beside the model, the first guess;
    estimate(config, micro_batches): estimated bytes of a trial whose batches are cut into so many parts; most(config):
    number of parts beyond which more are no use.
    """

    def __init__(
        self,
        limit: float = math.inf,
        overhead: float = 0.0,
        estimate: Callable[[Mapping[str, Value], int], float] = lambda config, micro_batches: 0.0,
        most: Callable[[Mapping[str, Value]], int] = lambda config: 1,
    ) -> None:
        self.limit, self.most, self._overhead, self._estimate = limit, most, overhead, estimate

    def state(self) -> float:
        """Return what was learned: the bytes that trials take beside their models."""
        return self._overhead

    def predicted(self, config: Mapping[str, Value], micro_batches: int) -> float:
        """Return the bytes that a trial will take above what its process holds without it."""
        return self._overhead + ESTIMATE_FACTOR * self._estimate(config, micro_batches)

    def micro_batches(self, config: Mapping[str, Value]) -> int | None:
        """Return into how few parts a batch must be cut to fit: as many as its config asks for (else one), times a
        power of two; None where no number will do."""
        micro_batches = int(config.get("micro_batches", 1))
        while self.predicted(config, micro_batches) >= self.limit:
            if micro_batches >= self.most(config):
                return None
            micro_batches *= 2
        return micro_batches

    def smallest(self, config: Mapping[str, Value]) -> float:
        """Return the least bytes that a trial will take, in one part or the most."""
        return min(self.predicted(config, parts) for parts in (int(config.get("micro_batches", 1)), self.most(config)))

    def refusal(self, config: Mapping[str, Value]) -> str | None:
        """Return why a config is not launched; None: it fits."""
        if self.micro_batches(config) is not None:
            return None
        needed = f"needs about {bytes_text(self.smallest(config))} however small its batches are cut"
        return f"memory: {needed}, and the limit is {bytes_text(self.limit)}"

    def learn(
        self, config: Mapping[str, Value], micro_batches: int, measured: float | None, limit: float | None = None
    ) -> None:
        """Learn the most bytes that a trial took; None: it ran out. limit: what it might take then (None: as now)."""
        taken = RAN_OUT_FACTOR * (self.limit if limit is None else limit) if measured is None else measured
        if math.isfinite(taken):
            self._overhead = max(self._overhead, taken - ESTIMATE_FACTOR * self._estimate(config, micro_batches))
