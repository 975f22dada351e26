"""How good the models get: losses after equal tokens, and how soon they are as good as the upstream loop."""

import statistics
import tempfile
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from model.config import Config, Data
from model.data.dataset import TextData
from model.training.time_budget import Segment
from model.training.train import train
from tests.bench.contenders import (
    ROWS,
    SMALL,
    best_precision,
    cpu_seconds,
    gpt_config,
    pairs,
    plain_gpt,
    runs_here,
    text,
)
from tests.bench.table import Row, not_native
from tune.experiments.stages import upstream_rate
from tune.reports import Report

STEPS, SEEDS = 2_000, 5
UPSTREAM_LOSS = 1.904
UPSTREAM_TOKENS = ROWS[64] * 64
"""Of a step of upstream's."""
AMPLE_SECONDS = 1e5
UPSTREAM_GPU_LOSS = 1.4697
"""Of 10.7 M parameters, on random crops."""
CORE_MINUTES, CORE_LOSS = 20, 1.41
CORE_SHAPE = {"d_model": 256, "heads": 4, "layers": 4, "context": 256, "dropout": 0.1}
"""How long, the loss that is asked, and a shape."""
EVALUATION_TOKENS = 16_384
DEFAULT_MINUTES, TIMED_STEPS = (10, 60), 200
"""Of a core: what searches of 20 min and of 2 h give a family."""


def loss_at_equal_tokens(data: Path, *, short: bool) -> Iterator[Row]:
    """Loss on the last 10 % of tiny shakespeare after 1.536 M tokens, by seed, and what bf16 costs."""
    steps, seeds = (40, range(2)) if short else (STEPS, range(SEEDS))
    for architecture, asked in (("nanogpt", 1.755), ("modern", 1.63)):
        losses = {
            precision: [
                trained(recipe_config(architecture, precision, seed), text(data), steps * UPSTREAM_TOKENS)[0]
                for seed in seeds
            ]
            for precision in filter(runs_here, ("fp32", "bf16"))
        }
        for precision, found in losses.items():
            yield Row(
                what=f"loss after {steps * UPSTREAM_TOKENS / 1e6:.3f} M tokens, {architecture} {precision}",
                against=f"upstream's recipe: {UPSTREAM_LOSS}", asked=f"<= {asked}",
                measured=f"{statistics.mean(found):.3f} (seeds: {', '.join(f'{loss:.3f}' for loss in found)})",
                reached=None if short else statistics.mean(found) <= asked,
            )  # fmt: skip
        if "bf16" not in losses:
            yield not_native(f"what bf16 costs, {architecture}", "no quality lost")
            continue
        differences = [half - full for full, half in zip(losses["fp32"], losses["bf16"], strict=True)]
        mean, error = statistics.mean(differences), statistics.stdev(differences) / len(differences) ** 0.5
        yield Row(
            what=f"what bf16 costs, {architecture}, {len(differences)} paired seeds", against="fp32",
            asked="no quality lost", measured=f"{mean:+.4f} +- {error:.4f} nats",
            reached=None if short else mean <= 2 * error,
        )  # fmt: skip


def time_to_upstream_loss(data: Path, *, short: bool) -> Iterator[Row]:
    """CPU seconds to the loss that the upstream loop ends at, against the loop's: of both without reading the text and
    the evaluation on the last 10 %."""
    steps = 40 if short else STEPS
    goal, whole, _ = upstream_trained(data, steps)
    for share in (0.1, 0.15, 0.2, 0.3, 0.5):
        tokens = round(share * steps) * UPSTREAM_TOKENS
        loss, spent = trained(recipe_config("modern", best_precision()), text(data), tokens)
        if loss <= goal or short:
            break
    yield Row(
        what=f"CPU time to the loss that upstream's loop ends at, modern {best_precision()}",
        against=f"the loop: {whole:.0f} s to {goal:.3f}",
        asked="<= 1/6", measured=f"1/{whole / spent:.1f}: {spent:.0f} s to {loss:.3f}",
        reached=None if short else loss <= goal and spent <= whole / 6,
    )  # fmt: skip


def loss_of_core_minutes(data: Path, *, short: bool) -> Iterator[Row]:
    """Loss on the last 10 % of tiny shakespeare after minutes of a core, by its CPU seconds, evaluations included."""
    minutes, shape = (0.5, SMALL) if short else (CORE_MINUTES, CORE_SHAPE)
    config = Config(family="nanogpt", precision=best_precision(), **shape)
    segment = Segment(device_seconds=60 * minutes, final=True)
    last = last_report(config, text(data), segment, evaluation_tokens=EVALUATION_TOKENS)
    loss, _ = held_out(last)
    yield Row(
        what=f"loss after {minutes:g} min of a core, {last.steps:,} steps, "
        + " ".join(f"{name} {value}" for name, value in shape.items()),
        against=f"upstream's GPU run: {UPSTREAM_GPU_LOSS}", asked=f"<= {CORE_LOSS}", measured=f"{loss:.3f}",
        reached=None if short else loss <= CORE_LOSS,
    )  # fmt: skip


def loss_of_defaults(data: Path, *, short: bool) -> Iterator[Row]:
    """What the default configurations come to in all that a search gives a family, by CPU seconds; and upstream's loop,
    by its recipe for a CPU. The last evaluation of each is in its minutes."""
    for minutes in (0.25,) if short else DEFAULT_MINUTES:
        for family, prepared, own in (("nanogpt", text(data), {"context": 256}), ("translation", pairs(data), {})):
            config = Config(family=family, precision=best_precision(), dropout=0.1, **{**SMALL, **own})
            segment = Segment(device_seconds=60 * minutes, final=True, whole=True)
            last = last_report(config, prepared, segment, evaluation_tokens=EVALUATION_TOKENS)
            assert last.whole is not None and last.test is not None
            both = f", both {held_out(last)[0]:.3f}" if family == "nanogpt" else ""
            yield Row(
                what=f"{family}, default configuration, {minutes:g} min of a core, {last.steps:,} steps",
                against="the winner of a search", asked="to be higher",
                measured=f"validation {last.whole.loss:.3f}, test {last.test.loss:.3f}{both}",
            )  # fmt: skip
        _, training, evaluating = upstream_trained(data, TIMED_STEPS)
        steps = round(TIMED_STEPS * (60 * minutes - evaluating) / training)
        loss, _, _ = upstream_trained(data, steps)
        yield Row(
            what=f"nanogpt, upstream's recipe for a CPU, {minutes:g} min of a core, {steps:,} steps",
            against="the winner of a search", asked="to be higher", measured=f"both {loss:.3f}",
        )  # fmt: skip


def recipe_config(architecture: str, precision: str, seed: int = 0) -> Config:
    """The shape of nanoGPT's CPU configuration by our recipe, its batch included."""
    return Config(family="nanogpt", architecture=architecture, precision=precision, dropout=0.0, seed=seed, **SMALL)


def trained(config: Config, data: TextData, tokens: int) -> tuple[float, float]:
    """A life of about so many tokens, decay included: its loss on valid and test, CPU seconds without those two."""
    segment = Segment(device_seconds=AMPLE_SECONDS, steps=tokens // config.batch_tokens, final=True, whole=True)
    began = cpu_seconds()
    last = last_report(config, data, segment, evaluation_tokens=2_048)
    loss, seconds = held_out(last)
    return loss, cpu_seconds() - began - seconds


def held_out(last: Report) -> tuple[float, float]:
    """The loss on valid and test together, and what both took."""
    assert last.whole is not None and last.test is not None
    both = last.whole, last.test
    nats = sum(each.loss * each.tokens for each in both)
    return nats / sum(each.tokens for each in both), sum(each.seconds for each in both)


def last_report(config: Config, data: Data, segment: Segment, *, evaluation_tokens: int) -> Report:
    """At the end of a life, whose seconds are those that this process and its compiler compute."""
    with tempfile.TemporaryDirectory() as folder:
        told = train(config, data, segment, folder=Path(folder), evaluation_tokens=evaluation_tokens, clock=cpu_seconds)
        return deque(told, maxlen=1)[0]


def upstream_trained(data: Path, steps: int) -> tuple[float, float, float]:
    """Train nanoGPT's way by its recipe for a CPU: the loss on the last 10 %, in windows that do not overlap, and CPU
    seconds of the training and of this evaluation."""
    torch.set_num_threads(1)
    prepared = text(data)
    held_out = np.concatenate([prepared.valid, prepared.test])
    began = cpu_seconds()
    with tempfile.TemporaryDirectory() as folder:
        training = plain_gpt(gpt_config("nanogpt", "fp32", SMALL), prepared, Path(folder))
        for done in range(steps):
            training.step(upstream_rate(done, steps))
    ended = cpu_seconds()
    loss = windowed_loss(training.model.eval(), held_out, SMALL["context"])
    return loss, ended - began, cpu_seconds() - ended


@torch.inference_mode()
def windowed_loss(model: torch.nn.Module, held_out: np.ndarray, context: int) -> float:
    """Nats a token over all whole windows."""
    windows = (len(held_out) - 1) // context
    tokens = torch.from_numpy(held_out.astype(np.int64))
    inputs, targets = tokens[: windows * context].view(-1, context), tokens[1 : windows * context + 1].view(-1, context)
    nats = sum(
        F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum").item()
        for x, y in zip(inputs.split(64), targets.split(64), strict=True)
    )
    return nats / targets.numel()
