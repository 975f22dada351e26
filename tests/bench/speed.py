"""How fast the models train: ratios of interleaved turns, on one core."""

import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from model.config import Config, build_model
from model.cost.estimates import flops_per_token
from model.cost.peak_flops import SIZES, peak_flops
from model.data.batches import TrainBatches
from model.data.resident import OUTSIDE
from tests.bench.contenders import LARGE, SMALL, best_precision, gpt_config, pairs, runs_here
from tests.bench.interleaved import Timed, interleaved, ratio
from tests.bench.table import Row, not_native

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
        others = [name for name in ("nanogpt fp32", "nanogpt fp32 compiled") if name not in asked]
        ours = [name for name in (*asked, *others) if runs_here(name)]
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
    ours = "translation fp32", "translation fp32 compiled", "translation bf16", "translation bf16 compiled"
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


def cpu_seconds(run: Callable[[], object]) -> float:
    """What a call takes."""
    began = time.process_time()
    run()
    return time.process_time() - began


def _ms(timed: Timed) -> str:
    return f"{1e3 * statistics.median(timed.step_seconds):.1f} ms"
