"""What is known on paper equals what the models have: parameters and FLOPs exactly, kept activations nearly."""

from itertools import product

import pytest
import torch
from torch import nn

from model.cost.estimates import flops_per_token, kept_elements, parameters, plain_parameters, step_memory_bytes
from model.cost.memory_estimate import counted_flops, kept_bytes
from model.nn.gpt import GPT, GPTConfig
from model.nn.precision import set_compute
from model.nn.translator import Translator, TranslatorConfig

B, S, T = 3, 6, 9
SHAPES = [
    {"d_model": d, "heads": heads, "layers": layers}
    for d, heads, layers in ((16, 4, 2), (32, 8, 3), (64, 4, 1), (128, 32, 2))
]
CONFIGS = [
    *(
        GPTConfig(vocabulary=vocabulary, context=T, architecture=architecture, bias=bias, **shape)
        for shape, vocabulary, (architecture, bias) in product(
            SHAPES, (11, 40), (("nanogpt", False), ("nanogpt", True), ("modern", False))
        )
    ),
    *(TranslatorConfig(vocabulary=vocabulary, pad=3, **shape) for shape, vocabulary in product(SHAPES, (11, 40))),
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
def test_parameters_are_exact(config):
    assert parameters(config) == sum(weights.numel() for weights in build(config)[0].parameters())


@pytest.mark.parametrize(("d_model", "layers"), [(16, 2), (64, 3)])
def test_a_plain_transformer_has_the_parameters_that_torch_gives_it(d_model, layers):
    with torch.device("meta"):
        plain = nn.Transformer(d_model, 4, layers, layers, 4 * d_model)
        ends = [nn.Embedding(40, d_model), nn.Embedding(40, d_model), nn.Linear(d_model, 40)]
    found = sum(weights.numel() for module in (plain, *ends) for weights in module.parameters())
    assert plain_parameters(d_model=d_model, layers=layers, vocabulary=40) == found


@pytest.mark.parametrize("config", CONFIGS[::3], ids=str)
def test_flops_are_exact(config):
    model, inputs, source = build(config)
    counted = counted_flops(lambda: model(*inputs).float().square().sum().backward())
    assert counted == flops_per_token(config, target=T, source=source) * B * T


@pytest.mark.parametrize(("precision", "fused"), [("fp32", True), ("fp32", False), ("bf16", False)])
@pytest.mark.parametrize("family", ["nanogpt", "modern", "translation"])
def test_kept_activations_are_estimated(family, precision, fused):
    shape = {"vocabulary": 7, "d_model": 64, "heads": 4, "layers": 3}
    batch, source, target = 8, 24, 32
    if family == "translation":
        config = TranslatorConfig(pad=3, **shape)
        model = Translator(config)
        inputs = one_pair_a_row(torch.randint(7, (batch, source)), torch.randint(7, (batch, target)))
    else:
        config = GPTConfig(context=target, architecture=family, **shape)
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


@pytest.mark.parametrize("config", [CONFIGS[2], CONFIGS[-1]], ids=str)
def test_memory_grows_with_the_batch_and_holds_the_state_at_least(config):
    lengths = {"target": T, "source": S, "fused": False}
    sizes = [step_memory_bytes(config, batch=batch, precision="fp32", **lengths) for batch in (1, 64, 512)]
    assert 16 * parameters(config) <= sizes[0] < sizes[1] < sizes[2]
    assert step_memory_bytes(config, batch=512, precision="bf16", **lengths) < sizes[2]
