"""Building blocks of both models: attention, rotary positions, normalisation and a cheap dropout.

# Shapes: B batch, T queries, S keys, D d_model, H heads, K head width.
"""

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, library, nn
from torch.nn import functional as F

from tune.errors import UserError

MASK_POOL_ELEMENTS = 2**22  # elements of the resident dropout mask
MASKED = -1e4  # added to the scores of masked positions; finite, so that a fully masked row gives no NaN
ALIGNED = 32  # offsets into that mask are multiples of this: vector instructions want aligned addresses
ROTARY_BASE = 1_000.0
LEAST_WIDTH = 8  # heads are padded to multiples of this width for CUDA's fused attention with a bias in 16 bits


class Dropout(nn.Module):
    """Dropout whose masks, on a CPU, are read at a random offset from one resident random mask.

    Drawing a mask anew costs 22 % of a step there, reading one 4 %. The offsets come from torch's default generator,
    whose state a checkpoint keeps; the mask itself is the same in every process. In a cohort each member has its own
    rate and draws from its own generator (`members`).
    """

    members: "CohortDropout | None" = None

    def __init__(self, rate: float) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise UserError(f"dropout: {rate} is not in [0, 1); write a share such as 0.1")
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """x (...) -> (...), each element 0 with probability `rate`, else divided by 1 - rate"""
        if not self.training or self.rate == 0:
            return x
        return x * self.mask(x) if self.needs_mask(x) else F.dropout(x, self.rate)

    def needs_mask(self, x: Tensor) -> bool:
        """Whether a mask tensor is made, rather than dropout done inside a kernel of torch's."""
        return x.device.type == "cpu" or self.members is not None

    def mask(self, x: Tensor) -> Tensor:
        """Return a mask like x (...), each element 0 or 1 / (1 - rate)."""
        if self.members is not None:
            return self.members.mask(x)
        if torch.compiler.is_compiling():
            return torch.ops.ration.dropout_mask(x.detach(), self.rate)
        return _dropout_mask(x, self.rate)


class Residual(Dropout):
    """Adds a branch to the residual stream in one kernel: x + factor dropout(y)."""

    def __init__(self, rate: float, factor: float = 1.0) -> None:
        super().__init__(rate)
        self.factor = factor

    def forward(self, x: Tensor, y: Tensor) -> Tensor:  # type: ignore[override]
        """x, y (B, T, D) -> (B, T, D)"""
        drops = self.training and self.rate > 0
        if drops and self.members is not None and x.device.type == "cpu":
            return self.members.add_residual(x, y, self.factor)
        if drops and self.needs_mask(x):
            return torch.addcmul(x, y, self.mask(y), value=self.factor)
        return torch.add(x, super().forward(y), alpha=self.factor)


class CohortDropout:
    """Dropout of a cohort: each member's rate, and the generator from which it draws what it would draw alone. On a GPU
    one generator serves all members, and all masks of a step are drawn at once, as soon as their sizes are known."""

    def __init__(self, rates: Sequence[float], generators: Sequence[torch.Generator]) -> None:
        self.rates, self.generators = rates, generators
        self._shares: dict[int, list[Tensor]] = {}
        """Until the sizes are known, by rows of a batch: the keep probability of each element, dropout by dropout."""
        self._known: dict[int, tuple[Tensor, list[int]]] = {}
        """By rows of a batch: these tensors joined into one, and their sizes."""
        self._rows = 0
        self._masks = iter(list[Tensor]())

    def begin(self, rows: int) -> None:
        """Begin a forward of a batch with so many rows; draw its masks at once where their sizes are known."""
        self._rows = rows
        self.settle()
        if rows in self._known:
            whole, sizes = self._known[rows]
            self._masks = iter(torch.bernoulli(whole).div_(whole).split(sizes))

    def settle(self) -> None:
        """Take what was collected since the last batch began for all the dropouts of a forward."""
        for rows, shares in self._shares.items():
            self._known[rows] = torch.cat(shares), [len(each) for each in shares]
        self._shares.clear()

    def mask(self, x: Tensor) -> Tensor:
        """Return a mask like x (K B, ...), each member's rows at its own rate."""
        if x.device.type != "cpu":
            return self._on_gpu(x).view(x.shape)
        rows = x.detach().view(len(self.rates), -1)
        drawn = zip(rows, self.rates, self.generators, strict=True)
        masks = [_dropout_mask(*each) if each[1] else torch.ones_like(each[0]) for each in drawn]
        return torch.stack(masks).view(x.shape)

    def add_residual(self, x: Tensor, y: Tensor, factor: float) -> Tensor:
        """Return x + factor dropout(y) of rows (K B, ...), rounded for each member as when it trains alone."""
        each = zip(*(of.chunk(len(self.rates)) for of in (x, y)), self.rates, self.generators, strict=True)
        return torch.cat([
            torch.addcmul(a, b, _dropout_mask(b, rate, generator), value=factor)
            if rate
            else torch.add(a, b, alpha=factor)
            for a, b, rate, generator in each
        ])  # fmt: skip

    def _on_gpu(self, x: Tensor) -> Tensor:
        if self._rows in self._known:
            return next(self._masks)
        share = torch.cat([x.new_full((x.numel() // len(self.rates),), 1 - rate) for rate in self.rates])
        self._shares.setdefault(self._rows, []).append(share)
        return torch.bernoulli(share).div_(share)


def _dropout_mask(x: Tensor, rate: float, generator: torch.Generator | None = None) -> Tensor:
    """Return a mask like x, read from the resident one; a large mask is joined from pieces, each at a random offset."""
    pool, wanted = _pool(rate, x.dtype, MASK_POOL_ELEMENTS), x.numel()
    piece = wanted if wanted <= MASK_POOL_ELEMENTS // 2 else MASK_POOL_ELEMENTS // 4
    count = -(-wanted // piece)
    offsets = (
        torch.randint((MASK_POOL_ELEMENTS - piece) // ALIGNED + 1, (count,), generator=generator).mul_(ALIGNED).tolist()
    )
    pieces = [pool[offset : offset + piece] for offset in offsets]
    mask = pieces[0] if len(pieces) == 1 else torch.cat(pieces)[:wanted]
    return mask.view(x.shape)


@functools.lru_cache(maxsize=8)
def _pool(rate: float, dtype: torch.dtype, elements: int) -> Tensor:
    kept = torch.rand(elements, generator=torch.Generator().manual_seed(0)) >= rate
    return (kept / kept.float().mean()).to(dtype)


_library = library.Library("ration", "FRAGMENT")
_library.define("dropout_mask(Tensor x, float rate) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))
# a copy: a compiled graph treats an operator's output as its own and writes into it
_library.impl("dropout_mask", lambda x, rate: _dropout_mask(x, rate).clone(), "CPU")
_library.impl("dropout_mask", lambda x, rate: x.new_empty(x.shape), "Meta")


class Attention(nn.Module):
    """Scaled dot-product attention over given queries, keys and values, fused or as plain products.

    `fused` is set by `precision.set_compute`: which form is the faster one depends on device and precision.
    """

    fused = True

    def __init__(self, *, scale: float, dropout: float) -> None:
        super().__init__()
        self.scale = scale
        self.drop = Dropout(dropout)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, *, causal: bool = False) -> Tensor:
        """q (B, H, T, K), k, v (B, H, S, K), bias broadcasting to (B, H, T, S): 0 or -inf -> (B, H, T, K)

        `causal`: the bias is `causal_bias(T)`, T = S; the fastest fused kernels then do without reading it.
        """
        rate = self.drop.rate if self.training else 0.0
        if self.fused and (rate == 0 or q.device.type != "cpu"):
            mask = None if bias is None or causal else bias.to(q.dtype)
            width, more = v.shape[-1], 0 if mask is None or q.device.type == "cpu" else -v.shape[-1] % LEAST_WIDTH
            if more:
                q, k, v = (F.pad(each, (0, more)) for each in (q, k, v))
            found = F.scaled_dot_product_attention(q, k, v, mask, dropout_p=rate, is_causal=causal, scale=self.scale)
            return found[..., :width] if more else found
        scores = (q if self.scale == 1 else q * self.scale) @ k.transpose(-2, -1)
        if bias is not None:
            scores = scores + bias.to(q.dtype)
        return self.drop(scores.softmax(-1)) @ v


def heads_together(x: Tensor) -> Tensor:
    """x (B, H, T, K) -> (B, T, H K)"""
    return x.transpose(1, 2).flatten(2)


def causal_bias(length: int, device: torch.device | None = None) -> Tensor:
    """Return the causal mask (T, T): 0 at positions that may be attended to, -inf at later ones."""
    return torch.full((length, length), float("-inf"), device=device).triu(1)


def same_sentence_bias(of: Tensor, others: Tensor, bias: Tensor | float = 0.0) -> Tensor:
    """of (B, T), others (B, S), both sentence numbers -> (B, 1, T, S): bias where they are equal, else MASKED"""
    return torch.where(of[:, None, :, None] == others[:, None, None], bias, MASKED)


def rotary_tables(length: int, width: int, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
    """Return the tables of rotary positions (Su et al. 2021, arXiv:2104.09864), both (T, K): cosines, and sines whose
    first half is negated in each row. UserError: the head width is odd."""
    if width % 2:
        raise UserError(f"heads: a head width (d_model / heads) of {width} is odd; rotary positions need an even one")
    places, pairs = torch.arange(length, device=device), torch.arange(0, width, 2, device=device)
    angles = torch.outer(places.float(), ROTARY_BASE ** -(pairs / width))
    sines = angles.sin()
    return angles.cos().repeat(1, 2), torch.cat([-sines, sines], -1)


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """x (B, T, ..., K), tables (T, K) -> like x: the pairs (i, i + K / 2) rotated by their position's angle

    Tables in x's dtype save a cast.
    """
    shape = (x.shape[1], *(1,) * (x.ndim - 3), -1)
    return _Rotate.apply(x, cosines.to(x.dtype).view(shape), sines.to(x.dtype).view(shape))


def squared_relu(x: Tensor) -> Tensor:
    """x (...) -> (...), relu(x)^2 (So et al. 2021, arXiv:2109.08668)"""
    return _SquaredReLU.apply(x)


def norm(x: Tensor) -> Tensor:
    """x (..., D) -> (..., D), layer norm without gain or bias"""
    return F.layer_norm(x, x.shape[-1:])


class _Rotate(torch.autograd.Function):
    """Rotation in three kernels, forward and backward; keeps only the tables, as the gradient is rotated back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        ctx.save_for_backward(cosines, sines)
        return _turned(x, cosines, sines, 1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        cosines, sines = ctx.saved_tensors
        return _turned(gradient, cosines, sines, -1), None, None


def _turned(x: Tensor, cosines: Tensor, sines: Tensor, way: int) -> Tensor:
    first, second = x.chunk(2, -1)  # torch 2.11 cannot compile the gradient of the in-place form (its issue 180642)
    return torch.addcmul(x * cosines, torch.cat([second, first], -1), sines, value=way)


class _SquaredReLU(torch.autograd.Function):
    """relu(x)^2 that keeps only relu(x) for backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        positive = x.relu()
        ctx.save_for_backward(positive)
        return positive * positive

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (positive,) = ctx.saved_tensors
        return (gradient * positive).mul_(2)
