"""Precision in one place: what a device does natively and fast, the switches for it, and how a model computes in it.

A model keeps fp32 master weights. Its embeddings hand out activations in the compute dtype, and every `Linear` casts
its weight to the dtype of its input: no autocast.
"""

import ctypes
import functools
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_map

from model.training.memory import is_memory_limited
from tune.errors import UserError

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")

_DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_CPU_FLAGS = {torch.bfloat16: ("avx512_bf16", "amx_bf16"), torch.float16: ("avx512_fp16", "amx_fp16")}
_MKLDNN: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
_FASTER = 1.2  # a switch or a dtype that gains less than this is not worth its risk
_TRUE_FP32 = 1e-6  # relative error of a real fp32 product; bf16 has 3e-3
_FACTS: dict[str, Any] = {}


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (..., in), weight (out, in) -> (..., out); for a cohort (model/training/cohort.py), whose members' rows follow
    one another: x (K B, ..., in), weights (K, out, in) -> (K B, ..., out)"""
    if weight.ndim == 2:
        return F.linear(x, weight, bias)
    assert bias is None, "no model of a cohort has one"
    return _Maps.apply(x.reshape(len(weight), -1, x.shape[-1]), weight).view(*x.shape[:-1], -1)


class _Maps(torch.autograd.Function):
    """x (K, N, in), weights (K, out, in) -> (K, N, out); gradients of the weights have the weights' memory layout."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(x, weights)
        return torch.bmm(x, weights.mT)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, weights = ctx.saved_tensors
        return torch.bmm(gradient, weights), torch.bmm(gradient.mT, x)


class Linear(nn.Linear):
    """A linear map with fp32 master weights that computes in the dtype of its input."""

    cast: Tensor | None = None
    """The weight in the compute dtype, during a forward of a model that casts all weights at once (`set_compute`)."""

    def forward(self, x: Tensor) -> Tensor:
        """x (..., in) -> (..., out)"""
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return linear(x, self.weight.to(x.dtype) if self.cast is None else self.cast, bias)


class _CastAll(torch.autograd.Function):
    """Casts all weights to another dtype in one kernel, and in another all their gradients back to fp32."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        cast = [torch.empty_like(weight, dtype=dtype) for weight in weights]
        torch._foreach_copy_(cast, weights)
        return tuple(cast)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        given = [gradient for gradient in gradients if gradient is not None]
        back = [torch.empty_like(gradient, dtype=torch.float32) for gradient in given]
        torch._foreach_copy_(back, given)
        there = iter(back)
        return None, *(None if gradient is None else next(there) for gradient in gradients)


def _cast_at_once(model: nn.Module, dtype: torch.dtype) -> None:
    """Let each forward cast the weights of all the model's Linear layers together: on a GPU one kernel, not many."""
    maps = [module for module in model.modules() if isinstance(module, Linear)]
    if not maps:
        return

    def before(_model: nn.Module, _inputs: Any) -> None:
        if not torch.compiler.is_compiling():
            for module, cast in zip(maps, _CastAll.apply(dtype, *(each.weight for each in maps)), strict=True):
                module.cast = cast

    def after(_model: nn.Module, _inputs: Any, _outputs: Any) -> None:
        for module in maps:
            module.cast = None

    hooks = model.register_forward_pre_hook(before), model.register_forward_hook(after, always_call=True)
    model.casting = hooks  # type: ignore[assignment]


class Embedding(nn.Embedding):
    """An embedding with fp32 master weights that returns the compute dtype, from which all activations have it."""

    compute_dtype = torch.float32

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens (...) -> (..., D); for a cohort (K B, T) -> (K B, T, D)"""
        if self.weight.ndim == 2:
            return super().forward(tokens).to(self.compute_dtype)
        members, vocabulary, _ = self.weight.shape
        first = torch.arange(0, members * vocabulary, vocabulary, device=tokens.device)
        places = tokens.unflatten(0, (members, -1)) + first[:, None, None]  # (K, B, T)
        return F.embedding(places.flatten(0, 1), self.weight.flatten(0, 1)).to(self.compute_dtype)


def compute_dtype(precision: str) -> torch.dtype:
    """Return the dtype of activations and matrix products. UserError: the precision is unknown."""
    if precision not in _DTYPES:
        raise UserError(f"precision: {precision!r} is unknown; choose one of {', '.join(PRECISIONS)}")
    return _DTYPES[precision]


def set_compute(model: nn.Module, precision: str, *, own: bool = False) -> None:
    """Let the model compute in `precision`, on the device where it is and under the switches of `prepare`. own: it is
    of a user's own family, whose loss is measured in the dtype of what the model returns: that is then fp32.

    On a CPU attention is not fused in 16 bits or where oneDNN does the fp32 products: it would be slow.
    """
    dtype = compute_dtype(precision)
    fused = next(model.parameters()).device.type != "cpu" or (
        dtype == torch.float32 and _MKLDNN.fp32_precision != "bf16"
    )
    for module in model.modules():
        if isinstance(module, Embedding):
            module.compute_dtype = dtype
        if hasattr(module, "fused"):
            module.fused = fused  # type: ignore[assignment]
    for hook in vars(model).pop("casting", ()):
        hook.remove()
    several = dist.is_available() and dist.is_initialized()  # DDP sends gradients as they are ready, one by one
    if dtype != torch.float32 and next(model.parameters()).device.type != "cpu" and not several:
        _cast_at_once(model, dtype)
    if own:
        model.register_forward_hook(lambda _model, _inputs, outputs: tree_map(_in_fp32, outputs))


def _in_fp32(output: Any) -> Any:
    """Return a tensor of 16-bit floats in fp32, and anything else as it is."""
    return output.float() if isinstance(output, Tensor) and output.dtype in (torch.bfloat16, torch.float16) else output


def prepare(precision: str, device: torch.device | str) -> None:
    """Set the switches of this process for `precision`, before a model computes in it; to be called again where others
    may have set them since."""
    compute_dtype(precision)
    if torch.device(device).type == "cuda":
        cudnn: Any = torch.backends.cudnn
        for products in (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn):
            products.fp32_precision = "tf32" if precision == "tf32" else "ieee"
        torch.backends.cuda.enable_cudnn_sdp(False)  # it plans for about a second for each new shape
    else:
        if not is_memory_limited():
            _keep_heap()
        _MKLDNN.fp32_precision = "bf16" if _onednn_fp32_pays() else "ieee"


def repeat_exactly() -> None:
    """Let this process take only kernels of a GPU that repeat bit for bit, from before its first one on. An operation
    that has none is an error of torch's; a mere warning would let fused attention take its fast one."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # which serves debugging


def processor_facts() -> dict[str, Any]:
    """Return what this process measured of the processor; others on the machine `use_processor_facts`."""
    return {"native": native_precisions("cpu"), "onednn": _onednn_fp32_pays()}


def use_processor_facts(known: Mapping[str, Any]) -> None:
    """Take over what `processor_facts` returned elsewhere; measuring again takes time and may come out differently."""
    _FACTS.update(known)
    _native.cache_clear()
    _onednn_fp32_pays.cache_clear()


def native_precisions(device: torch.device | str) -> tuple[str, ...]:
    """Return the precisions that a device does natively and fast, each under one name (on a CPU tf32 is fp32)."""
    place = torch.device(device)
    return _native(place.type, place.index)


@functools.cache
def _native(kind: str, index: int | None) -> tuple[str, ...]:
    if kind == "cuda":
        major = torch.cuda.get_device_capability(index)[0]
        return ("fp32", *(("tf32", "bf16") if major >= 8 else ()), *(("fp16",) if major >= 7 else ()))
    known: tuple[str, ...] | None = _FACTS.get("native")
    return known or ("fp32", *(name for name in ("bf16", "fp16") if _cpu_is_fast(_DTYPES[name])))


def upstream_precision(precisions: Sequence[str]) -> str:
    """Return which of a device's precisions upstream nanoGPT uses for its fp32 products."""
    return "tf32" if "tf32" in precisions else "fp32"


def scaler(precision: str, device: torch.device | str) -> torch.amp.GradScaler:
    """Return the gradient scaler: enabled for fp16, without effect for the others."""
    return torch.amp.GradScaler(torch.device(device).type, enabled=precision == "fp16")


def _cpu_is_fast(dtype: torch.dtype) -> bool:
    """Whether a 16-bit dtype is fast: the CPU has the instructions, without which it is up to 91 times slower, and a
    measurement confirms it."""
    capabilities: dict[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()  # older torch has none
    if not any(capabilities.get(flag, False) for flag in _CPU_FLAGS[dtype]):
        return False
    x = _probe()
    small = x.to(dtype)
    return _speed_up(lambda: x @ x, lambda: small @ small) >= _FASTER


@functools.cache
def _onednn_fp32_pays() -> bool:
    """Whether oneDNN does the fp32 products exactly and faster here: torch's MKL takes a slow path on AMD.

    The switch only *permits* bf16; with AMX oneDNN would really use it, which the error shows.
    """
    if "onednn" in _FACTS:
        return bool(_FACTS["onednn"])
    x = _probe()
    exact = x.double() @ x.double()

    def product(switch: str) -> Tensor:
        _MKLDNN.fp32_precision = switch
        return x @ x

    before = _MKLDNN.fp32_precision
    try:
        error = (product("bf16").double() - exact).norm() / exact.norm()
        return bool(error < _TRUE_FP32) and _speed_up(lambda: product("ieee"), lambda: product("bf16")) >= _FASTER
    finally:
        _MKLDNN.fp32_precision = before


def _probe() -> Tensor:
    """Return a matrix whose product takes so little (0.3 ms) that the best of many is undisturbed on a busy machine."""
    return torch.randn(256, 256, generator=torch.Generator().manual_seed(0))


def _speed_up(slow: Callable[[], object], fast: Callable[[], object], limit: float = 0.1) -> float:
    """Return how many times as fast `fast` is: by the best run of each, in turns on one thread for `limit` CPU seconds.

    Several threads would wait for each other on a busy machine, and both would seem equally slow.
    """
    best = {slow: float("inf"), fast: float("inf")}
    with on_threads(1):
        end = time.thread_time() + limit
        while time.thread_time() < end:
            for run in best:
                start = time.thread_time()
                run()
                best[run] = min(best[run], time.thread_time() - start)
    return best[slow] / best[fast]


@contextmanager
def on_threads(count: int) -> Iterator[None]:
    """Let torch compute on so many threads of this process for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _keep_heap() -> None:
    """Tell glibc to keep freed blocks: giving them back costs 2-3 ms of page faults a step. No effect on other libcs.

    Not to be called under a memory limit: kept blocks count there, and would leave a batch cut into parts no room.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        trim_threshold, mmap_threshold = -1, -3  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD of malloc.h
        mallopt(trim_threshold, 2**31 - 1)
        if not mallopt(mmap_threshold, 2**30):  # older glibcs refuse more than 32 MiB
            mallopt(mmap_threshold, 2**25)
