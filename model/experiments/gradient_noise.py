"""The gradient noise scale, which tells how large a batch is worth it (McCandlish et al. 2018, arXiv:1812.06162).

tr(S) / |G|^2: the variance of one token's gradient, summed over the weights, against the square of the mean gradient.
A batch of as many tokens needs twice the steps of the largest, and twice the tokens of the smallest. Both parts are
estimated without bias from the gradients of a batch and of its parts (appendix A), which training has at hand: each
rank's before they are communicated, on one device those of two halves.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from model.config import Config, Data
from model.experiments.intervals import Interval
from model.learner import Learner, Step
from model.parallel import ParallelLearner, mean_over_ranks, ranks
from model.resident import IGNORED, Batch

PARTS = 2    # of a batch on one device
RESAMPLES = 1000


class WatchedLearner(Learner):
    """A Learner that keeps what each step's gradients tell of their noise."""

    def __init__(self, config: Config, data: Data, device: torch.device, micro_batches: int = PARTS):
        super().__init__(config, data, device, micro_batches)
        self._squares: list[Tensor] = []    # of the part that is under way, one a tensor
        self._parts: list[Tensor] = []      # squared norm of the mean gradient, and 1 / tokens
        self._seen: list[Tensor] = []       # the means of these, the same of the whole batch: one row a step
        for parameter in self.names:
            parameter.register_hook(self._note)

    def step(self, factor: float) -> Step:
        scale = self.scaler.get_scale()
        taken = super().step(factor)
        small, fewness = torch.stack(self._parts).mean(0)
        whole = torch.tensor(1 / taken.tokens, device=self.device)
        self._seen.append(torch.stack([small / scale ** 2, fewness, taken.gradient_norm ** 2, whole]))
        return taken

    def estimates(self) -> tuple[np.ndarray, np.ndarray]:
        """|G|^2 and tr(S) by each step so far, (steps,) each; all ranks ask together."""
        if not self._seen:
            return np.empty(0), np.empty(0)
        seen = mean_over_ranks(torch.stack(self._seen)).cpu().double().numpy()
        return unbiased(*seen.T)

    def _note(self, gradient: Tensor) -> None:
        self._squares.append(gradient.detach().square().sum())

    def _by_parts(self, batch: Batch) -> Tensor:
        self._parts.clear()
        return super()._by_parts(batch)

    def _backward(self, batch: Batch, share: Tensor | None = None) -> Tensor:
        self._squares.clear()
        loss = super()._backward(batch, share)
        weight = torch.ones((), device=self.device) if share is None else share
        tokens = (batch.targets != IGNORED).sum()
        self._parts.append(torch.stack([torch.stack(self._squares).sum() / weight ** 2, 1 / tokens]))
        return loss


class WatchedParallelLearner(WatchedLearner, ParallelLearner):
    """The same of one rank: its part of the batch is what the other ranks' parts are held against."""

    def __init__(self, config: Config, data: Data, device: torch.device):
        super().__init__(config, data, device, micro_batches=1)


def watched_learner(config: Config, data: Data, device: torch.device) -> WatchedLearner:
    """One that learns together with the other ranks, where there are any."""
    return WatchedParallelLearner(config, data, device) if ranks() > 1 else WatchedLearner(config, data, device)


def unbiased(small: Any, fewness: Any, big: Any, whole: Any) -> tuple[Any, Any]:
    """|G|^2 and tr(S), numbers or arrays of them.

    small, big: squared norms of the mean gradients of a part and of the whole batch; fewness, whole: one over their
    tokens. The square of a mean over b tokens is |G|^2 + tr(S) / b on average.
    """
    noise = (small - big) / (fewness - whole)
    return big - noise * whole, noise


def noise_scale(signal: np.ndarray, noise: np.ndarray) -> Interval | None:
    """tr(S) / |G|^2 in tokens, each averaged over the steps; its interval by the bootstrap over them.

    None: no gradient is to be seen through the noise.
    """
    if not (len(signal) and signal.mean() > 0):
        return None
    drawn = np.random.default_rng(0).integers(len(signal), size=(RESAMPLES, len(signal)))
    means = np.stack([signal[drawn].mean(1), noise[drawn].mean(1)])
    ratios = np.divide(means[1], means[0], out=np.full(RESAMPLES, np.inf), where=means[0] > 0)
    low, high = np.quantile(ratios, (0.025, 0.975), method="nearest")
    return float(noise.mean() / signal.mean()), float(low), float(high)
