"""The laws of Muon: what an update is, that its size knows no gradient's, and that the rest is AdamW's."""

import pytest
import torch
from torch import Tensor, nn

from model.nn.gpt import GPT, GPTConfig
from model.nn.mup import HIDDEN, parameter_groups
from model.training.muon import LEAST_NORM, Muon, orthogonalized

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


def moved(model: nn.Module, optimizer: torch.optim.Optimizer, size: float = 1.0) -> dict[str, Tensor]:
    """How a step with these gradients moves each parameter."""
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    random = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        parameter.grad = size * torch.randn(parameter.shape, generator=random)
    optimizer.step()
    return {name: parameter.detach() - before[name] for name, parameter in model.named_parameters()}


def gpt(d_model: int = 32) -> GPT:
    torch.manual_seed(0)
    return GPT(GPTConfig(vocabulary=11, context=8, d_model=d_model, heads=4, layers=2, taps=2))


def muon(model: nn.Module, decay: float = 0.0) -> Muon:
    return Muon(parameter_groups(model, RATE, decay, muon=True), BETAS)


def test_a_matrix_moves_as_far_whatever_its_gradient_and_by_its_shape_alone() -> None:
    model = gpt()
    once, again = (moved(each, muon(each), size) for each, size in ((gpt(), 1.0), (gpt(), 100.0)))
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
    by_muon, by_adamw = moved(ours, muon(ours, 0.1)), moved(theirs, plain)
    hidden = {id(p) for g in plain.param_groups if g["role"] == HIDDEN for p in g["params"]}
    for name, parameter in theirs.named_parameters():
        assert torch.equal(by_muon[name], by_adamw[name]) == (id(parameter) not in hidden)


def test_a_matrix_decays_as_by_adamw_at_all_widths() -> None:
    for d_model in (16, 64):
        for made in (muon(gpt(d_model), 0.1), torch.optim.AdamW(parameter_groups(gpt(d_model), RATE, 0.1))):
            (hidden,) = (group for group in made.param_groups if group["role"] == HIDDEN)
            assert hidden["lr"] * hidden["weight_decay"] == pytest.approx(RATE * 0.1)
