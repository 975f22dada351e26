"""The laws of Muon: what an update is, that its size knows no gradient's, and that the rest is AdamW's."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from model.nn.gpt import GPT, GPTConfig
from model.nn.mup import HIDDEN, parameter_groups
from model.training.muon import LEAST_NORM, AdamW, Muon, orthogonalized

RATE, BETAS = 1e-2, (0.9, 0.99)


def matrix(rows: int, columns: int, values: Tensor) -> tuple[Tensor, Tensor]:
    """One with these singular values, and the same with all of them 1."""
    random = torch.Generator().manual_seed(0)
    left, _ = torch.linalg.qr(torch.randn(rows, len(values), generator=random))
    right, _ = torch.linalg.qr(torch.randn(columns, len(values), generator=random))
    return left @ values.diag() @ right.T, left @ right.T


@pytest.mark.parametrize("shape", [(24, 24), (24, 96), (96, 24)])
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_an_update_has_the_singular_vectors_of_its_momentum_and_values_near_one(
    shape: tuple[int, int], size: float
) -> None:
    given, ideal = matrix(*shape, torch.logspace(-1.5, 0, 24))
    found = orthogonalized(torch.stack([size * given, -size * given])).float()
    values = torch.linalg.svdvals(found[0])
    assert values.min() > 0.65 and values.max() < 1.35
    assert torch.cosine_similarity(found[0].flatten(), ideal.flatten(), 0) > 0.97
    assert torch.equal(found[1], -found[0])


def test_a_matrix_of_one_direction_keeps_it() -> None:
    found = orthogonalized(torch.ones(1, 32, 64)).float()
    assert torch.linalg.matrix_norm(found[0], 2).item() == pytest.approx(1, abs=0.35)


def test_of_nothing_it_makes_nothing() -> None:
    assert not orthogonalized(torch.zeros(1, 8, 8)).any()
    assert orthogonalized(torch.full((1, 8, 8), LEAST_NORM**2)).abs().max() < 1e-3


def moved(model: nn.Module, step: Callable[[], object], size: float = 1.0) -> dict[str, Tensor]:
    """How a step with these gradients moves each parameter."""
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    random = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        parameter.grad = size * torch.randn(parameter.shape, generator=random)
    step()
    return {name: parameter.detach() - before[name] for name, parameter in model.named_parameters()}


def gpt(d_model: int = 32) -> GPT:
    torch.manual_seed(0)
    return GPT(GPTConfig(vocabulary=11, context=8, d_model=d_model, heads=4, layers=2, taps=2))


def muon(model: nn.Module, decay: float = 0.0) -> Muon:
    return Muon(parameter_groups(model, RATE, decay, muon=True), BETAS)


def test_a_matrix_moves_as_far_whatever_its_gradient_and_by_its_shape_alone() -> None:
    model = gpt()
    once, again = (moved(each, muon(each).step, size) for each, size in ((gpt(), 1.0), (gpt(), 100.0)))
    rates = {id(p): g["lr"] for g in muon(model).param_groups if g["role"] == HIDDEN for p in g["params"]}
    for name, parameter in model.named_parameters():
        if (rate := rates.get(id(parameter))) is not None:
            assert torch.cosine_similarity(once[name].flatten(), again[name].flatten(), 0) > 0.99
            rows, columns = parameter.shape
            norm = torch.linalg.matrix_norm(once[name], 2).item()
            assert norm == pytest.approx(rate * (rows / columns) ** 0.5, rel=0.3)
    assert len(rates) == 8


def test_tables_and_gains_move_as_by_adamw() -> None:
    ours, theirs = gpt(), gpt()
    plain = torch.optim.AdamW(parameter_groups(theirs, RATE, 0.1), betas=BETAS, fused=True)
    by_muon, by_adamw = moved(ours, muon(ours, 0.1).step), moved(theirs, plain.step)
    hidden = {id(p) for g in plain.param_groups if g["role"] == HIDDEN for p in g["params"]}
    for name, parameter in theirs.named_parameters():
        assert torch.equal(by_muon[name], by_adamw[name]) == (id(parameter) not in hidden)


def test_adamw_is_torchs_bit_by_bit_step_after_step_at_any_rate() -> None:
    ours, theirs = gpt(), gpt()
    own = AdamW(parameter_groups(ours, RATE, 0.1), BETAS)
    plain = torch.optim.AdamW(parameter_groups(theirs, RATE, 0.1), betas=BETAS, fused=True)
    for size, rate in enumerate((1e-3, 1e-2, 0.0, 5e-3), 1):
        for group in (*own.param_groups, *plain.param_groups):
            group["lr"] = rate
        moved(ours, own.step, size)
        moved(theirs, plain.step, size)
    assert all(map(torch.equal, ours.parameters(), theirs.parameters()))


def test_a_matrix_decays_as_by_adamw_at_all_widths() -> None:
    for d_model in (16, 64):
        for made in (muon(gpt(d_model), 0.1), torch.optim.AdamW(parameter_groups(gpt(d_model), RATE, 0.1))):
            (hidden,) = (group for group in made.param_groups if group["role"] == HIDDEN)
            assert hidden["lr"] * hidden["weight_decay"] == pytest.approx(RATE * 0.1)


def test_a_step_that_a_scaler_found_to_overflow_changes_nothing_and_others_move_as_without_one() -> None:
    model, plain = gpt(), gpt()
    made, scaler = muon(model, 0.1), torch.amp.GradScaler("cpu", init_scale=1.0)
    expected = moved(plain, muon(plain, 0.1).step)

    def through_scaler() -> None:
        scaler.scale(torch.zeros(()))
        scaler.unscale_(made)
        scaler.step(made)
        scaler.update()

    for name, move in moved(model, through_scaler).items():
        assert torch.allclose(move, expected[name], atol=1e-7)
    before = [tensor.clone() for values in made.state.values() for tensor in values.values()]
    assert not any(move.any() for move in moved(model, through_scaler, torch.inf).values())
    after = [tensor for values in made.state.values() for tensor in values.values()]
    assert all(map(torch.equal, before, after)), "moments, and the count of steps"
