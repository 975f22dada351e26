"""Upstream's own way to train nanoGPT, against which ours is held."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model.config import Config
from model.data.dataset import TextData

PEAK_RATE, LAST_RATE, WARM_UP_STEPS = 1e-3, 1e-4, 100
EVALUATION_EVERY, EVALUATION_BATCHES = 250, 20
"""Steps between evaluations, and batches of each split; all as its README gives them for a CPU."""


class UpstreamTraining:
    """Upstream's own way to train nanoGPT: eager, plain AdamW, each batch from a memory map that is opened anew, and
    evaluations on random batches of both splits; the benchmarks hold ours against it too.

    A model on a text whose tokens lie in a folder; of the config count context, batch and precision.

    enter: is told each stage that begins, but for "loss and backward", which begins where the model ends.
    """

    def __init__(
        self, model: nn.Module, config: Config, data: TextData, device: torch.device, folder: Path,
        enter: Callable[[str], None] = lambda stage: None,
    ):  # fmt: skip
        torch.backends.cuda.matmul.fp32_precision = "tf32"  # torch's switches as upstream sets them, or finds them
        torch.backends.mkldnn.matmul.fp32_precision = "ieee"  # type: ignore[attr-defined]
        self.model, self.config, self.device, self.enter = model.to(device), config, device, enter
        self.files = {split: folder / f"{split}.bin" for split in ("train", "valid")}
        for split, file in self.files.items():
            getattr(data, split).astype(np.uint16).tofile(file)
        weights = list(self.model.parameters())
        groups = [{"params": [each for each in weights if each.dim() >= 2], "weight_decay": 0.1},
                  {"params": [each for each in weights if each.dim() < 2], "weight_decay": 0.0}]  # fmt: skip
        self.optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.99), fused=device.type == "cuda")

    def steps(self, count: int) -> Iterator[float]:
        """A training of so many steps: the loss of each."""
        for step in range(count):
            if step % EVALUATION_EVERY == 0:
                self.evaluate()
            yield self.step(upstream_rate(step, count))

    def step(self, rate: float) -> float:
        """Its loss in nats a token, read at once as upstream logs it."""
        self.enter("data")
        batch = self.batch("train")
        self.enter("forward")
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        loss = self.loss(*batch)
        loss.backward()
        self.enter("optimizer")
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.enter("rest")
        return loss.item()

    @torch.no_grad()
    def evaluate(self) -> None:
        """The loss of some batches of each split; they share the training's random stream."""
        self.model.eval()
        for split in self.files:
            for _ in range(EVALUATION_BATCHES):
                self.loss(*self.batch(split)).item()
        self.model.train()

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """In the arithmetic of the precision."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.precision == "bf16"):
            return F.cross_entropy(self.model(tokens).flatten(0, 1), targets.flatten())

    def batch(self, split: str) -> tuple[Tensor, Tensor]:
        """Tokens and what follows each, both (B, T)."""
        data, length = np.memmap(self.files[split], dtype=np.uint16, mode="r"), self.config.context
        begins = torch.randint(len(data) - length, (max(1, round(self.config.batch_tokens / length)),)).tolist()
        tokens, targets = (
            torch.stack([torch.from_numpy(data[begin + later :][:length].astype(np.int64)) for begin in begins])
            for later in (0, 1)
        )
        if self.device.type == "cuda":
            tokens, targets = (each.pin_memory().to(self.device, non_blocking=True) for each in (tokens, targets))
        return tokens, targets


def upstream_rate(step: int, steps: int) -> float:
    """A cosine from the peak, after the warm-up, to a tenth of it at the end."""
    if step < WARM_UP_STEPS:
        return PEAK_RATE * (step + 1) / (WARM_UP_STEPS + 1)
    share = (step - WARM_UP_STEPS) / (steps - WARM_UP_STEPS)
    return LAST_RATE + 0.5 * (PEAK_RATE - LAST_RATE) * (1 + math.cos(math.pi * share))
