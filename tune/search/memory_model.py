"""Memory: whether a configuration will fit, known before its launch and corrected by what others took."""

import math
from collections.abc import Callable, Mapping

from tune.search_space import Value
from tune.units import bytes_text

OVERHEAD_BYTES = {"translation": 250e6, "nanogpt": 100e6}
"""What a trial takes on a CPU whatever the size of its model: a kernel for each shape of batch and layer, compiled
code, and what the heap does not use again. Of a GPU none."""
FACTOR = 1.1
"""And this many times what its model needs on paper."""
BEYOND = 1.02
"""A trial that ran out would have taken this many times the limit at least."""


def first_overhead(family: str, kind: str) -> float:
    """Before any trial on such a device was measured; of a family of a user's own the largest counts."""
    return 0.0 if kind == "cuda" else OVERHEAD_BYTES.get(family, max(OVERHEAD_BYTES.values()))


class Memory:
    """What the trials of one family need. Pure: it follows from what was learned, in whatever order.

    limit: bytes a trial may take, infinite where there is none; overhead: bytes beside the model, the first guess;
    paper(config, micro_batches): bytes on paper of a trial whose batches are cut into so many parts; most(config): more
    parts than that are no use.
    """

    def __init__(
        self,
        limit: float = math.inf,
        overhead: float = 0.0,
        paper: Callable[[Mapping[str, Value], int], float] = lambda config, micro_batches: 0.0,
        most: Callable[[Mapping[str, Value]], int] = lambda config: 1,
    ) -> None:
        self.limit, self.most, self._overhead, self._paper = limit, most, overhead, paper

    def state(self) -> float:
        """What was learned: bytes that trials take beside their models."""
        return self._overhead

    def predicted(self, config: Mapping[str, Value], micro_batches: int) -> float:
        """Bytes that a trial will take above what its process holds without it."""
        return self._overhead + FACTOR * self._paper(config, micro_batches)

    def micro_batches(self, config: Mapping[str, Value]) -> int | None:
        """Into how few parts a batch must be cut to fit, a power of two, or as many as its config asks for; None where
        no number will do."""
        micro_batches = int(config.get("micro_batches", 1))
        while self.predicted(config, micro_batches) >= self.limit:
            if micro_batches >= self.most(config):
                return None
            micro_batches *= 2
        return micro_batches

    def smallest(self, config: Mapping[str, Value]) -> float:
        """Bytes that a trial will take in the smallest parts."""
        return self.predicted(config, self.most(config))

    def refusal(self, config: Mapping[str, Value]) -> str | None:
        """Why a config is not launched, if it is not."""
        if self.micro_batches(config) is not None:
            return None
        needed = f"needs about {bytes_text(self.smallest(config))} however small its batches are cut"
        return f"memory: {needed}, and the limit is {bytes_text(self.limit)}"

    def learn(self, config: Mapping[str, Value], micro_batches: int, measured: float | None) -> None:
        """What a trial took at most; None: it ran out."""
        taken = BEYOND * self.limit if measured is None else measured
        if math.isfinite(taken):
            self._overhead = max(self._overhead, taken - FACTOR * self._paper(config, micro_batches))
