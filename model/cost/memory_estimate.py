"""Memory that a trial needs on paper, and FLOPs and bytes of tensors of a run as torch itself, or a GPU, counts them.

FLOPs are counted with attention as plain products, as torch counts none for fused attention on a CPU.
"""

import csv
import gc
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from model.config import Config, Data, model_config, pad_of
from model.cost.estimates import AVERAGE_BYTES, STATE_BYTES, parameters, step_memory_bytes
from model.data.batches import batch_shape, most_evaluation_tokens
from model.nn.gpt import GPTConfig
from model.nn.loss import EVALUATED_AT_ONCE
from model.nn.precision import compute_dtype
from model.training.averaging import Average
from model.training.muon import AdamW
from tune.errors import UserError

_LOGIT_BYTES = 12  # per logit of an evaluation: in the compute dtype, in fp32, and its logarithm or a soft cap
_GPU_LOGIT_BYTES = 8  # per logit processed at a time, or per logit where they are capped: fp32, and the logarithm
_GPU_ACTIVATIONS = {"nanogpt": 18, "translation": 26}
"""Elements a token and channel that torch reserves at most for an evaluation, beside its logits. Fitted to 13 trials on
an H200, of d128 to d512; within 8 % of 33 others, of d64 to d768 in four precisions, and within 4.5 % of ten with
logits processed as now (docs/log.md)."""


def memory_estimate(config: Config, data: Data, *, micro_batches: int, device: torch.device) -> int:
    """Return the bytes on paper of a trial's step, its batch cut into so many parts, or of an evaluation if those are
    more.

    Attention that may not be fused counts as not fused, which takes more.
    """
    shape = batch_shape(data, batch_tokens=config.batch_tokens, context=config.context)
    made = model_config(config, vocabulary=data.vocabulary, pad=pad_of(data))
    size, tokens = compute_dtype(config.precision).itemsize, most_evaluation_tokens(device.type)
    step = step_memory_bytes(
        made,
        batch=-(-shape.rows // micro_batches),
        target=shape.target,
        source=shape.source,
        precision=config.precision,
        optimizer=config.optimizer,
        fused=device.type != "cpu",
        checkpointing=config.checkpointing,
        cut=micro_batches > 1,
        whole=True,  # on a CPU only where it is compiled
    )
    if device.type == "cuda":  # where the step's graph keeps its memory during an evaluation
        each = size * data.vocabulary + _GPU_ACTIVATIONS[config.family] * config.d_model * size
        logits = tokens * data.vocabulary
        capped = isinstance(made, GPTConfig) and made.architecture == "modern"
        evaluation = step + tokens * each + _GPU_LOGIT_BYTES * (logits if capped else min(logits, EVALUATED_AT_ONCE))
    else:
        each = size if config.family == "translation" else _LOGIT_BYTES
        evaluation = STATE_BYTES * parameters(made) + tokens * each * data.vocabulary
    return max(evaluation, step) + (AVERAGE_BYTES * parameters(made) if config.average else 0)


def counted_flops(run: Callable[[], object]) -> int:
    """Return the FLOPs of a run's matrix products, by torch's FlopCounterMode."""
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        run()
    return int(counter.get_total_flops())


def kept_bytes(model: nn.Module, run: Callable[[], object]) -> int:
    """Return the bytes that autograd keeps of a forward for backward, without weights and buffers."""
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


def held_bytes(
    model: nn.Module, optimizer: torch.optim.Optimizer | AdamW | None = None, average: Average | None = None
) -> int:
    """Return the bytes of tensors held between two steps: weights, buffers, the optimizer's moments and the average."""
    moments = [] if optimizer is None else [each for kept in optimizer.state.values() for each in kept.values()]
    averages = {} if average is None else average.tensors()
    every = *model.parameters(), *model.buffers(), *moments, *averages.values()
    return sum(tensor.nbytes for tensor in every)


def most_bytes(run: Callable[[], object], device: torch.device) -> int:
    """Return the most bytes of tensors that were alive at once during a run, beyond those before."""
    gc.collect()  # so that only the run's own tensors are freed during it
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


OPERATIONS = {"fadd": 1, "fmul": 1, "ffma": 2}
"""FLOPs of each fp32 instruction; a fused multiply-add is two."""
_INSTRUCTIONS = {f"smsp__sass_thread_inst_executed_op_{name}_pred_on.sum": n for name, n in OPERATIONS.items()}
_TRAFFIC = "dram__bytes.sum"
_FORBIDDEN = "ERR_NVGPUCTRPERM"


def counted_on_gpu(code: str, device: torch.device, seconds: float) -> tuple[int, int]:
    """Run code in a process of its own under Nsight Compute; return the fp32 FLOPs, and the bytes read from and written
    to the device's memory, of what the code has profiled. UserError: they cannot be read here."""
    program = shutil.which("ncu")
    if device.type != "cuda":
        raise UserError("Nsight Compute: there is no GPU here: its counters are read on a machine with one")
    if program is None:
        raise UserError("Nsight Compute: there is no ncu on the PATH: install NVIDIA's nsight-compute, then --resume")
    command = [
        program, "--csv", "--print-units", "base", "--profile-from-start", "off",
        "--metrics", ",".join((*_INSTRUCTIONS, _TRAFFIC)), sys.executable, "-c", code,
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        raise UserError(f"Nsight Compute: {seconds:.0f} s were too few: give more --budget with --resume") from None
    if _FORBIDDEN in done.stdout + done.stderr:
        raise UserError("Nsight Compute: the driver lets administrators alone read counters: ask yours to allow it")
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no reason").splitlines()[-1]
        raise UserError(f"Nsight Compute: it failed: {last}")
    return sum_ncu_counters(done.stdout.splitlines())


def sum_ncu_counters(lines: Sequence[str]) -> tuple[int, int]:
    """Sum up FLOPs and bytes in ncu's CSV, which has a line for each kernel and metric, after lines of other programs.
    UserError: there is no such line."""
    begin = next((place for place, line in enumerate(lines) if line.startswith('"ID"')), None)
    if begin is None:
        raise UserError("Nsight Compute: it saw no kernel: this version of it writes another form, or none ran")
    flops = traffic = 0.0
    for row in csv.DictReader(lines[begin:]):
        value = float(row["Metric Value"].replace(",", ""))
        flops += _INSTRUCTIONS.get(row["Metric Name"], 0) * value
        traffic += value if row["Metric Name"] == _TRAFFIC else 0
    return round(flops), round(traffic)
