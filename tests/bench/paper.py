"""What was known before training, against what training took: memory of a step, and seconds a step."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from model.config import Config, Data, model_config, pad_of
from model.cost.estimates import STATE_BYTES, step_memory_bytes
from model.cost.memory_estimate import most_bytes
from model.data.batches import batch_shape
from model.nn.precision import native
from model.training.learner import Learner
from model.training.memory import prepare_process
from model.training.time_budget import Pace
from tests.bench.contenders import LARGE, SMALL, gpt_config, pairs, text
from tests.bench.table import Row

GRADIENT_BYTES = 4
WITHIN_MEMORY, WITHIN_SECONDS = 0.10, 0.15
"""Asked: of what was measured."""
SECONDS = 30.0
"""Of steps, beyond those that settle the pace."""


def estimates(data: Path, *, short: bool) -> Iterator[Row]:
    """Memory and seconds of a step: a row for each."""
    prepare_process(1)
    memories, paces = [], []
    for name, config, prepared in configurations(data, short=short):
        learner = Learner(config, prepared, torch.device("cpu"))
        pace = Pace()
        while pace.settled is None:
            pace.add(timed(lambda learner=learner: learner.step(1.0)))
        held = (STATE_BYTES - GRADIENT_BYTES) * learner.parameters
        measured = held + most_bytes(lambda learner=learner: learner.step(1.0), learner.device)
        memories.append((name, on_paper(learner, prepared) / measured - 1))
        count = max(1, round((1.0 if short else SECONDS) / pace.settled))
        taken = timed(lambda learner=learner, count=count: [learner.step(1.0) for _ in range(count)])
        paces.append((name, pace.settled * count / taken - 1))
    yield row("memory of a step, on paper", "torch's own account of its tensors", memories, WITHIN_MEMORY, short)
    yield row("seconds a step, from the first 20", f"steps of {SECONDS:.0f} s, eager", paces, WITHIN_SECONDS, short)


def configurations(data: Path, *, short: bool) -> Iterator[tuple[str, Config, Data]]:
    """Shapes of both families, from small to large, in the precisions of this machine."""
    for precision in native("cpu"):
        for architecture in ("nanogpt", "modern"):
            yield f"{architecture} d128 l4 {precision}", gpt_config(architecture, precision, SMALL), text(data)
        if short:
            continue
        yield f"modern d384 l6 {precision}", gpt_config("modern", precision, LARGE), text(data)
        for d_model, layers, dropout in ((128, 2, 0.0), (64, 8, 0.1), (256, 4, 0.1), (512, 2, 0.0)):
            config = Config(family="translation", d_model=d_model, layers=layers, dropout=dropout, precision=precision)
            yield f"translation d{d_model} l{layers} p{dropout:g} {precision}", config, pairs(data)


def on_paper(learner: Learner, data: Data) -> int:
    """Bytes of a step."""
    config = learner.config
    shape = batch_shape(data, batch_tokens=config.batch_tokens, context=config.context)
    fused = next(bool(module.fused) for module in learner.model.modules() if hasattr(module, "fused"))
    return step_memory_bytes(
        model_config(config, vocabulary=data.vocabulary, pad=pad_of(data)),
        batch=shape.rows,
        target=shape.target,
        source=shape.source,
        precision=config.precision,
        fused=fused,
        smoothed=config.label_smoothing > 0,
    )


def timed(run: Callable[[], object]) -> float:
    """Seconds."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def row(what: str, against: str, errors: list[tuple[str, float]], within: float, short: bool) -> Row:
    """The errors of the estimates."""
    worst = max(abs(error) for _, error in errors)
    return Row(
        what=what, against=against, asked=f"within {within:.0%}",
        measured="; ".join(f"{name} {error:+.0%}" for name, error in errors),
        reached=None if short else worst <= within,
    )  # fmt: skip
