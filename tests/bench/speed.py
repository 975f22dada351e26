"""How fast the models train and translate: contenders timed in turns, each in a process of its own with one thread,
so that ratios are left alone by noise; and what was known of a step before, against what it took.

# Shapes: B batch, T length so far, V vocabulary.
"""

import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from model.config import Config, Data, build_model, model_config, pad_of
from model.cost.estimates import flops_per_token, step_memory_bytes
from model.cost.memory_estimate import held_bytes, most_bytes
from model.cost.peak_flops import SIZES, peak_flops
from model.data.batches import TrainBatches, batch_shape
from model.data.resident import OUTSIDE
from model.nn.decoding import beam_search
from model.nn.precision import native_precisions, prepare, set_compute
from model.nn.translator import EncodedSource, Translator
from model.training.learner import Learner
from model.training.time_budget import StepTimer
from tests.bench.contenders import LARGE, SMALL, TRANSLATOR, best_precision, gpt_config, make, pairs, runs_here, text
from tests.bench.table import Row, not_native

WARM_UP_STEPS = 24
"""Enough for every static shape and every compilation."""


@dataclass
class Timed:
    """CPU seconds a step and target tokens a CPU second of each turn."""

    step_seconds: list[float] = field(default_factory=list)
    tokens_per_second: list[float] = field(default_factory=list)


def interleaved(names: Sequence[str], data: Path, *, turns: int, seconds: float) -> dict[str, Timed]:
    """Let each contender train for about `seconds` in each of `turns` turns."""
    context = multiprocessing.get_context("spawn")
    found = {name: Timed() for name in names}
    lines: dict[str, Connection] = {}
    processes = []
    for name in names:
        lines[name], end = context.Pipe()
        processes.append(context.Process(target=_serve, args=(end, name, data, seconds), daemon=True))
        processes[-1].start()
        assert lines[name].recv() == "ready"
    for _ in range(turns):
        for name, line in lines.items():
            line.send("go")
            steps, tokens, spent = line.recv()
            found[name].step_seconds.append(spent / steps)
            found[name].tokens_per_second.append(tokens / spent)
    for process in processes:
        process.terminate()
    return found


def ratio(slow: Sequence[float], fast: Sequence[float]) -> tuple[float, float, float]:
    """The median of the ratios of the turns, with their quartiles."""
    ratios = [a / b for a, b in zip(slow, fast, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return middle, low, high


def _serve(line: Connection, name: str, data: Path, seconds: float) -> None:
    torch.set_num_threads(1)
    step = make(name, data)
    for _ in range(WARM_UP_STEPS):
        step()
    began = time.process_time()
    step()
    steps = max(1, round(seconds / (time.process_time() - began)))
    line.send("ready")
    while True:
        line.recv()
        began = time.process_time()
        tokens = sum(step() for _ in range(steps))
        line.send((steps, tokens, time.process_time() - began))


TURNS = 15
TURN_SECONDS = 1.5


def gpt(data: Path, *, short: bool) -> Iterator[Row]:
    """Steps a second against the upstream way, at nanoGPT's CPU configuration and at a larger one."""
    for size, shape, asked in (
        ("small", SMALL, {"nanogpt fp32 compiled": 1.9, "nanogpt bf16 compiled": 2.9, "modern bf16 compiled": 3.0}),
        ("large", LARGE, {"nanogpt bf16 compiled": 3.5, "modern bf16 compiled": 3.5}),
    ):
        if short and size == "large":
            continue
        ours = list(filter(runs_here, dict.fromkeys((*asked, "nanogpt fp32 compiled"))))
        names = [f"{name} {size}" for name in ("upstream", *ours)]
        found = interleaved(names, data, turns=3 if short else TURNS, seconds=0.3 if short else TURN_SECONDS)
        upstream = found[names[0]]
        shown = f"d {shape['d_model']}, {shape['layers']} layers, context {shape['context']}"
        for name in names[1:]:
            least = asked.get(name.removesuffix(f" {size}"))
            times, low, high = ratio(upstream.step_seconds, found[name].step_seconds)
            yield Row(
                what=f"{name.removesuffix(f' {size}')}: steps a second, {shown}",
                against=f"the upstream way: {_ms(upstream)} a step",
                asked="" if least is None else f">= {least}x",
                measured=f"{times:.2f}x ({low:.2f} to {high:.2f}): {_ms(found[name])} a step",
                reached=None if least is None else times >= least,
            )
        yield from (not_native(f"{name}, {shown}", f">= {asked[name]}x") for name in asked if name not in ours)
        yield from _shares(shape, found, size)


def _shares(shape: dict[str, int], found: dict[str, Timed], size: str) -> Iterator[Row]:
    """Of the peak of a matrix product, measured here."""
    config = gpt_config("nanogpt", "fp32", shape)
    model = build_model(config, vocabulary=66, pad=0)
    flops = flops_per_token(model.config, target=shape["context"])
    asked = {("small", "fp32"): 0.55, ("small", "bf16"): 0.45, ("large", "fp32"): 0.75, ("large", "bf16"): 0.75}
    for precision in filter(runs_here, ("fp32", "bf16")):
        rate = statistics.median(found[f"nanogpt {precision} compiled {size}"].tokens_per_second)
        torch.set_num_threads(1)
        peak, least = peak_flops(precision, "cpu"), asked[size, precision]
        yield Row(
            what=f"share of the matrix-product peak, training, d {shape['d_model']}, {precision}",
            against=f"{peak / 1e9:.0f} GFLOP/s (products of {SIZES['cpu']} x {SIZES['cpu']})",
            asked=f">= {least:.0%}", measured=f"{rate * flops / peak:.0%}", reached=rate * flops >= least * peak,
        )  # fmt: skip


def translation(data: Path, *, short: bool) -> Iterator[Row]:
    """Target tokens a second against torch.nn.Transformer, and the padding in batches."""
    asked = {f"translation {best_precision()} compiled": 7.0}
    ours = "translation fp32 compiled", "translation bf16 compiled"
    names = ("nn.Transformer", *filter(runs_here, ours))
    found = interleaved(names, data, turns=3 if short else TURNS, seconds=0.5 if short else 2 * TURN_SECONDS)
    plain = found[names[0]].tokens_per_second
    for name in names[1:]:
        least = asked.get(name)
        times, low, high = ratio(found[name].tokens_per_second, plain)
        yield Row(
            what=f"{name}: target tokens a second, d 128, 4 heads, 2 layers",
            against=f"torch.nn.Transformer, 64 pairs as they come: {statistics.median(plain):,.0f} a second",
            asked="" if least is None else f">= {least:.0f}x",
            measured=f"{times:.1f}x ({low:.1f} to {high:.1f}): {statistics.median(found[name].tokens_per_second):,.0f}",
            reached=None if least is None else times >= least,
        )
    share = padding(data)
    yield Row(
        what="padding in translation batches", against="40-55 % as they come", asked="<= 5 %",
        measured=f"{share:.1%} of source and target positions", reached=share <= 0.05,
    )  # fmt: skip


MEMBERS, WIDTHS = 8, {16: None, 32: 1.4, 64: 1.2, 128: None}
"""Of a cohort, and how many times as fast a trial in it is to be by width."""


def cohorts(data: Path, *, short: bool) -> Iterator[Row]:
    """Tokens a second of trials that step together, against one that steps alone."""
    for width, least in WIDTHS.items():
        names = f"together 1 d{width}", f"together {MEMBERS} d{width}"
        found = interleaved(names, data, turns=3 if short else TURNS, seconds=0.3 if short else TURN_SECONDS)
        times, low, high = ratio(found[names[1]].tokens_per_second, found[names[0]].tokens_per_second)
        yield Row(
            what=f"{MEMBERS} trials of d {width} h4 l4, context 64, 768 tokens a step, as one: tokens a second",
            against="one alone", asked="" if least is None else f">= {least}x",
            measured=f"{times:.2f}x ({low:.2f} to {high:.2f})", reached=None if least is None else times >= least,
        )  # fmt: skip


def padding(data: Path) -> float:
    """Share of all positions of an epoch that are padding."""
    prepared = pairs(data)
    config = Config(family="translation")
    batches = TrainBatches(prepared, batch_tokens=config.batch_tokens, context=config.context, seed=0)
    positions = filled = 0
    while batches.state()["epoch"] == 0:
        source_of = (batch := next(batches)).inputs[1]
        positions += source_of.numel() + batch.targets.numel()
        filled += batch.tokens + int((source_of != OUTSIDE).sum())
    return 1 - filled / positions


def timed(run: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds that a call takes."""
    began = clock()
    run()
    return clock() - began


def _ms(timed: Timed) -> str:
    return f"{1e3 * statistics.median(timed.step_seconds):.1f} ms"


SENTENCES, LENGTH = 16, 12


class History:
    """A past that keeps tokens (B, T) only."""

    tokens: Tensor | None = None

    def select(self, rows: Tensor) -> None:
        """Go on with some rows of the batch."""
        assert self.tokens is not None
        self.tokens = self.tokens[rows]


class Uncached:
    """A translator that computes all of the target anew for each token."""

    def __init__(self, model: Translator) -> None:
        self.model, self.config, self.encode = model, model.config, model.encode

    def of(self, search: Callable[[Any], list[list[int]]]) -> list[list[int]]:
        """What a search finds with it."""
        with mock.patch("model.nn.decoding.KeyValueCache", lambda layers, limit: History()):
            return search(self)

    def decode(self, token: Tensor, memory: EncodedSource, past: History) -> Tensor:
        """token (B, 1): the newest -> logits (B, 1, V) of the next"""
        past.tokens = token if past.tokens is None else torch.cat([past.tokens, token], 1)
        return self.model.decode(past.tokens, memory)[:, -1:]


@torch.inference_mode()
def decoding(data: Path, *, short: bool) -> Iterator[Row]:
    """Greedy decoding and beam search of a batch of sentences, to the limit."""
    torch.set_num_threads(1)
    config, prepared = Config(family="translation", **TRANSLATOR), pairs(data)
    prepare(config.precision, "cpu")
    torch.manual_seed(0)
    model = build_model(config, vocabulary=prepared.vocabulary, pad=prepared.pad).eval()
    assert isinstance(model, Translator)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    set_compute(model, config.precision)
    source = torch.randint(prepared.pad, (SENTENCES, LENGTH), generator=torch.Generator().manual_seed(1))
    limit, slowly = 16 if short else 64, Uncached(model)
    for name, search in (
        ("greedy decoding", lambda model: beam_search(model, source, None, 1, limit)),
        ("beam search of width 4", lambda model: beam_search(model, source, None, 4, limit)),
    ):
        pairs_of_turns = [
            [
                timed(lambda search=search: slowly.of(search), time.process_time),
                timed(lambda search=search: search(model), time.process_time),
            ]
            for _ in range(3 if short else 9)
        ]
        times, low, high = ratio(*zip(*pairs_of_turns, strict=True))
        same = slowly.of(search) == search(model)
        yield Row(
            what=f"{name}, {SENTENCES} sentences, {limit} tokens each", against="without cached keys and values",
            asked="the same text, >= 5x",
            measured=f"{'the same text' if same else 'another text'}, {times:.1f}x ({low:.1f} to {high:.1f})",
            reached=same and times >= 5,
        )  # fmt: skip


WITHIN_MEMORY, WITHIN_SECONDS = 0.10, 0.15
"""Asked: of what was measured."""
SECONDS = 30.0
"""Of steps, beyond those that settle the timer."""


def estimates(data: Path, *, short: bool) -> Iterator[Row]:
    """Memory and seconds of a step: a row for each."""
    torch.set_num_threads(1)
    memories, seconds = [], []
    for name, config, prepared in configurations(data, short=short):
        whole = replace(config, dropout_after=0.0, average=0.0)  # no average: it is not on paper
        learner = Learner(whole, prepared, torch.device("cpu"))
        timer = StepTimer()
        while timer.settled is None:
            timer.add(timed(lambda learner=learner: learner.step(1.0)))
        held = held_bytes(learner.model, learner.optimizer, learner.average)
        measured = held + most_bytes(lambda learner=learner: learner.step(1.0), learner.device)
        memories.append((name, estimated_bytes(learner, prepared) / measured - 1))
        count = max(1, round((1.0 if short else SECONDS) / timer.settled))
        taken = timed(lambda learner=learner, count=count: [learner.step(1.0) for _ in range(count)])
        seconds.append((name, timer.settled * count / taken - 1))
    yield row("memory of a step, on paper", "torch's own account of its tensors", memories, WITHIN_MEMORY, short)
    yield row("seconds a step, from the first 20", f"steps of {SECONDS:.0f} s, eager", seconds, WITHIN_SECONDS, short)


def configurations(data: Path, *, short: bool) -> Iterator[tuple[str, Config, Data]]:
    """Shapes of both families, from small to large, in the precisions of this machine."""
    for precision in native_precisions("cpu"):
        for architecture in ("nanogpt", "modern"):
            yield f"{architecture} d128 l4 {precision}", gpt_config(architecture, precision, SMALL), text(data)
        if short:
            continue
        yield f"modern d384 l6 {precision}", gpt_config("modern", precision, LARGE), text(data)
        for d_model, layers, dropout in ((128, 2, 0.0), (64, 8, 0.1), (256, 4, 0.1), (512, 2, 0.0)):
            config = Config(family="translation", d_model=d_model, layers=layers, dropout=dropout, precision=precision)
            yield f"translation d{d_model} l{layers} p{dropout:g} {precision}", config, pairs(data)


def estimated_bytes(learner: Learner, data: Data) -> int:
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
        optimizer=config.optimizer,
        fused=fused,
    )


def row(what: str, against: str, errors: list[tuple[str, float]], within: float, short: bool) -> Row:
    """The errors of the estimates."""
    worst = max(abs(error) for _, error in errors)
    return Row(
        what=what, against=against, asked=f"within {within:.0%}",
        measured="; ".join(f"{name} {error:+.0%}" for name, error in errors),
        reached=None if short else worst <= within,
    )  # fmt: skip
