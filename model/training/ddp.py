"""One model that several processes train together: each on its share of every batch, all with the whole's gradients.

torch's DistributedDataParallel (Li et al. 2020, arXiv:2006.15704) around a Learner's model, in the process group that
is up. It takes the mean of the ranks' gradients, so a rank's loss counts with its tokens, not as one of n means. Epochs
over a few samples come in the order of torch's DistributedSampler, which is a new one only where it is told.
"""

from collections.abc import Callable
from dataclasses import dataclass
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


@dataclass(frozen=True, kw_only=True)
class Levers:
    """How DistributedDataParallel communicates; its own defaults.

    bucket_megabytes: of every bucket; None: 1 of the first, so that communication begins early, and 25 of the others;
    compression: one of COMPRESSIONS, None for none.
    """

    bucket_megabytes: float | None = None
    gradient_as_bucket_view: bool = False
    static_graph: bool = False
    compression: str | None = None


class SharedBatches(EndlessBatches):
    """Of each whole batch the rows of one rank; `tokens` stay the whole batch's, and the state is the whole's.

    UserError: fewer rows than ranks.
    """

    def __init__(self, whole: EndlessBatches, rank: int, ranks: int) -> None:
        self._whole, self._rank, self._ranks = whole, rank, ranks
        some = whole.some()
        if (rows := len(some.targets)) < ranks:
            row = some.targets[0].numel()
            raise UserError(
                f"batch_tokens: {rows * row} are {rows} rows, too few for {ranks} devices; take at least {ranks * row}"
            )

    def __next__(self) -> Batch:
        return self._share(next(self._whole))

    def __len__(self) -> int:
        return len(self._whole)

    def some(self) -> Batch:
        return self._share(self._whole.some())

    def state(self) -> dict[str, int]:
        return self._whole.state()

    def load_state(self, state: dict[str, Any]) -> None:
        self._whole.load_state(state)

    def _share(self, batch: Batch) -> Batch:
        first, last = (rank * len(batch.targets) // self._ranks for rank in (self._rank, self._rank + 1))
        inputs = tuple(None if x is None else x[first:last] for x in batch.inputs)
        return Batch(inputs, batch.targets[first:last], batch.tokens)


class ParallelLearner(Learner):
    """The Learner of one rank: all of them call the same methods in the same order, and wait for each other there.

    A step's loss is this rank's part of it: the mean over the ranks is the batch's (`mean_over_ranks`).
    """

    def __init__(
        self,
        config: Config,
        data: Data,
        device: torch.device,
        micro_batches: int = 1,
        levers: Levers = Levers(),
    ):
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        super().__init__(config, data, device, micro_batches)
        self.together = DistributedDataParallel(
            self.model,
            bucket_cap_mb=levers.bucket_megabytes,
            gradient_as_bucket_view=levers.gradient_as_bucket_view,
            static_graph=levers.static_graph,
            forward_sync_buffers=False,
        )
        if levers.compression is not None:
            self.together.register_comm_hook(None, COMPRESSIONS[levers.compression])
        self.forward = self.together
        if self.rank:
            torch.manual_seed(config.seed + self.rank)  # for dropout of its own

    def feed(self, config: Config) -> EndlessBatches:
        """This rank's share of them."""
        return SharedBatches(super().feed(config), self.rank, self.ranks)

    def _gradients(self, batch: Batch) -> Tensor:
        """Never again in smaller parts: the other ranks would wait for one that ran out of memory."""
        return self._by_parts(batch)

    def _by_parts(self, batch: Batch) -> Tensor:
        """Communication begins with the last part."""
        *others, last = [(part, share * self.ranks) for part, share in batch.parts(self.micro_batches)]
        with self.together.no_sync():
            losses = [self._backward(*part) for part in others]
        return torch.stack([*losses, self._backward(*last)]).sum()

    def random_state(self) -> dict[str, Tensor]:
        """Of all ranks, a row each."""
        return {name: gathered(state, self.device) for name, state in super().random_state().items()}

    def set_random_state(self, state: dict[str, Tensor]) -> None:
        random = {name: rows[self.rank].clone() for name, rows in state.items() if name.startswith("random.")}
        super().set_random_state(random)


def make_learner(config: Config, data: Data, device: torch.device) -> Learner:
    """One that learns together with the other ranks, where there are any."""
    return (ParallelLearner if ranks() > 1 else Learner)(config, data, device)


def ranks() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_initialized() else 1


def gathered(own: Tensor, device: torch.device) -> Tensor:
    """The tensors of all ranks, one shape, as rows on the CPU."""
    own = own.to(device)
    rows = [torch.empty_like(own) for _ in range(ranks())]
    dist.all_gather(rows, own)
    return torch.stack(rows).cpu()


def mean_over_ranks(own: Tensor) -> Tensor:
    """The mean of what the ranks have."""
    if ranks() == 1:
        return own
    total = own.clone()
    dist.all_reduce(total)
    return total / ranks()


def as_first(value: float, device: torch.device) -> float:
    """What the first rank says: where clocks decide, all ranks must decide alike."""
    if ranks() == 1:
        return value
    said = torch.tensor(value, dtype=torch.float64).to(device)
    dist.broadcast(said, 0)
    return said.item()


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How well the gradients of a batch agree; distances are relative, in the Euclidean norm.

    across_ranks: bit by bit; whole_batch: distance from those of one process with the whole batch; accumulated: of
    those in so many parts from those in one.
    """

    across_ranks: bool
    whole_batch: float
    accumulated: dict[int, float]


def agreement(learner: ParallelLearner, parts: tuple[int, ...] = (2, 4, 8)) -> Agreement:
    """Measured on a batch of the learner's, without dropout."""
    learner.model.eval()
    try:
        batch = learner.batches.some()
        together = flat_gradient(learner, lambda: learner._gradients(batch))
        cut = {}
        for count in parts:
            learner.micro_batches = count
            cut[count] = distance(flat_gradient(learner, lambda: learner._gradients(batch)), together)
        learner.micro_batches = 1
        return Agreement(
            across_ranks=bool((gathered(together, learner.device) == together.cpu()).all()),
            whole_batch=distance(together, flat_gradient(learner, lambda: _alone(learner))),
            accumulated=cut,
        )
    finally:
        learner.model.train()


def _alone(learner: ParallelLearner) -> None:
    """The gradients of the whole batch, in this process."""
    whole = learner.family.training_batches(learner.config, learner.data, learner.device).some()
    with learner.together.no_sync():
        for part, share in whole.parts(learner.ranks):
            learner._backward(part, share)


def flat_gradient(learner: Learner, add: Callable[[], object]) -> Tensor:
    """What `add` adds to the gradients, which are none before and afterwards, as one vector."""
    add()
    gradients = [parameter.grad for parameter in learner.names if parameter.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    learner.optimizer.zero_grad(set_to_none=True)
    return flat


def distance(found: Tensor, expected: Tensor) -> float:
    """Of two vectors, relative to the second, in the Euclidean norm."""
    return ((found - expected).norm() / expected.norm()).item()


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
        ]  # fmt: skip
        super().__init__(whole._feed, whole._seed, whole._device)

    def order(self, epoch: int) -> np.ndarray:
        """The samples of each batch of an epoch (batches, rows)."""
        if self._set_epoch:
            for sampler in self._samplers:
                sampler.set_epoch(epoch)
        shares = [np.array(list(sampler)) for sampler in self._samplers]
        rows = len(shares[0]) // self._batches
        drawn = np.concatenate([share[: self._batches * rows].reshape(-1, rows) for share in shares], axis=1)
        return self._samples[drawn]


def sampled(learner: Learner, batches: int, *, set_epoch: bool) -> SampledBatches:
    """Let a learner go through so many batches again and again."""
    whole = learner.family.training_batches(learner.config, learner.data, learner.device)
    made = SampledBatches(whole, batches, ranks(), set_epoch=set_epoch)
    learner.batches = SharedBatches(made, learner.rank, ranks()) if ranks() > 1 else made
    return made
