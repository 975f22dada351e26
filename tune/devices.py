"""What trials run on: GPUs where there are any, each for one trial or for several, else CPU cores."""

import math
import os
import platform
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from model.nn.precision import native
from model.training.memory import GPU_BYTES
from tune.flags import AUTO, invalid
from tune.machine import core_count, cpu_name
from tune.settings import Settings
from tune.step_prices import StepPrices

CONTEXT_BYTES = 600_000_000
"""What a process takes of a GPU beside its tensors, its kernels' code most of all: 300 to 600 MB by GPU and driver."""
BESIDE_BYTES = CONTEXT_BYTES + GPU_BYTES
"""And beside a trial's own tensors."""
MPS = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"), "control")
"""There while its daemon runs, which who owns the machine starts: nvidia-cuda-mps-control -d. Without it processes take
turns on a GPU: on an H100 2 to 16 of them, each with a small model's graph, took no more steps a second than one, with
it 4 took 2.0 times as many and 16 2.3 times."""
COMPILING = 8
"""Processes at most that compile the kernels of a GPU's trial: on an H100 one took 25 s where twelve took 13."""
RAYS_UNIT = 10_000
"""Ray counts a device in so many parts."""


@dataclass(frozen=True, kw_only=True)
class Devices:
    """What trials run on: kind "cuda" or "cpu", how many devices, and how many trials share each, or how many CPU cores
    each trial has.

    model: a device's name; processor: the same, or the CPU's: by whose seconds prices are learned; precisions: what all
    of them do natively; memory_bytes: of a GPU; cores: CPU cores; prices: of steps, where they are known and not
    measured.
    """

    kind: str
    count: int
    model: str
    precisions: tuple[str, ...]
    cores: int
    memory_bytes: int | None = None
    trials_each: int = 1
    cores_each: int = 1
    prices: StepPrices | None = None
    processor: str = ""

    @property
    def slots(self) -> int:
        """How many trials run at once."""
        return self.slots_of(self.count)

    def slots_of(self, devices: int) -> int:
        """Those that so many whole devices are."""
        return devices // self.cores_each * self.trials_each

    @property
    def share(self) -> float:
        """The device-seconds in a second of a slot."""
        return self.cores_each / self.trials_each

    @property
    def name(self) -> str:
        """For the records: what a slot is."""
        if self.cores_each > 1:
            return f"{self.cores_each} {self.model.replace('core', 'cores')}"
        return self.model if self.trials_each == 1 else f"1/{self.trials_each} of {self.model}"

    @property
    def threads(self) -> int:
        """Of a trial's process: on a GPU they compile its kernels."""
        return self.cores_each if self.kind == "cpu" else max(1, min(COMPILING, self.cores // self.slots))

    @property
    def gpus(self) -> int:
        """GPUs that Ray manages."""
        return self.count if self.kind == "cuda" else 0

    @property
    def needs(self) -> dict[str, float]:
        """What a trial asks Ray for: rounded down to what Ray counts in, so that all that share a GPU find room."""
        gpu = {"GPU": math.floor(RAYS_UNIT / self.trials_each) / RAYS_UNIT}
        return {"CPU": self.cores_each} | (gpu if self.kind == "cuda" else {})

    @property
    def trial_bytes(self) -> int | None:
        """Memory of a GPU that a trial may take."""
        if self.memory_bytes is None or self.trials_each == 1:
            return self.memory_bytes
        return max(0, self.memory_bytes // self.trials_each - BESIDE_BYTES)

    def shared(self, settings: Settings, needed: float) -> "Devices":
        """As many trials on each as the settings ask for; `needed` bytes, of the largest default trial, count for auto.

        UserError: more than there are cores for.
        """
        wanted, cores = settings.trials_per_gpu, max(1, self.cores // self.count)
        if self.memory_bytes is None:
            return self
        if not isinstance(wanted, int):
            held = int(self.memory_bytes / (needed + BESIDE_BYTES))
            return replace(self, trials_each=max(1, min(cores, held)) if MPS.exists() else 1)
        if wanted > cores and not settings.oversubscribe:
            rule = f"is more than the {cores} CPU cores that there are for each GPU, and a trial wants one"
            raise invalid("trials_per_gpu", f"'{wanted}' {rule}: write at most {cores}, or add --oversubscribe")
        return replace(self, trials_each=wanted)


def find_devices(settings: Settings) -> Devices:
    """GPUs where there are any, else CPU cores. UserError: more asked for than there are."""
    cores, gpus = core_count(), torch.cuda.device_count()
    kind, there = ("cuda", gpus) if gpus else ("cpu", cores)
    return Devices(
        kind=kind, count=settings.slots(there), cores=cores, cores_each=cores_of_trial(settings, kind, there),
        **about(kind),
    )  # fmt: skip


def about(kind: str) -> dict[str, Any]:
    """What this machine says of its devices, as Devices has it: model, processor, precisions, memory_bytes."""
    if kind == "cpu":
        model, processor, memory_bytes = f"CPU core ({platform.machine()})", cpu_name(), None
    else:
        gpu = torch.cuda.get_device_properties(0)
        model, processor, memory_bytes = gpu.name, gpu.name, int(gpu.total_memory)
    return {"model": model, "processor": processor, "precisions": native(kind), "memory_bytes": memory_bytes}


def cores_of_trial(settings: Settings, kind: str, available: int) -> int:
    """CPU cores that each trial has, of so many devices of a kind. UserError: there are not so many, or they are GPUs;
    or several trials are asked for on each GPU where there is none."""
    wanted = settings.cores_per_trial
    if kind == "cuda":
        if wanted > 1:
            rule = "asks for CPU cores, and trials run on GPUs here"
            raise invalid("cores_per_trial", f"'{wanted}' {rule}: leave it out")
        return 1
    if wanted > (count := settings.slots(available)):
        raise invalid("cores_per_trial", f"'{wanted}' is more than there are to use: write at most {count}")
    if settings.trials_per_gpu not in (1, AUTO):
        rule = "asks for several trials on each GPU, and there is no GPU here"
        raise invalid("trials_per_gpu", f"'{settings.trials_per_gpu}' {rule}: leave it out; a CPU core runs one trial")
    return wanted
