"""The learning rate over a trial's life, as a share of its peak: warm-up, constant, then a linear decay to zero.

The end is unknown until the last segment is given out (Hagele et al. 2024, arXiv:2405.18392): only that segment decays.
"""

from typing import Any


def warm_up(step: int, steps: int) -> float:
    """Share of the peak at the step with this number, counted from 0."""
    return min(1.0, (step + 1) / max(steps, 1))


class Decay:
    """The fall to zero over the last `share` of a life; it begins at most once, and a resumed one goes on falling."""

    def __init__(self, share: float, fraction: float = 1.0, length: float | None = None):
        """fraction, length: what `state` gave in the checkpoint that the segment goes on from"""
        self.share = share
        self.fraction = fraction or 1.0  # one that had ended starts anew
        self.length = length if 0 < fraction < 1 else None
        self.begun = False

    def begins(self, done: float, left: float) -> bool:
        """Whether the fall is due; done, left: training behind and ahead, both in steps or both in seconds."""
        return not self.begun and (self.fraction < 1 or left <= self.share * (done + left))

    def begin(self, left: float) -> None:
        """Start from the present fraction; the same length again where the end did not move, so that no bit changes."""
        self.begun = True
        if self.length is None or left / self.length != self.fraction:
            self.length = left / self.fraction

    def factor(self, left: float) -> float:
        """Share of the peak with this much training ahead."""
        if self.begun and self.length:
            self.fraction = min(1.0, max(0.0, left / self.length))
        return self.fraction if self.begun else 1.0

    def state(self, left: float) -> dict[str, Any]:
        """JSON-able; left: training ahead of the next step"""
        return {"fraction": self.factor(left), "length": self.length}
