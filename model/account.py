"""What torch itself counts of a run: FLOPs, two ways, and bytes of tensors.

Fused attention on a CPU counts as none, so that FLOPs are counted with attention as plain products.
"""

import gc
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode


def counted_flops(run: Callable[[], object]) -> int:
    """Of the matrix products, by FlopCounterMode."""
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        run()
    return int(counter.get_total_flops())


def profiled_flops(run: Callable[[], object]) -> int:
    """By torch's profiler, which counts additions and multiplications by element too."""
    with profile(activities=[ProfilerActivity.CPU], with_flops=True) as profiler, sdpa_kernel(SDPBackend.MATH):
        run()
    return sum(event.flops or 0 for event in profiler.key_averages())


def kept_bytes(model: nn.Module, run: Callable[[], object], but: Iterable[Tensor] = ()) -> int:
    """What autograd keeps of a forward for backward, weights, buffers and the tensors of `but` apart."""
    resident = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers(), *but)}
    kept = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in resident:
            kept[storage.data_ptr()] = storage  # held, so that no two have one address
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        run()
    return sum(storage.nbytes() for storage in kept.values())


def most_bytes(run: Callable[[], object], device: torch.device) -> int:
    """The most bytes of tensors that were alive at once, beyond those before."""
    gc.collect()  # what is freed while it runs must be its own
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        return torch.cuda.max_memory_allocated(device) - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    assert profiler.profiler is not None and profiler.profiler.kineto_results is not None
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    alive = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        alive += event.nbytes()
        most = max(most, alive)
    return most
