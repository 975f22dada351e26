"""What a step really takes: memory by torch's own account of its tensors, FLOPs by Nsight Compute."""

import csv
import shutil
import subprocess
import sys
from collections.abc import Sequence

import torch

from model.config import Config, Data
from model.cost.memory_estimate import most_bytes
from model.nn.precision import prepare
from model.training.learner import Learner
from tune.errors import UserError
from tune.experiments.word_model import WordConfig, block_training

STEPS = 2
"""Of which the second has all that any step has."""


def step_bytes(config: Config, data: Data, device: torch.device) -> int:
    """The most bytes of tensors alive at once while a model, its optimizer and its batches are made and step.

    Another one steps before, and is gone: what a process allocates once, such as a resident mask, is no training's.
    """

    def run() -> None:
        learner = Learner(config, data, device)
        for _ in range(STEPS):
            learner.step(1.0)
        learner.wait()

    run()
    return most_bytes(run, device)


OPERATIONS = {"fadd": 1, "fmul": 1, "ffma": 2}
"""FLOPs of each instruction on fp32; a fused multiplication and addition is two."""
_INSTRUCTIONS = {f"smsp__sass_thread_inst_executed_op_{name}_pred_on.sum": n for name, n in OPERATIONS.items()}
_TRAFFIC = "dram__bytes.sum"
_FORBIDDEN = "ERR_NVGPUCTRPERM"


def counted_on_gpu(batch: int, device: torch.device, seconds: float) -> tuple[int, int]:
    """FLOPs on fp32 and bytes read from the device's memory and written to it, of a training step of the report's
    block, in a process of its own. UserError: they cannot be read here."""
    program = shutil.which("ncu")
    if device.type != "cuda":
        raise UserError("Nsight Compute: there is no GPU here: its counters are read on a machine with one")
    if program is None:
        raise UserError("Nsight Compute: there is no ncu on the PATH: install NVIDIA's nsight-compute")
    code = f"from tune.experiments.counters import profiled_step; profiled_step({batch})"
    command = [
        program, "--csv", "--print-units", "base", "--profile-from-start", "off",
        "--metrics", ",".join((*_INSTRUCTIONS, _TRAFFIC)), sys.executable, "-c", code,
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        raise UserError(f"Nsight Compute: {seconds:.0f} s were too few: give a larger --budget") from None
    if _FORBIDDEN in done.stdout + done.stderr:
        raise UserError("Nsight Compute: the driver lets administrators alone read counters: ask yours to allow it")
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no reason").splitlines()[-1]
        raise UserError(f"Nsight Compute: it failed: {last}")
    return counted(done.stdout.splitlines())


def counted(lines: Sequence[str]) -> tuple[int, int]:
    """The sums of what ncu wrote as CSV, a line for each kernel and metric, after lines of other programs."""
    begin = next((place for place, line in enumerate(lines) if line.startswith('"ID"')), None)
    if begin is None:
        raise UserError("Nsight Compute: it saw no kernel: this version of it writes another form, or none ran")
    flops = traffic = 0.0
    for row in csv.DictReader(lines[begin:]):
        value = float(row["Metric Value"].replace(",", ""))
        flops += _INSTRUCTIONS.get(row["Metric Name"], 0) * value
        traffic += value if row["Metric Name"] == _TRAFFIC else 0
    return round(flops), round(traffic)


def profiled_step(batch: int) -> None:
    """What runs under ncu: only the second step is looked at."""
    device = torch.device("cuda")
    prepare("fp32", device)
    step = block_training(WordConfig(), batch, device)
    step()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    step()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStop()
