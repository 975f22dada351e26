"""The training loss: cross-entropy over the targets that count, smoothed where that is asked."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from model.data.batches import IGNORED

AT_ONCE = 2**17
"""Logits to process at a time on a CPU: what is computed from them stays in cache, which saves a twentieth of a
translator's step."""
EVALUATED_AT_ONCE = 2**24
"""Logits to process at a time in an evaluation on a GPU, so that it needs little memory beside a step's."""


def training_loss(logits: Tensor, targets: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """logits (N, V), targets (N,), IGNORED where they do not count -> nats: the loss to train on, and its un-smoothed
    value; for the members of a cohort (K, N, V), (K, N) -> (K,) of each"""
    smoothed, plain = _CrossEntropy.apply(logits, targets, smoothing)
    return smoothed, plain


def plain_loss(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return what training_loss does without smoothing, by torch's own function, which is faster where there are few
    logits."""
    if logits.ndim == 3:
        losses = torch.stack([plain_loss(*one)[0] for one in zip(logits, targets, strict=True)])
    else:
        losses = F.cross_entropy(_wide(logits), targets, ignore_index=IGNORED)
    return losses, losses.detach()


def sums(logits: Tensor, targets: Tensor, block: int = 0) -> tuple[Tensor, Tensor]:
    """logits (N, V), targets (N,) -> nats, and how many targets were predicted first, both (blocks,): summed over each
    block of so many targets, or over all (0); those that are IGNORED do not count"""
    nats, right = list[Tensor](), list[Tensor]()
    for some, of in _at_once(logits, targets, on_gpu=EVALUATED_AT_ONCE):
        x = _wide(some)
        nats.append(F.cross_entropy(x, of, ignore_index=IGNORED, reduction="none"))
        right.append(x.argmax(-1) == of)  # IGNORED is no token's number
    block = min(block or len(targets), len(targets))
    every = (F.pad(_joined(each), (0, -len(targets) % block)).view(-1, block) for each in (nats, right))
    losses, hits = (each.sum(1) for each in every)
    return losses, hits


def _at_once(*rows: Tensor, on_gpu: int | None = None) -> Iterator[tuple[Tensor, ...]]:
    """Split logits (N, V), and what else has rows (N, ...), into chunks of at most AT_ONCE logits on a CPU and `on_gpu`
    on a GPU; into one where that is None, or where a compiler does the fusing."""
    most = AT_ONCE if rows[0].device.type == "cpu" else on_gpu
    if most is None or torch.compiler.is_compiling():
        most = rows[0].numel()
    count = max(1, most // max(1, rows[0].shape[1]))
    return zip(*(each.split(count) for each in rows), strict=True)


class _CrossEntropy(torch.autograd.Function):
    """Cross-entropy with label smoothing (Szegedy et al. 2016, arXiv:1512.00567). Forward also computes the gradient,
    but for the factor that backward gets, instead of keeping the exponentials or computing them twice. It is kept in
    the dtype of the logits, for fp16 in fp32. Of many logits in bf16 it takes a quarter of the time of torch's.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
        counts, vocabulary = targets != IGNORED, logits.shape[-1]
        weight = counts / counts.sum(-1, keepdim=True).clamp(min=1)  # (..., N)
        # before the loss is scaled these values are too small for fp16
        slope = torch.empty_like(logits, dtype=torch.float32 if logits.dtype == torch.float16 else None)
        plain, evenly = list[Tensor](), list[Tensor]()
        rows = slope.view(-1, vocabulary), logits.reshape(-1, vocabulary), targets.flatten(), weight.flatten()[:, None]
        for out, some, of, share in _at_once(*rows):
            x, place = _wide(some, copy=True), of.clamp(min=0)[:, None]
            x.sub_(x.amax(-1, keepdim=True))
            own = x.gather(-1, place)[:, 0]
            mean = x.mean(-1) if smoothing else own
            total = x.exp_().sum(-1, keepdim=True)
            norm = total.log()[:, 0]
            plain.append(norm - own)
            evenly.append(norm - mean)
            x.div_(total).scatter_(-1, place, smoothing - 1, reduce="add")
            out.copy_((x.sub_(smoothing / vocabulary) if smoothing else x).mul_(share))
        ctx.save_for_backward(slope)
        ctx.dtype, ctx.on_host = logits.dtype, logits.device.type == "cpu" and not torch.compiler.is_compiling()
        nats, uniform = ((_joined(each).view(weight.shape) * weight).sum(-1) for each in (plain, evenly))
        ctx.mark_non_differentiable(nats)
        return torch.lerp(nats, uniform, smoothing), nats

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, None, None]:
        (slope,) = ctx.saved_tensors
        if not (ctx.on_host and (gradient == 1).all()):  # as it nearly always is
            slope = slope.mul_(gradient[..., None, None])
        return slope.to(ctx.dtype), None, None


def _wide(x: Tensor, *, copy: bool = False) -> Tensor:
    """Return x in fp32, or in its own dtype where that is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32), copy=copy)


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
