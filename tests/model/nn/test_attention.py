"""Attention equals its plain form, rotary positions are relative, and cheap dropout has the right distribution."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from model.nn.attention import (
    MASK_POOL_ELEMENTS,
    Attention,
    Dropout,
    Residual,
    causal_bias,
    norm,
    rotary_tables,
    rotate,
    squared_relu,
)

B, T, H, K = 2, 5, 3, 8


def reference_attention(q, k, v, allowed, scale):
    """The slow obvious form, one query at a time."""
    out = torch.zeros_like(q)
    for b in range(B):
        for h in range(H):
            for t in range(T):
                seen = [s for s in range(T) if allowed[t][s]]
                scores = torch.stack([(q[b, h, t] * k[b, h, s]).sum() * scale for s in seen])
                weights = scores.exp() / scores.exp().sum()
                out[b, h, t] = sum(weight * v[b, h, s] for weight, s in zip(weights, seen, strict=True))
    return out


@pytest.mark.parametrize("said", [True, False])
@pytest.mark.parametrize("fused", [True, False])
def test_equals_the_reference(fused, said):
    q, k, v = torch.randn(3, B, H, T, K).unbind(0)
    attend = Attention(scale=0.3, dropout=0)
    attend.fused = fused
    allowed = [[s <= t for s in range(T)] for t in range(T)]
    torch.testing.assert_close(attend(q, k, v, causal_bias(T), causal=said), reference_attention(q, k, v, allowed, 0.3))


def test_rotary_products_depend_on_the_distance_alone():
    cosines, sines = rotary_tables(9, K)
    q, k = torch.randn(2, 1, 1, 1, K).expand(2, 1, 9, 1, K)  # one query and one key, at nine positions
    products = torch.einsum("bthk,bshk->ts", rotate(q, cosines, sines), rotate(k, cosines, sines))
    for distance in range(9):
        diagonal = products.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal))
    assert not torch.allclose(products[0], products[0, :1].expand(9))


def test_rotary_needs_an_even_head_width():
    with pytest.raises(ValueError, match="head width"):
        rotary_tables(4, 5)


@pytest.mark.parametrize("function", [squared_relu, lambda x: rotate(x, *rotary_tables(T, K)), norm])
def test_gradients_are_those_of_the_function(function):
    x = torch.randn(B, T, H, K, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(function, x)


@pytest.mark.parametrize("size", [100_000, MASK_POOL_ELEMENTS + 17], ids=["one piece", "many pieces"])
@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_dropout_keeps_the_mean_and_drops_its_share(size, rate):
    dropped = Dropout(rate)(torch.ones(size))
    assert dropped.unique().tolist() == pytest.approx([0, 1 / (1 - rate)], rel=1e-2)
    deviation = (rate * (1 - rate) / size) ** 0.5
    assert abs(float((dropped == 0).double().mean()) - rate) < 5 * deviation + 1e-3
    assert float(dropped.double().mean()) == pytest.approx(1, abs=5 * deviation / (1 - rate) + 1e-3)


def test_dropout_is_independent_between_elements_and_calls():
    drop, ones = Dropout(0.5), torch.ones(200_000)
    masks = torch.stack([drop(ones) for _ in range(4)]).sub(1)
    assert float(torch.corrcoef(masks).fill_diagonal_(0).abs().max()) < 0.02
    for shift in (1, 2, 64, 128):
        assert abs(float((masks[0, shift:] * masks[0, :-shift]).mean())) < 0.02


def test_dropout_follows_torch_generator_and_rests_in_evaluation():
    drop, x = Dropout(0.3), torch.ones(1000)
    state = torch.get_rng_state()
    first = drop(x)
    torch.set_rng_state(state)
    assert torch.equal(first, drop(x))
    assert torch.equal(drop.eval()(x), x)


def test_dropout_gradient_is_its_mask():
    x = torch.randn(1000, requires_grad=True)
    dropped = Dropout(0.3)(x)
    dropped.sum().backward()
    torch.testing.assert_close(x.grad * x, dropped)


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_residual_adds_the_dropped_branch(rate):
    x, y = torch.randn(2, 50, 40)
    state = torch.get_rng_state()
    added = Residual(rate, 0.25)(x, y)
    torch.set_rng_state(state)
    torch.testing.assert_close(added, x + 0.25 * Dropout(rate)(y))


def test_compiled_dropout_draws_anew_for_each_input_and_call():
    drop = Dropout(0.5)
    compiled = torch.compile(lambda x, y: (drop(x), drop(y)), fullgraph=True, backend="aot_eager")
    ones = torch.ones(2, 10_000)
    first, second = compiled(*ones)
    assert float(((first == 0) == (second == 0)).float().mean()) < 0.6
    assert not torch.equal(first, compiled(*ones)[0])


@pytest.mark.parametrize("rate", [-0.1, 1.0])
def test_dropout_rate_is_a_share(rate):
    with pytest.raises(ValueError, match="dropout: "):
        Dropout(rate)


def test_norm_makes_rows_of_unit_variance():
    x = norm(7 * torch.randn(4, 300) + 2)
    torch.testing.assert_close(x, F.layer_norm(x, (300,)), rtol=1e-3, atol=1e-3)


def test_turning_writes_into_nothing() -> None:
    """Of what a Function's forward made in place torch 2.11 compiles no gradient."""
    written = list[str]()

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func._schema.is_mutable:
                written.append(str(func))
            return func(*args, **(kwargs or {}))

    x = torch.randn(2, 6, 3, 8, requires_grad=True)
    with Watch():
        rotate(x, *rotary_tables(6, 8))
    assert not written
