"""What the seconds of a training go to: each of them to one stage."""

import time
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from model.config import Config, Data
from model.learner import Learner, Step
from model.resident import Batch

STAGES = ("data", "forward", "loss and backward", "optimizer", "evaluation", "rest")


class StageClock:
    """Notes when each stage begins; the one before ends there.

    On a GPU the notes are events in its stream, and only their sum waits for it: a stage has the seconds that the GPU
    was at it, or waited for it.
    """

    def __init__(self, device: torch.device):
        self._on_gpu = device.type == "cuda"
        self._begun: list[tuple[str, Any]] = []

    def enter(self, stage: str) -> None:
        """From now on the time is this stage's."""
        self._begun.append((stage, self._now()))

    def seconds(self) -> dict[str, float]:
        """Of each stage, from the first one's begin until now."""
        self.enter("rest")
        if self._on_gpu:
            torch.cuda.synchronize()
        found = dict.fromkeys(STAGES, 0.0)
        for (stage, begin), (_, end) in pairwise(self._begun):
            found[stage] += begin.elapsed_time(end) / 1e3 if self._on_gpu else end - begin
        return found

    def _now(self) -> Any:
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


class StagedLearner(Learner):
    """A Learner that tells a clock where it is; never compiled, as forward and loss are one then."""

    def __init__(
        self, config: Config, data: Data, device: torch.device, micro_batches: int = 1, *, clock: StageClock
    ):
        self.clock = clock
        super().__init__(config, data, device, micro_batches)
        tell_stages(self.model, clock)

    def can_compile(self) -> bool:
        return False

    def step(self, factor: float) -> Step:
        self.clock.enter("data")
        made = super().step(factor)
        self.clock.enter("rest")
        return made

    def _gradients(self, batch: Batch) -> Tensor:
        loss = super()._gradients(batch)
        self.clock.enter("optimizer")
        return loss

    def _backward(self, batch: Batch, share: Tensor | None = None) -> Tensor:
        self.clock.enter("forward")
        return super()._backward(batch, share)


def tell_stages(model: nn.Module, clock: StageClock) -> None:
    """Let a model tell where its forward ends, in training, and where an evaluation begins and ends."""

    def ended(model: nn.Module, *_: object) -> None:
        if model.training:
            clock.enter("loss and backward")

    def switched(mode: bool = True) -> nn.Module:
        clock.enter("rest" if mode else "evaluation")
        return switch(mode)

    switch = model.train
    model.train = switched  # type: ignore[method-assign]
    model.register_forward_hook(ended)
