"""Epochs over a few samples in the order of torch's DistributedSampler, which is a new one only where it is told."""

import numpy as np
from torch.utils.data import DistributedSampler

from model.batches import EndlessBatches
from model.learner import Learner
from model.parallel import SharedBatches, ranks
from tune.errors import UserError


class SampledBatches(EndlessBatches):
    """The first `batches` of another's first epoch, mixed anew in each epoch with set_epoch, and else in one order.

    A batch has the same number of each rank's samples, one rank's after the other's.
    """

    def __init__(self, whole: EndlessBatches, batches: int, count: int, *, set_epoch: bool) -> None:
        """count: of the ranks. UserError: fewer batches than asked for."""
        if len(whole) < batches:
            raise UserError(f"batches: {batches} is more than the {len(whole)} of an epoch: give a longer text")
        self._samples = whole._plan[:batches].reshape(-1)
        self._batches, self._set_epoch = batches, set_epoch
        self._samplers: list[DistributedSampler[int]] = [
            DistributedSampler(range(len(self._samples)), count, rank, seed=whole._seed)    # type: ignore[arg-type]
            for rank in range(count)
        ]    # fmt: skip
        super().__init__(whole._feed, whole._seed)

    def order(self, epoch: int) -> np.ndarray:
        """The samples of each batch of an epoch (batches, rows)."""
        if self._set_epoch:
            for sampler in self._samplers:
                sampler.set_epoch(epoch)
        shares = [np.array(list(sampler)) for sampler in self._samplers]
        rows = len(shares[0]) // self._batches
        drawn = np.concatenate([share[:self._batches * rows].reshape(-1, rows) for share in shares], axis=1)
        return self._samples[drawn]

    def _begin(self, *, epoch: int, batch: int) -> None:
        self._epoch, self._batch, self._plan = epoch, batch, self.order(epoch)


def sampled(learner: Learner, batches: int, *, set_epoch: bool) -> SampledBatches:
    """Let a learner go through so many batches again and again."""
    whole = learner.family.training_batches(learner.config, learner.data, learner.device)
    made = SampledBatches(whole, batches, ranks(), set_epoch=set_epoch)
    learner.batches = SharedBatches(made, learner.rank, ranks()) if ranks() > 1 else made
    return made
