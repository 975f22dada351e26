"""What the last steps of a training left: loss, gradient norm and speed; and whether the trial diverged."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from model.learner import Step

EXPLODED = 3.0
"""Nats above the first loss, in two looks one after the other."""


@dataclass
class Recent:
    """Steps are taken note of at once, and read, which waits for the device, now and then."""

    first_loss: float | None = None
    """Of a life."""
    train_loss: float = math.nan
    """Mean of the steps between the last two looks."""
    gradient_norm: float = math.nan
    tokens_per_second: float = 0.0
    diverged: bool = False
    _exploding: bool = False
    _losses: list[Tensor] = field(default_factory=list)
    _norm: Tensor | None = None
    _tokens: int = 0
    _seconds: float = 0.0

    def add(self, step: Step) -> None:
        """Take note of a step, without waiting for it."""
        self._losses.append(step.loss)
        self._norm = step.gradient_norm
        self._tokens += step.tokens

    def took(self, seconds: float) -> None:
        """Take note of how long steps took."""
        self._seconds += seconds

    def forget_tokens(self) -> None:
        """Those of steps that say nothing about the speed."""
        self._tokens = 0

    def read(self) -> None:
        """Wait for the steps since the last look, and see whether the trial diverged; nothing where there were none."""
        if not self._losses:
            return
        self.train_loss = torch.stack(self._losses).mean().item()
        self.gradient_norm = math.nan if self._norm is None else self._norm.item()
        if self._seconds:
            self.tokens_per_second = self._tokens / self._seconds
        self._losses.clear()
        self._tokens, self._seconds = 0, 0.0
        if self.first_loss is None:
            self.first_loss = self.train_loss
        exploding = self.train_loss > self.first_loss + EXPLODED
        self.diverged = not math.isfinite(self.train_loss) or (exploding and self._exploding)
        self._exploding = exploding
