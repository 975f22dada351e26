"""One rate for all shapes: what a step changes does not grow with width or depth."""

import pytest
import torch
from torch.nn import functional as F

from model.nn.gpt import GPT, GPTConfig
from model.nn.mup import BASE_D_MODEL, BASE_LAYERS, Scaling, attention_scale, parameter_groups, roles
from model.nn.translator import Translator, TranslatorConfig
from model.training.muon import Muon

V, T = 17, 8
RATE, DECAY = 3e-3, 0.1


def gpt(d_model=BASE_D_MODEL, layers=BASE_LAYERS, **more):
    return GPT(GPTConfig(vocabulary=V, context=T, d_model=d_model, heads=4, layers=layers, **more))


def translator(d_model=BASE_D_MODEL, layers=BASE_LAYERS, **more):
    return Translator(TranslatorConfig(vocabulary=V + 3, pad=V, d_model=d_model, heads=4, layers=layers, **more))


MODELS = {"modern": gpt, "nanogpt": lambda **shape: gpt(architecture="nanogpt", **shape), "translation": translator}


def by_role(model):
    return {group["role"]: group for group in parameter_groups(model, RATE, DECAY)}


@pytest.mark.parametrize("family", MODELS)
def test_each_parameter_is_in_one_group_and_tied_weights_come_once(family):
    model = MODELS[family](d_model=32, layers=2)
    members = [id(parameter) for group in parameter_groups(model, RATE, DECAY) for parameter in group["params"]]
    assert sorted(members) == sorted(id(parameter) for parameter in model.parameters())


@pytest.mark.parametrize("family", MODELS)
def test_at_the_base_the_rules_change_nothing_and_a_hidden_matrix_learns_slower_in_a_wider_model(family):
    model = MODELS[family]()
    base, wide = by_role(model), by_role(MODELS[family](d_model=4 * BASE_D_MODEL))
    for role, group in base.items():
        assert group["peak_rate"] == group["lr"] == RATE
        assert group["weight_decay"] == (0 if role == "gain" else DECAY)
    assert wide["hidden"]["peak_rate"] == base["hidden"]["peak_rate"] / 4
    assert wide["embedding"]["peak_rate"] == base["embedding"]["peak_rate"]
    assert wide["hidden"]["peak_rate"] * wide["hidden"]["weight_decay"] == pytest.approx(RATE * DECAY)
    without = MODELS[family](mup=False).scaling
    for name in ("width", "depth", "branch_factor", "logits", "hidden_rate_factor", "epsilon"):
        assert getattr(model.scaling, name) == getattr(without, name)


@pytest.mark.parametrize("family", MODELS)
def test_without_mup_all_shapes_have_one_rate_and_nothing_is_scaled(family):
    model = MODELS[family](d_model=32, layers=8, mup=False)
    groups = by_role(model).values()
    assert {(group["peak_rate"], group["eps"]) for group in groups} == {(RATE, 1e-8)}
    assert {group["weight_decay"] for group in groups if group["role"] != "gain"} == {DECAY}
    assert (model.scaling.branch_factor, model.scaling.logits) == (1, 1)


def test_roles():
    assert roles(gpt())["lm_head.weight"] == "embedding"
    found = roles(gpt(architecture="nanogpt"))
    assert found["transformer.wte.weight"] == found["transformer.wpe.weight"] == "embedding"
    assert found["transformer.h.0.ln_1.weight"] == "gain"
    assert found["transformer.h.0.attn.c_attn.weight"] == "hidden"


def drift(d_model, layers, muon, steps=6):
    """How far the last hidden state and the logits have moved after a few steps, root mean square."""
    torch.manual_seed(0)
    model = gpt(d_model=d_model, layers=layers)
    groups = parameter_groups(model, RATE, 0.0, muon=muon)
    optimizer = Muon(groups, (0.9, 0.99)) if muon else torch.optim.AdamW(groups, fused=True)
    tokens = torch.randint(V, (8, T + 1), generator=torch.Generator().manual_seed(1))
    branches = []
    model.transformer.h[-1].register_forward_hook(lambda module, inputs, output: branches.append(output.detach()))
    for step in range(steps + 1):
        logits = model(tokens[:, :-1])
        if step < steps:
            optimizer.zero_grad()
            F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
            optimizer.step()
    moved = (branches[-1] - branches[0]).square().mean().sqrt().item()
    return torch.tensor([moved, logits.detach().square().mean().sqrt().item()])


WIDE, DEEP = ((16, 2), (256, 2)), ((32, 2), (32, 16))
"""A small and a large shape each: d_model, layers."""


def growth(shapes, muon=False):
    small, large = (drift(*shape, muon) for shape in shapes)
    return (large / small).log().abs().max()


@pytest.mark.parametrize("muon", [False, True], ids=["adamw", "muon"])
@pytest.mark.parametrize("shapes", [WIDE, DEEP], ids=["width", "depth"])
def test_coordinates_move_as_far_at_every_shape(shapes, muon):
    assert growth(shapes, muon) < 0.9


@pytest.mark.parametrize(("rule", "shapes"), [("hidden_rate_factor", WIDE), ("branch_factor", DEEP), ("logits", WIDE)])
def test_without_a_rule_they_do_not(monkeypatch, rule, shapes):
    monkeypatch.setattr(Scaling, rule, 1.0)
    assert growth(shapes) > 0.9


def test_first_logits_of_a_tied_table_are_of_one_size_at_every_width():
    torch.manual_seed(0)
    tokens = torch.randint(V, (4, T))
    inputs = tokens, torch.zeros_like(tokens), tokens, torch.zeros_like(tokens)
    small, large = (translator(width, layers=2)(*inputs).square().mean().sqrt() for width in (16, 256))
    assert 0.5 < small / large < 2 and large < 3


def test_attention_products_are_of_one_size_at_every_head_width():
    assert len({round(attention_scale(width) * width, 6) for width in (4, 32, 128)}) == 1
