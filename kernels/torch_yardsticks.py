"""The model pieces in torch, on arrays that they share with NumPy; the only file of kernels that imports torch."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernels.kernel import Bind, Call, Inputs


def shared(array: Any) -> Tensor:
    """A tensor of the same memory; torch knows none that is read-only, so of such an array it gets a copy."""
    return torch.from_numpy(array if array.flags.writeable else np.array(array))


def bound(prepare: Callable[[tuple[Tensor, ...], Tensor], Callable[[], Tensor]], threads: int) -> Bind:
    """Of a function: tensors -> a call without arguments that returns the result."""

    def bind(inputs: Inputs, output: Any) -> Call:
        run = prepare(tuple(map(shared, inputs)), shared(output))
        return Call(
            function=run, arguments=(), read=lambda result: result.numpy(),
            before=lambda: torch.set_num_threads(threads),
        )  # fmt: skip

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
