"""The model pieces in torch, and what the machine's copies and products reach; the only file of kernels with torch."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernels.kernel import Bind, Call, Inputs, UnavailableError
from model.cost.peak_flops import peak_flops
from model.nn.precision import native

PRODUCTS = 5
"""Of so many looks at a peak the highest counts."""
Prepare = Callable[[tuple[Tensor, ...], Tensor], Callable[[], Tensor]]
"""Inputs and output as tensors -> a call without arguments that returns the result."""


def shared(array: Any) -> Tensor:
    """A tensor of the same memory; torch knows none that is read-only, so of such an array it gets a copy."""
    return torch.from_numpy(array if array.flags.writeable else np.array(array))


def bound(prepare: Prepare, threads: int) -> Bind:
    """On the CPU, on the memory of the arrays."""

    def bind(inputs: Inputs, output: Any) -> Call:
        run = prepare(tuple(map(shared, inputs)), shared(output))
        return Call(
            function=run, arguments=(), read=lambda result: result.numpy(),
            before=lambda: torch.set_num_threads(threads),
        )  # fmt: skip

    return bind


def on_gpu(prepare: Prepare) -> Bind:
    """Data on the device before and after; timed until the device is done. UnavailableError without a device."""
    if not torch.cuda.is_available():
        raise UnavailableError("no CUDA device")

    def bind(inputs: Inputs, output: Any) -> Call:
        run = prepare(tuple(shared(each).cuda() for each in inputs), shared(output).cuda())

        def finished() -> Tensor:
            result = run()
            torch.cuda.synchronize()
            return result

        return Call(function=finished, arguments=(), read=lambda result: result.cpu().numpy())

    return bind


def softmax(inputs: tuple[Tensor, ...], output: Tensor) -> Callable[[], Tensor]:
    """Into the output."""
    (x,) = inputs
    return lambda: torch.softmax(x, 1, out=output)


def layer_norm(inputs: tuple[Tensor, ...], output: Tensor) -> Callable[[], Tensor]:
    """torch fills no given output here: it makes its own, whose memory it gets back from the call before."""
    x, gain, bias = inputs
    return lambda: torch.layer_norm(x, x.shape[1:], gain, bias, 1e-5)


def cross_entropy(inputs: tuple[Tensor, ...], output: Tensor) -> Callable[[], Tensor]:
    """-log_softmax(x)[target], in arrays made once."""
    x, targets = inputs
    logs, picked = torch.empty_like(x), torch.empty_like(output).unsqueeze(1)
    places = targets.unsqueeze(1)

    def run() -> Tensor:
        torch.log_softmax(x, 1, out=logs)
        torch.gather(logs, 1, places, out=picked)
        return torch.neg(picked.squeeze(1), out=output)

    return run


def gpu_name() -> str | None:
    """As the search calls it; None where torch sees none."""
    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else None


def device_copies(elements: int) -> dict[str, Call]:
    """A GPU's copy of so many float64 to another place on it; nothing where torch sees none."""
    if not torch.cuda.is_available():
        return {}
    a = torch.ones(elements, dtype=torch.float64, device="cuda")
    out = torch.empty_like(a)

    def run() -> None:
        out.copy_(a)
        torch.cuda.synchronize()

    return {"torch": Call(function=run, arguments=(), read=lambda result: result)}


def products(device: str, threads: Sequence[int]) -> dict[str, dict[int, float]]:
    """FLOP/s of products of matrices, by precision that the device does natively and threads of this process."""
    found: dict[str, dict[int, float]] = {}
    for precision in native(device):
        for many in threads:
            torch.set_num_threads(many)
            best = max(peak_flops(precision, device) for _ in range(PRODUCTS))
            found.setdefault(precision, {})[many] = best
    return found
