"""What is known on paper equals what the models have: parameters and FLOPs exactly, kept activations nearly; and a peak
is one that products of matrices reach.
"""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from model.config import Config, build_model, pad_of
from model.cost.estimates import (
    flops_per_token,
    kept_elements,
    parameters,
    plain_parameters,
    step_memory_bytes,
    update_flops,
)
from model.cost.memory_estimate import counted_flops, held_bytes, kept_bytes, most_bytes
from model.cost.peak_flops import PRODUCTS, SECONDS, SIZES, peak_flops
from model.data.batches import batch_shape
from model.data.dataset import PairData, TextData
from model.families import FAMILIES
from model.nn.gpt import GPT, GPTConfig
from model.nn.mup import parameter_groups
from model.nn.precision import on_threads, prepare, set_compute
from model.nn.translator import Translator, TranslatorConfig
from model.training.averaging import Average
from model.training.learner import Learner
from model.training.muon import Muon
from tune.search.memory_model import ESTIMATE_FACTOR

B, S, T = 3, 6, 9
SHAPES = [
    {"vocabulary": 11, "d_model": 16, "heads": 4, "layers": 3},
    {"vocabulary": 40, "d_model": 128, "heads": 32, "layers": 1},
]
CONFIGS = [
    config
    for shape in SHAPES
    for config in (
        GPTConfig(context=T, architecture="nanogpt", **shape),
        GPTConfig(context=T, architecture="modern", **shape),
        GPTConfig(context=T, architecture="modern", taps=2, **shape),
        TranslatorConfig(pad=3, **shape),
    )
]


def build(config):
    """The model, and the arguments of its forward."""
    target = torch.randint(config.vocabulary, (B, T))
    if isinstance(config, GPTConfig):
        return GPT(config), (target,), 0
    return Translator(config), one_pair_a_row(torch.randint(config.vocabulary, (B, S)), target), S


def one_pair_a_row(source, target):
    """The inputs of a translator."""
    return source, torch.zeros_like(source), target, torch.zeros_like(target)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_parameters_and_flops_are_exact(config):
    model, inputs, source = build(config)
    assert parameters(config) == sum(weights.numel() for weights in model.parameters())
    counted = counted_flops(lambda: model(*inputs).float().square().sum().backward())
    assert counted == flops_per_token(config, target=T, source=source) * B * T


@pytest.mark.parametrize("config", [CONFIGS[2], CONFIGS[3], CONFIGS[-1]], ids=str)
def test_the_products_of_an_update_are_known(config):
    model, _, _ = build(config)
    optimizer = Muon(parameter_groups(model, 1e-3, 0.1, muon=True), (0.9, 0.99))
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()  # the first one asks what the processor is fast at
    assert counted_flops(optimizer.step) == update_flops(config)


def test_a_plain_transformer_has_the_parameters_that_torch_gives_it():
    with torch.device("meta"):
        plain = nn.Transformer(64, 4, 3, 3, 4 * 64)
        ends = [nn.Embedding(40, 64), nn.Embedding(40, 64), nn.Linear(64, 40)]
    found = sum(weights.numel() for module in (plain, *ends) for weights in module.parameters())
    assert plain_parameters(d_model=64, layers=3, vocabulary=40) == found


RATE = 0.37
"""Of dropout; no other test has it, as the resident mask of a rate stays."""


@pytest.mark.parametrize(
    ("family", "precision", "fused", "dropout"),
    [("nanogpt", "fp32", True, 0.0), ("modern", "fp32", False, 0.0), ("modern", "bf16", False, 0.0),
     ("translation", "fp32", True, 0.0), ("translation", "bf16", False, 0.0), ("nanogpt", "fp32", False, RATE),
     ("modern", "bf16", False, RATE), ("translation", "fp32", False, RATE)],
)  # fmt: skip
def test_kept_activations_are_estimated(family, precision, fused, dropout, monkeypatch):
    """With dropout, here, the masks are too large for one piece of the resident mask."""
    for module in ("model.nn.attention", "model.cost.estimates"):
        monkeypatch.setattr(f"{module}.MASK_POOL_ELEMENTS", 2**13)
    shape = {"vocabulary": 7, "d_model": 64, "heads": 4, "layers": 3, "dropout": dropout}
    batch, source, target = 8, 24, 32
    if family == "translation":
        config = TranslatorConfig(pad=3, **shape)
        model = Translator(config)
        inputs = one_pair_a_row(torch.randint(7, (batch, source)), torch.randint(7, (batch, target)))
    else:
        config = GPTConfig(context=target, architecture=family, taps=3 if family == "modern" else 0, **shape)
        model, inputs = GPT(config), (torch.randint(7, (batch, target)),)
    set_compute(model, precision)
    set_fused(model, fused)
    size, casts = (4, 0) if precision == "fp32" else (2, 2 * parameters(config))
    estimate = casts + size * kept_elements(config, batch=batch, target=target, source=source, fused=fused)
    assert kept_bytes(model, lambda: model(*inputs)) == pytest.approx(estimate, rel=0.03)


def set_fused(model: nn.Module, fused: bool) -> None:
    for module in model.modules():
        if hasattr(module, "fused"):
            module.fused = fused


@pytest.mark.parametrize("config", CONFIGS[1:3], ids=str)
def test_memory_grows_with_the_batch_and_holds_the_state_at_least(config):
    lengths = {"target": T, "source": S, "fused": False, "optimizer": "adamw"}
    sizes = [step_memory_bytes(config, batch=batch, precision="fp32", **lengths) for batch in (1, 64, 512)]
    assert 16 * parameters(config) <= sizes[0] < sizes[1] < sizes[2]
    assert step_memory_bytes(config, batch=512, precision="bf16", **lengths) < sizes[2]


@pytest.mark.parametrize(("optimizer", "parts"), [("adamw", 1), ("adamw", 2), ("muon", 1), ("muon", 4), ("sgd", 2)])
def test_a_step_takes_what_is_on_paper_and_at_most_the_factor_more(
    optimizer: str, parts: int, small_text: Config, text_data: TextData, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut or whole, of a model whose state is as large as what its forward keeps; an update of Muon's in fp32."""
    monkeypatch.setattr("model.training.muon.native_precisions", lambda _: ())
    changes = {"d_model": 256, "context": 64, "batch_tokens": 512, "dropout": 0.0, "average": 0.0}
    config = replace(small_text, optimizer=optimizer, **changes)
    learner = Learner(config, text_data, torch.device("cpu"), parts)
    set_fused(learner.model, True)
    held = held_bytes(learner.model, learner.optimizer)
    taken = held + most_bytes(lambda: learner.step(1.0), learner.device)
    rows, _, target = batch_shape(text_data, batch_tokens=config.batch_tokens, context=config.context)
    paper = step_memory_bytes(
        learner.model.config, batch=rows // parts, target=target, precision="fp32", optimizer=optimizer, fused=True,
        cut=parts > 1,
    )  # fmt: skip
    assert paper < taken < ESTIMATE_FACTOR * paper
    averaged = Average(learner.parameter_names, 0.1)
    assert held_bytes(learner.model, learner.optimizer, averaged) == held + 4 * learner.parameters


def test_a_peak_is_of_the_fastest_product_of_some(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock of this thread that moves by other steps each time that it is read; what passes meanwhile is nothing
    to it."""
    prepare("fp32", torch.device("cpu"))  # measures, once a process, what pays here
    moments = itertools.accumulate(itertools.cycle((0.004, 0.002, 0.01, 0.005)))
    passed = itertools.count(step=SECONDS / 4)
    clocks = {"thread_time": lambda: next(moments), "monotonic": lambda: next(passed)}
    monkeypatch.setattr("model.cost.peak_flops.time", SimpleNamespace(**clocks))
    with on_threads(1):
        assert peak_flops("fp32", "cpu") == pytest.approx(PRODUCTS["cpu"] * 2 * SIZES["cpu"] ** 3 / 0.002)


def test_every_pair_counts_by_its_own_length(small_pairs: Config, pair_data: PairData) -> None:
    """And so padding counts for nothing: all weights but the encoder's are used once a target token."""
    model = build_model(small_pairs, vocabulary=pair_data.vocabulary, pad=pad_of(pair_data))
    lengths = pair_data.valid.lengths.tolist()
    whole = sum(target * flops_per_token(model.config, target=target, source=source) for source, target in lengths)
    found = FAMILIES["translation"].flops_per_token(small_pairs, pair_data)
    assert found == pytest.approx(whole / sum(target for _, target in lengths))
    longest = max(lengths, key=sum)
    assert found < flops_per_token(model.config, target=longest[1], source=longest[0])
