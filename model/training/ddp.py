"""One model trained by several processes together: each on its share of every batch, all with the whole's gradients.

torch's DistributedDataParallel (Li et al. 2020, arXiv:2006.15704) wraps a Learner's model, in the process group that is
initialized. It takes the mean of the ranks' gradients, so a rank's loss is weighted by its tokens, not as one of n
means. Epochs over a few samples have the order of torch's DistributedSampler, which changes only where it is told.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from model.config import Config, Data
from model.data.batches import Batch, EndlessBatches
from model.training.learner import Learner
from tune.errors import UserError

COMPRESSIONS: dict[str, Callable[..., Any]] = {
    "bf16": default_hooks.bf16_compress_hook,
    "fp16": default_hooks.fp16_compress_hook,
}
PARTS = (2, 4, 8)
"""Parts of a batch whose gradients are compared with those of the whole one."""


def share_of(batch: Batch, rank: int, ranks: int) -> Batch:
    """Return one rank's rows of a batch, with the `tokens` of the whole. UserError: it has fewer rows than there are
    ranks."""
    if (rows := len(batch.targets)) < ranks:
        row = batch.targets[0].numel()
        raise UserError(
            f"batch_tokens: {rows * row} are {rows} rows, too few for {ranks} devices; take at least {ranks * row}"
        )
    first, last = (each * rows // ranks for each in (rank, rank + 1))
    return Batch(tuple(x[first:last] for x in batch.inputs), batch.targets[first:last], batch.tokens)


class ParallelLearner(Learner):
    """The Learner of one rank: all ranks call the same methods in the same order, and wait for each other there.

    The loss of a step is this rank's; the mean over the ranks is the batch's (`mean_over_ranks`). bucket_megabytes: the
    size of all buckets of gradients; None: 1 for the first, so that communication begins early, and 25 for the others;
    compression: of gradients, one of COMPRESSIONS; options: further ones of DistributedDataParallel.
    """

    def __init__(
        self,
        config: Config,
        data: Data,
        device: torch.device,
        micro_batches: int = 1,
        *,
        bucket_megabytes: float | None = None,
        compression: str | None = None,
        **options: Any,
    ):
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        super().__init__(config, data, device, micro_batches)
        share_of(self.batches.any_batch(), self.rank, self.ranks)  # one of too few rows is refused here
        self.together = DistributedDataParallel(
            self.model, bucket_cap_mb=bucket_megabytes, forward_sync_buffers=False, **options
        )
        if compression is not None:
            self.together.register_comm_hook(None, COMPRESSIONS[compression])
        self.forward = self.together
        if self.rank:
            torch.manual_seed(config.seed + self.rank)  # so that each rank has its own dropout

    def _gradients(self, batch: Batch) -> Tensor:
        """Add the batch's gradients, never again in smaller parts: the other ranks would wait for this one."""
        return self._by_parts(batch)

    def _by_parts(self, batch: Batch) -> Tensor:
        """Add the gradients of this rank's rows of a batch in parts; the ranks communicate with the last part only."""
        own = share_of(batch, self.rank, self.ranks)
        *others, last = [(part, share * self.ranks) for part, share in own.parts(self.micro_batches)]
        with self.together.no_sync():
            losses = [self._backward(*part) for part in others]
        return torch.stack([*losses, self._backward(*last)]).sum()

    def random_state(self) -> dict[str, Tensor]:
        """Return the random states of all ranks, a row each."""
        return {name: gathered(state, self.device) for name, state in super().random_state().items()}

    def set_random_state(self, state: dict[str, Tensor]) -> None:
        random = {name: rows[self.rank].clone() for name, rows in state.items() if name.startswith("random.")}
        super().set_random_state(random)


def make_learner(config: Config, data: Data, device: torch.device) -> Learner:
    """Make a learner; with other ranks, where there are any, it trains together."""
    return (ParallelLearner if ranks() > 1 else Learner)(config, data, device)


def ranks() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_initialized() else 1


def gathered(own: Tensor, device: torch.device) -> Tensor:
    """Return the tensors of all ranks, which have one shape, as rows on the CPU."""
    own = own.to(device)
    rows = [torch.empty_like(own) for _ in range(ranks())]
    dist.all_gather(rows, own)
    return torch.stack(rows).cpu()


def mean_over_ranks(own: Tensor) -> Tensor:
    """Return the mean of a tensor over the ranks."""
    if ranks() == 1:
        return own
    total = own.clone()
    dist.all_reduce(total)
    return total / ranks()


def value_of_first_rank(value: float, device: torch.device) -> float:
    """Return the first rank's value: where clocks decide, all ranks must decide alike."""
    if ranks() == 1:
        return value
    tensor = torch.tensor(value, dtype=torch.float64).to(device)
    dist.broadcast(tensor, 0)
    return tensor.item()


def agreement(learner: ParallelLearner) -> dict[str, Any]:
    """Measure how well the gradients of a batch of the learner's agree, without dropout; distances are relative, in the
    Euclidean norm.

    Returns bit_equal: whether all ranks have the same, bit by bit; against_whole_batch: distance from the gradients of
    one process with the whole batch; accumulated: numbers of parts, each with the distance from the gradients without
    accumulation.
    """
    learner.model.eval()
    try:
        batch = learner.batches.any_batch()
        together = flat_gradient(learner, lambda: learner._gradients(batch))
        cut = []
        for count in PARTS:
            learner.micro_batches = count
            cut.append((count, distance(flat_gradient(learner, lambda: learner._gradients(batch)), together)))
        learner.micro_batches = 1
        return {
            "bit_equal": bool((gathered(together, learner.device) == together.cpu()).all()),
            "against_whole_batch": distance(together, flat_gradient(learner, lambda: _alone(learner, batch))),
            "accumulated": cut,
        }
    finally:
        learner.model.train()


def _alone(learner: ParallelLearner, batch: Batch) -> None:
    """Add the gradients of the whole batch, in this process alone."""
    with learner.together.no_sync():
        for part, share in batch.parts(learner.ranks):
            learner._backward(part, share)


def flat_gradient(learner: Learner, add: Callable[[], object]) -> Tensor:
    """Return the gradients that `add` computes as one vector; there must be none before, and are none afterwards."""
    add()
    gradients = [parameter.grad for parameter in learner.parameter_names if parameter.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    learner.optimizer.zero_grad(set_to_none=True)
    return flat


def distance(found: Tensor, expected: Tensor) -> float:
    """Return the distance of two vectors in the Euclidean norm, relative to the second."""
    return ((found - expected).norm() / expected.norm()).item()


class SampledBatches(EndlessBatches):
    """The first `batches` of another's first epoch again and again, shuffled anew each time only with set_epoch.

    A batch has the same number of each rank's samples, one rank's after the other's.
    """

    def __init__(self, whole: EndlessBatches, batches: int, count: int, *, set_epoch: bool) -> None:
        """count: number of ranks. UserError: an epoch has fewer batches than asked for."""
        if len(whole) < batches:
            raise UserError(f"batches: {batches} is more than the {len(whole)} of an epoch: give a longer text")
        self._samples = whole._plan[:batches].reshape(-1)
        self._batches, self._set_epoch = batches, set_epoch
        self._samplers: list[DistributedSampler[int]] = [
            DistributedSampler(range(len(self._samples)), count, rank, seed=whole._seed)    # type: ignore[arg-type]
            for rank in range(count)
        ]  # fmt: skip
        super().__init__(whole._source, whole._seed, whole._device)

    def order(self, epoch: int) -> np.ndarray:
        """Return the samples of each batch of an epoch (batches, rows)."""
        if self._set_epoch:
            for sampler in self._samplers:
                sampler.set_epoch(epoch)
        shares = [np.array(list(sampler)) for sampler in self._samplers]
        rows = len(shares[0]) // self._batches
        drawn = np.concatenate([share[: self._batches * rows].reshape(-1, rows) for share in shares], axis=1)
        return self._samples[drawn]


def train_on_sampled(learner: Learner, batches: int, *, set_epoch: bool) -> SampledBatches:
    """Let a learner go through so many batches again and again; return these."""
    learner.batches = made = SampledBatches(learner.feed(learner.config), batches, ranks(), set_epoch=set_epoch)
    return made
