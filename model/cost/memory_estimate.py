"""What a trial needs of memory on paper, and what torch itself counts of a run: FLOPs, two ways, and bytes of tensors.

Fused attention on a CPU counts as none, so that FLOPs are counted with attention as plain products.
"""

import gc
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from model.config import Config, Data, model_config, pad_of
from model.cost.estimates import AVERAGE_BYTES, STATE_BYTES, parameters, step_memory_bytes
from model.data.batches import batch_shape, most_evaluation_tokens

_LOGIT_BYTES = 12  # of an evaluation: in the compute dtype, in fp32, and the logarithms


def memory_estimate(config: Config, data: Data, *, micro_batches: int, device: torch.device) -> int:
    """Bytes on paper of a trial's step, its batch cut into so many parts, or of its evaluation where that takes more.

    Attention that may not be fused counts as not fused, which takes more.
    """
    shape = batch_shape(data, batch_tokens=config.batch_tokens, context=config.context)
    made = model_config(config, vocabulary=data.vocabulary, pad=pad_of(data))
    logits = _LOGIT_BYTES * most_evaluation_tokens("valid", device.type) * data.vocabulary
    step = step_memory_bytes(
        made,
        batch=-(-shape.rows // micro_batches),
        target=shape.target,
        source=shape.source,
        precision=config.precision,
        fused=device.type != "cpu",
    )
    evaluation = (
        step if device.type == "cuda" else STATE_BYTES * parameters(made)
    ) + logits  # its graph keeps a step's
    return max(evaluation, step) + (AVERAGE_BYTES * parameters(made) if config.average else 0)


def most_micro_batches(config: Config, data: Data) -> int:
    """The power of two that cuts a batch into single rows."""
    shape = batch_shape(data, batch_tokens=config.batch_tokens, context=config.context)
    return 1 << (shape.rows - 1).bit_length()


def counted_flops(run: Callable[[], object]) -> int:
    """Of the matrix products, by FlopCounterMode."""
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        run()
    return int(counter.get_total_flops())


def kept_bytes(model: nn.Module, run: Callable[[], object]) -> int:
    """What autograd keeps of a forward for backward, weights and buffers apart."""
    resident = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
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
