"""GPT: upstream exactly as `nanogpt`, causal, compilable, and uniform at first as `modern`."""

import math

import pytest
import torch
from torch import nn

from model.nn.gpt import ARCHITECTURES, GPT, GPTConfig
from model.nn.precision import set_compute

V, C, D, H, L = 19, 12, 16, 4, 3


def config(architecture, **changes):
    given = {"vocabulary": V, "context": C, "d_model": D, "heads": H, "layers": L, "architecture": architecture}
    return GPTConfig(**(given | changes))


def awake(model):
    """Give every weight a value: what begins at zero hides mistakes."""
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def reference_logits(weights, tokens, heads):
    """nanoGPT by hand for one text: weights by upstream's names, tokens a list -> logits (T, V)"""

    def layer_norm(x, name):
        mean, variance = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)
        return (x - mean) / (variance + 1e-5).sqrt() * weights[f"{name}.weight"]

    def linear(x, name):
        return x @ weights[f"{name}.weight"].T

    layers = 1 + max(int(name.split(".")[2]) for name in weights if name.startswith("transformer.h."))
    x = torch.stack(
        [
            weights["transformer.wte.weight"][token] + weights["transformer.wpe.weight"][place]
            for place, token in enumerate(tokens)
        ]
    )  # (T, D)
    width = x.shape[1] // heads
    for layer in range(layers):
        block = f"transformer.h.{layer}"
        q, k, v = linear(layer_norm(x, f"{block}.ln_1"), f"{block}.attn.c_attn").split(x.shape[1], dim=1)
        mixed = torch.zeros_like(x)
        for head in range(heads):
            part = slice(head * width, (head + 1) * width)
            for t in range(len(tokens)):
                scores = k[: t + 1, part] @ q[t, part] / math.sqrt(width)
                mixed[t, part] = torch.softmax(scores, 0) @ v[: t + 1, part]
        x = x + linear(mixed, f"{block}.attn.c_proj")
        h = linear(layer_norm(x, f"{block}.ln_2"), f"{block}.mlp.c_fc")
        x = x + linear(h * 0.5 * (1 + torch.erf(h / math.sqrt(2))), f"{block}.mlp.c_proj")
    return layer_norm(x, "transformer.ln_f") @ weights["lm_head.weight"].T


def upstream_checkpoint():
    """A checkpoint with upstream's names and arguments, made without our model."""
    weights = {
        "transformer.wte.weight": torch.randn(V, D),
        "transformer.wpe.weight": torch.randn(C, D),
        "transformer.ln_f.weight": torch.randn(D),
    }
    for layer in range(L):
        block = f"transformer.h.{layer}"
        weights |= {
            f"{block}.ln_1.weight": torch.randn(D),
            f"{block}.ln_2.weight": torch.randn(D),
            f"{block}.attn.c_attn.weight": torch.randn(3 * D, D) / 4,
            f"{block}.attn.c_proj.weight": torch.randn(D, D) / 4,
            f"{block}.mlp.c_fc.weight": torch.randn(4 * D, D) / 4,
            f"{block}.mlp.c_proj.weight": torch.randn(D, 4 * D) / 8,
        }
    weights["lm_head.weight"] = weights["transformer.wte.weight"]
    sizes = {"vocab_size": V, "block_size": C, "n_embd": D, "n_head": H, "n_layer": L}
    return {"model": weights, "model_args": sizes | {"bias": False, "dropout": 0.0}}


def test_an_upstream_checkpoint_gives_upstreams_logits_and_upstream_gets_it_back():
    checkpoint = upstream_checkpoint()
    model = GPT(config("nanogpt"))
    model.load_state_dict(checkpoint["model"])
    tokens = torch.randint(V, (2, C))
    logits = model.eval()(tokens)
    expected = torch.stack([reference_logits(checkpoint["model"], row, H) for row in tokens.tolist()])
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)
    back = model.to_upstream()
    assert back["model_args"] == checkpoint["model_args"] and back["model"].keys() == checkpoint["model"].keys()
    assert all(torch.equal(back["model"][name], tensor) for name, tensor in checkpoint["model"].items())


def test_upstream_draws_the_same_weights_from_the_same_seed():
    """Upstream makes its modules in this order, then draws all weights again in it, projections once more."""
    torch.manual_seed(3)
    embeddings = nn.Embedding(V, D), nn.Embedding(C, D)
    shapes = (D, 3 * D), (D, D), (D, 4 * D), (4 * D, D)
    linears = [nn.Linear(*shape, bias=False) for _ in range(L) for shape in shapes]
    head = nn.Linear(D, V, bias=False)
    for module in (head, embeddings[1], *linears, head):
        nn.init.normal_(module.weight, std=0.02)
    for projection in linears[1::2]:
        nn.init.normal_(projection.weight, std=0.02 / math.sqrt(2 * L))
    torch.manual_seed(3)
    model = GPT(config("nanogpt"))
    assert torch.equal(model.lm_head.weight, head.weight)
    assert torch.equal(model.transformer.h[1].mlp.c_proj.weight, linears[7].weight)
    assert torch.equal(model.transformer.h[2].attn.c_attn.weight, linears[8].weight)
    assert all(parameter.ndim > 1 or bool((parameter == 1).all()) for parameter in model.parameters())


@pytest.mark.parametrize(("architecture", "precision"), [("modern", "fp32"), ("modern", "bf16"), ("nanogpt", "fp32")])
def test_no_position_sees_a_later_one(architecture, precision):
    model = awake(GPT(config(architecture))).eval()
    set_compute(model, precision)
    tokens = torch.randint(V, (2, C))
    changed = tokens.clone()
    changed[:, 7:] = (changed[:, 7:] + 1) % V
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :7], after[:, :7])
    assert not torch.equal(before[:, 7:], after[:, 7:])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_shorter_text_has_the_same_logits_and_so_has_plain_attention(architecture):
    model, tokens = awake(GPT(config(architecture))).eval(), torch.randint(V, (2, C))
    logits = model(tokens)
    torch.testing.assert_close(model(tokens[:, :5]), logits[:, :5], rtol=1e-4, atol=1e-4)
    for module in model.modules():
        if hasattr(module, "fused"):
            module.fused = not module.fused
    torch.testing.assert_close(model(tokens), logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("d_model", "heads", "layers"), [(16, 4, 16), (64, 16, 2)])
def test_modern_begins_uniform_at_every_shape(d_model, heads, layers):
    tokens = torch.randint(V, (2, C))
    assert GPT(config("modern", d_model=d_model, heads=heads, layers=layers))(tokens).abs().max().item() == 0


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_compiles_without_graph_breaks(architecture):
    model = GPT(config(architecture, dropout=0.2, layers=1))
    set_compute(model, "bf16")
    torch.compile(model, fullgraph=True, backend="eager")(torch.randint(V, (2, C)))


def test_an_unknown_architecture_is_refused():
    with pytest.raises(ValueError, match="'gpt5'"):
        config("gpt5")


def test_more_tokens_than_the_context_are_refused():
    with pytest.raises(ValueError, match="context"):
        GPT(config("modern"))(torch.zeros(1, C + 1, dtype=torch.long))
