"""The row kernels in torch, and the machine's copies and matrix products; the only file of kernels that imports
torch."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernels.kernel import Bind, Call, Inputs, UnavailableError
from model.cost.peak_flops import peak_flops
from model.nn.precision import native_precisions

PRODUCTS = 5
"""Times that a peak is measured; the highest value counts."""
Prepare = Callable[[tuple[Tensor, ...], Tensor], Callable[[], Tensor]]
"""Inputs and output as tensors -> a call without arguments that returns the result."""


def shared(array: Any) -> Tensor:
    """Return a tensor that shares the array's memory, or that of a copy where it is read-only, as no tensor is."""
    return torch.from_numpy(array if array.flags.writeable else np.array(array))


def bind_on_cpu(prepare: Prepare, threads: int) -> Bind:
    """Bind a function of torch on the CPU, with tensors that share the arrays' memory."""

    def bind(inputs: Inputs, output: Any) -> Call:
        run = prepare(tuple(map(shared, inputs)), shared(output))
        return Call(
            function=run, arguments=(), read=lambda result: result.numpy(),
            before=lambda: torch.set_num_threads(threads),
        )  # fmt: skip

    return bind


def bind_on_gpu(prepare: Prepare) -> Bind:
    """Bind a function of torch on a GPU, with data there before and after; the time is until the device is done.

    UnavailableError: there is no device.
    """
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
    """Prepare softmax into the output."""
    (x,) = inputs
    return lambda: torch.softmax(x, 1, out=output)


def layer_norm(inputs: tuple[Tensor, ...], output: Tensor) -> Callable[[], Tensor]:
    """Prepare layer norm. torch takes no output for it: it makes its own, in memory that the call before gave back."""
    x, gain, bias = inputs
    return lambda: torch.layer_norm(x, x.shape[1:], gain, bias, 1e-5)


def cross_entropy(inputs: tuple[Tensor, ...], output: Tensor) -> Callable[[], Tensor]:
    """Prepare -log_softmax(x)[target], in tensors that are made once."""
    x, targets = inputs
    logs, picked = torch.empty_like(x), torch.empty_like(output).unsqueeze(1)
    places = targets.unsqueeze(1)

    def run() -> Tensor:
        torch.log_softmax(x, 1, out=logs)
        torch.gather(logs, 1, places, out=picked)
        return torch.neg(picked.squeeze(1), out=output)

    return run


def gpu_name() -> str | None:
    """Return the GPU's name as the search has it; None where torch sees no GPU."""
    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else None


def gpu_memory_bytes() -> int:
    """Return the bytes of that GPU's memory."""
    return int(torch.cuda.get_device_properties(0).total_memory)


def device_copies(elements: int) -> dict[str, Call]:
    """Return torch's copy of so many float64 on the GPU; nothing where torch sees no GPU."""
    if not torch.cuda.is_available():
        return {}
    a = torch.ones(elements, dtype=torch.float64, device="cuda")
    out = torch.empty_like(a)

    def run() -> None:
        out.copy_(a)
        torch.cuda.synchronize()

    return {"torch": Call(function=run, arguments=(), read=lambda result: result)}


def products(device: str, threads: Sequence[int]) -> dict[str, dict[int, float]]:
    """Measure the FLOP/s of matrix products, by precision that the device does natively and threads of this process."""
    found: dict[str, dict[int, float]] = {}
    for precision in native_precisions(device):
        for many in threads:
            torch.set_num_threads(many)
            best = max(peak_flops(precision, device) for _ in range(PRODUCTS))
            found.setdefault(precision, {})[many] = best
    return found
