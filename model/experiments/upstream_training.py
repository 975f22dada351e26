"""nanoGPT's training loop as upstream has it, to compare with: eager, plain AdamW, each batch from a memory map that is
opened anew, evaluations on random batches of both splits.

# Shapes: B batch, T length.
"""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from model.config import Config, build_model, pad_of
from model.experiments.stages import StageClock, tell_stages
from model.prepared import TextData

PEAK_RATE, LAST_RATE, WARM_UP_STEPS = 1e-3, 1e-4, 100
EVALUATION_EVERY, EVALUATION_BATCHES = 250, 20
"""Steps between evaluations, and batches of each split; all as its README gives them for a CPU."""


class UpstreamTraining:
    """The model of a config, trained on a text whose tokens lie in a folder; `clock` is told the stages."""

    def __init__(self, config: Config, data: TextData, device: torch.device, folder: Path, clock: StageClock):
        allow_fast_products()
        torch.manual_seed(config.seed)
        self.config, self.device, self.clock = config, device, clock
        self.rows = max(1, round(config.batch_tokens / config.context))
        self.files = {split: folder / f"{split}.bin" for split in ("train", "valid")}
        for split, file in self.files.items():
            getattr(data, split).astype(np.uint16).tofile(file)
        self.model = build_model(config, vocabulary=data.vocabulary, pad=pad_of(data)).to(device)
        tell_stages(self.model, clock)
        matrices = [weight for weight in self.model.parameters() if weight.dim() >= 2]
        rest = [weight for weight in self.model.parameters() if weight.dim() < 2]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=PEAK_RATE, betas=(0.9, 0.99), fused=device.type == "cuda")

    def steps(self, count: int) -> Iterator[float]:
        """The loss of each step."""
        for step in range(count):
            if step % EVALUATION_EVERY == 0:
                self.evaluate()
            yield self.step(upstream_rate(step, count))

    def step(self, rate: float) -> float:
        """One step; its loss in nats a token is read at once, as upstream logs it."""
        self.clock.enter("data")
        tokens, targets = self.batch("train")
        self.clock.enter("forward")
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        with self.products():
            logits = self.model(tokens)    # the clock enters "loss and backward" at its end
            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        self.clock.enter("optimizer")
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.clock.enter("rest")
        return loss.item()

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Mean loss on some batches of each split; they share the training's random stream."""
        self.model.eval()
        found = {}
        for split in self.files:
            losses = []
            for _ in range(EVALUATION_BATCHES):
                tokens, targets = self.batch(split)
                with self.products():
                    losses.append(F.cross_entropy(self.model(tokens).flatten(0, 1), targets.flatten()).item())
            found[split] = sum(losses) / len(losses)
        self.model.train()
        return found

    def batch(self, split: str) -> tuple[Tensor, Tensor]:
        """Tokens and what follows each, both (B, T)."""
        data, length = np.memmap(self.files[split], dtype=np.uint16, mode="r"), self.config.context
        begins = torch.randint(len(data) - length, (self.rows,)).tolist()
        pair = (
            torch.stack([torch.from_numpy(data[begin : begin + length].astype(np.int64)) for begin in places])
            for places in (begins, [begin + 1 for begin in begins])
        )
        if self.device.type == "cuda":
            pair = (each.pin_memory().to(self.device, non_blocking=True) for each in pair)
        tokens, targets = pair
        return tokens, targets

    def products(self) -> AbstractContextManager[object]:
        """Their arithmetic."""
        small = self.config.precision == "bf16"
        return torch.autocast(self.device.type, torch.bfloat16) if small else nullcontext()


def allow_fast_products() -> None:
    """Torch's switches as upstream sets them, or finds them."""
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    torch.backends.mkldnn.matmul.fp32_precision = "ieee"  # type: ignore[attr-defined]


def upstream_rate(step: int, steps: int) -> float:
    """A cosine from the peak, after the warm-up, to a tenth of it at the end."""
    if step < WARM_UP_STEPS:
        return PEAK_RATE * (step + 1) / (WARM_UP_STEPS + 1)
    share = (step - WARM_UP_STEPS) / (steps - WARM_UP_STEPS)
    return LAST_RATE + 0.5 * (PEAK_RATE - LAST_RATE) * (1 + math.cos(math.pi * share))
