"""Muon: hidden matrices are updated by their orthogonalized momentum, embeddings and gains by AdamW.

All singular values of such an update are about 1, so directions of few gradients are learned as fast as the rest
(Jordan et al. 2024, kellerjordan.github.io/posts/muon). The update of a matrix (out, in) is scaled by sqrt(out / in):
then one rate serves all widths (Yang, Simon and Bernstein 2023, arXiv:2310.17813).
"""

import copy
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from model.nn.mup import HIDDEN
from model.nn.precision import native_precisions

MOMENTUM = 0.95
POLYNOMIALS = ((8.0934, -23.6205, 17.4462), (3.6366, -2.7219, 0.5365), (2.6613, -1.9772, 0.4526))
"""Coefficients of x -> a x + b x^3 + c x^5, applied in turn: of all such triples those that bring [.01, 1] nearest to
1, to within .27 (how to find them: Amsel et al. 2025, arXiv:2505.16932). Five, which come nearer, gave the same
losses."""
LEAST_NORM = 1e-7  # added to a momentum's norm, so that a tiny one is not made large
MARGIN = 1.01  # times a norm, for what rounding adds: beyond 1 the polynomials diverge


class AdamW:
    """AdamW of groups as `parameter_groups` makes them, bit by bit as torch's fused one. That one imports the compiler,
    to exclude itself from compilation, so that its first step comes a second later.

    A GradScaler says by `found_inf`, on the device, that a step is to change nothing.
    """

    _step_supports_amp_scaling = True
    found_inf: Tensor | None = None

    def __init__(self, groups: Sequence[dict[str, Any]], betas: tuple[float, float]) -> None:
        self.param_groups, self.state = groups, dict[Tensor, dict[str, Tensor]]()
        for group in groups:
            group["betas"] = betas
        begin_moments(self)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop all gradients."""
        assert set_to_none
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Take one step of all groups."""
        for group in self.param_groups:
            self._step(group)

    def _step(self, group: dict[str, Any]) -> None:
        parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
        if not parameters:
            return
        states = [self.state[parameter] for parameter in parameters]
        steps, means, squares = ([each[name] for each in states] for name in ("step", "exp_avg", "exp_avg_sq"))
        torch._foreach_add_(steps, 1)
        torch._fused_adamw_(
            parameters, [parameter.grad for parameter in parameters], means, squares, [], steps, lr=group["lr"],
            beta1=group["betas"][0], beta2=group["betas"][1], weight_decay=group["weight_decay"], eps=group["eps"],
            amsgrad=False, maximize=False, found_inf=self.found_inf,
        )  # fmt: skip
        if self.found_inf is not None:
            torch._foreach_sub_(steps, [self.found_inf] * len(steps))


def begin_moments(optimizer: torch.optim.Optimizer | AdamW) -> None:
    """Set the moments to zero, as before the first step; torch's optimizers get theirs, so that the first step needs as
    much memory as all others."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            adamw = "betas" in group
            names = ("exp_avg", "exp_avg_sq") if adamw else ("momentum_buffer",)
            count = {"step": torch.zeros((), device=parameter.device)} if adamw else {}
            optimizer.state[parameter] = count | {name: torch.zeros_like(parameter) for name in names}


def step_together(optimizers: Sequence[AdamW]) -> None:
    """Take a step of each optimizer; groups with equal settings are joined, so that more optimizers need no more
    kernels."""
    together = copy.copy(optimizers[0])
    together.state = {parameter: kept for each in optimizers for parameter, kept in each.state.items()}
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for group in (group for each in optimizers for group in each.param_groups):
        key = tuple(value for name, value in group.items() if name not in ("params", "peak_rate"))
        groups.setdefault(key, {**group, "params": []})["params"].extend(group["params"])
    with torch.no_grad():
        for group in groups.values():
            together._step(group)


class Muon(AdamW):
    """Muon for the group with the role HIDDEN, AdamW for the others."""

    def __init__(self, groups: Sequence[dict[str, Any]], betas: tuple[float, float]) -> None:
        super().__init__([group for group in groups if group["role"] != HIDDEN], betas)
        self.param_groups = groups
        begin_moments(self)

    def _step(self, group: dict[str, Any]) -> None:
        if group["role"] == HIDDEN:
            self._orthogonal_step(group["params"], group["lr"], group["weight_decay"])
        else:
            super()._step(group)

    def _orthogonal_step(self, parameters: list[Tensor], rate: float | Tensor, weight_decay: float) -> None:
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        momenta = [self.state[parameter]["momentum_buffer"] for parameter in parameters]
        if self.found_inf is not None:
            moves_none = self.found_inf > 0
            rate = torch.where(moves_none, 0.0, rate)
            gradients = [torch.where(moves_none, *both) for both in zip(momenta, gradients, strict=True)]
        torch._foreach_lerp_(momenta, gradients, 1 - MOMENTUM)
        nesterovs = torch._foreach_lerp(gradients, momenta, MOMENTUM)
        kept: Any = 1 - rate * weight_decay
        torch._foreach_mul_(parameters, kept)
        by_shape = defaultdict[torch.Size, list[tuple[Tensor, Tensor]]](list)
        for parameter, momentum in zip(parameters, nesterovs, strict=True):
            by_shape[parameter.shape].append((parameter, momentum))
        for (rows, columns), pairs in by_shape.items():  # all of a shape at once: small products are slow
            members, matrices = zip(*pairs, strict=True)
            moves, factor = orthogonalized(matrices), -rate * (rows / columns) ** 0.5
            if isinstance(factor, Tensor):
                torch._foreach_add_(members, (moves.to(members[0].dtype) * factor).unbind())
            else:
                torch._foreach_add_(members, moves.unbind(), alpha=factor)


def orthogonalized(matrices: Sequence[Tensor]) -> Tensor:
    """N matrices (R, C) -> (N, R, C): the same singular vectors, singular values near 1; in bf16 where that is fast."""
    first = matrices[0]
    rows, columns = first.shape
    dtype = torch.bfloat16 if "bf16" in native_precisions(first.device.type) else torch.float32
    x = torch.empty(len(matrices), rows, columns, dtype=dtype, device=first.device)
    torch._foreach_copy_(list(x.unbind()), list(matrices))
    x = x / (MARGIN * x.norm(dim=(-2, -1), keepdim=True) + LEAST_NORM)
    for a, b, c in POLYNOMIALS:  # multiplied on the side where products are small, without a transposed copy
        square = x.mT @ x if rows > columns else x @ x.mT
        polynomial = torch.baddbmm(square, square, square, beta=b, alpha=c)
        x = torch.baddbmm(x, x, polynomial, beta=a) if rows > columns else torch.baddbmm(x, polynomial, x, beta=a)
    return x if first.device.type == "cpu" else x.to(first.dtype)  # with equal dtypes a GPU adds all in one kernel
