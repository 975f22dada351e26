"""The devices that trials run on: GPUs where there are any, each for one trial or several, else CPU cores."""

import math
import os
import platform
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from model.nn.precision import native_precisions
from model.training.memory import GPU_BYTES
from tune.errors import UserError
from tune.flags import AUTO, invalid
from tune.machine import core_count, cpu_name
from tune.settings import Settings

CONTEXT_BYTES = 600_000_000
"""GPU memory of a process beside its tensors, mostly the code of its kernels: 300 to 600 MB by GPU and driver."""
BESIDE_BYTES = CONTEXT_BYTES + GPU_BYTES
"""GPU memory of a trial's process beside the trial's own tensors."""
MPS = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"), "control")
"""Pipe that exists while the MPS daemon runs, which the machine's owner starts: nvidia-cuda-mps-control -d. Without MPS
processes take turns on a GPU: on an H100 2 to 16 of them, each with a small model's graph, took no more steps a second
than one; with it 4 took 2.0 times as many and 16 2.3 times."""
COMPILING = 8
"""Most processes that compile the kernels of a GPU's trial: on an H100 one took 25 s, and twelve 13 s."""
RAYS_UNIT = 10_000
"""Parts of a device that Ray counts in."""
CODE = re.compile(r"(sm|compute)_(\d+)")
"""What code torch has for GPUs: compiled, for those of the same generation from this one on; or PTX, for all later."""
OTHER_TORCH = "install a torch built for it, or hide it with CUDA_VISIBLE_DEVICES (empty: the search is on CPU cores)"


@dataclass(frozen=True, kw_only=True)
class Devices:
    """The devices of a search: kind "cuda" or "cpu", how many, and how many trials share each, or how many CPU cores
    each trial has.

    model: a device's name; processor: the same, or the CPU's model: prices learned from earlier studies hold for the
    same one; precisions: those that all devices do natively; memory_bytes: of a GPU; cores: CPU cores, on a cluster
    of GPUs as many for each as on the node with the fewest; mps: whether CUDA's MPS runs wherever they are.
    """

    kind: str
    count: int
    model: str
    precisions: tuple[str, ...]
    cores: int
    memory_bytes: int | None = None
    trials_each: int = 1
    cores_each: int = 1
    processor: str = ""
    mps: bool = False

    @property
    def slots(self) -> int:
        """Return how many trials run at once."""
        return self.slots_of(self.count)

    def slots_of(self, devices: int) -> int:
        """Return how many slots so many whole devices have."""
        return devices // self.cores_each * self.trials_each

    @property
    def share(self) -> float:
        """Return the device-seconds in a second of a slot."""
        return self.cores_each / self.trials_each

    @property
    def name(self) -> str:
        """Return a slot's name for the records, such as 1/2 of a GPU."""
        if self.cores_each > 1:
            return f"{self.cores_each} {self.model.replace('core', 'cores')}"
        return self.model if self.trials_each == 1 else f"1/{self.trials_each} of {self.model}"

    @property
    def threads(self) -> int:
        """Return the threads of a trial's process; on a GPU they compile its kernels."""
        return self.cores_each if self.kind == "cpu" else max(1, min(COMPILING, self.cores // self.slots))

    @property
    def gpus(self) -> int:
        """Return the number of GPUs that Ray manages."""
        return self.count if self.kind == "cuda" else 0

    @property
    def ray_resources(self) -> dict[str, float]:
        """Return what a trial asks Ray for, rounded down to RAYS_UNIT, so that all that share a GPU fit."""
        gpu = {"GPU": math.floor(RAYS_UNIT / self.trials_each) / RAYS_UNIT}
        return {"CPU": self.cores_each} | (gpu if self.kind == "cuda" else {})

    @property
    def trial_bytes(self) -> int | None:
        """Return the bytes of a GPU that a trial may take; None on a CPU."""
        if self.memory_bytes is None or self.trials_each == 1:
            return self.memory_bytes
        return max(0, self.memory_bytes // self.trials_each - BESIDE_BYTES)

    def with_sharing(self, settings: Settings, needed: float) -> "Devices":
        """Return the devices with as many trials on each GPU as the settings ask for; for auto as many as fit if each
        takes `needed` bytes, those of the largest default trial.

        UserError: more than there are cores for.
        """
        wanted, cores = settings.trials_per_gpu, max(1, self.cores // self.count)
        if self.memory_bytes is None:
            return self
        if not isinstance(wanted, int):
            held = int(self.memory_bytes / (needed + BESIDE_BYTES))
            return replace(self, trials_each=max(1, min(cores, held)) if self.mps else 1)
        if wanted > cores and not settings.oversubscribe:
            rule = f"is more than the {cores} CPU cores that there are for each GPU, and a trial wants one"
            raise invalid("trials_per_gpu", f"'{wanted}' {rule}: write at most {cores}, or add --oversubscribe")
        return replace(self, trials_each=wanted)


def find_devices(settings: Settings) -> Devices:
    """Return this machine's GPUs if there are any, else its CPU cores. UserError: more asked for than there are, or
    torch cannot use the GPUs."""
    cores, gpus = core_count(), usable_gpus()
    kind, there = ("cuda", gpus) if gpus else ("cpu", cores)
    count = settings.slots(there, kind)
    return Devices(
        kind=kind, count=count, cores=cores, cores_each=cores_of_trial(settings, kind, there),
        **device_properties(kind, min(count, there)),
    )  # fmt: skip


def usable_gpus() -> int:
    """Return how many GPUs torch sees. UserError: it cannot use them, as where the driver is too old."""
    if not torch.cuda.device_count():  # NVIDIA's library counts, whatever torch can use
        return 0
    try:
        torch.cuda.init()  # as reading properties does: no context is made
    except (RuntimeError, torch.cuda.DeferredCudaCallError) as error:
        why = str(error).partition("\n")[0]
        raise UserError(f"GPU: torch cannot use it ({why}): update the driver, or {OTHER_TORCH}") from None
    return torch.cuda.device_count()


def check_has_code(gpu: int) -> None:
    """UserError: torch has no code for a GPU."""
    codes = [(kind, int(number)) for kind, number in CODE.findall(" ".join(torch.cuda.get_arch_list()))]
    major, minor = torch.cuda.get_device_capability(gpu)
    if codes and not any(
        number <= 10 * major + minor and (number // 10 == major or kind == "compute") for kind, number in codes
    ):
        rule = f"torch {torch.__version__} has no code for its compute capability {major}.{minor}"
        raise UserError(f"GPU: {torch.cuda.get_device_name(gpu)!r}: {rule}: {OTHER_TORCH}")


def device_properties(kind: str, count: int | None = None) -> dict[str, Any]:
    """Return what this machine says of its first so many devices (None: all) as fields of Devices: model, processor,
    precisions, memory_bytes, mps. UserError: torch sees none, or cannot use one."""
    if kind == "cpu":
        told = {"model": f"CPU core ({platform.machine()})", "processor": cpu_name(), "memory_bytes": None}
        return told | {"precisions": native_precisions(kind), "mps": False}
    if not (gpus := range(usable_gpus() if count is None else count)):
        raise UserError(f"GPU: torch {torch.__version__} sees none: install a build of torch for it")
    properties = []
    for gpu in gpus:
        check_has_code(gpu)
        found = torch.cuda.get_device_properties(gpu)
        named = {"model": found.name, "processor": found.name, "memory_bytes": int(found.total_memory)}
        properties.append(named | {"precisions": native_precisions(f"cuda:{gpu}"), "mps": MPS.exists()})
    return in_common(properties)


def in_common(properties: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what holds of all devices of which device_properties() tells: all their names, the least memory, the
    precisions and the MPS that all have."""
    first, *others = properties
    made = dict(first)
    for each in others:
        for name in ("model", "processor"):
            made[name] = " or ".join(sorted({*made[name].split(" or "), *each[name].split(" or ")}))
        made["memory_bytes"] = made["memory_bytes"] and min(made["memory_bytes"], each["memory_bytes"])
        made["precisions"] = tuple(name for name in made["precisions"] if name in each["precisions"])
        made["mps"] = made["mps"] and each["mps"]
    return made


def cores_of_trial(settings: Settings, kind: str, available: int) -> int:
    """Return the CPU cores that each trial has, 1 on GPUs. UserError: more than are available, or several cores asked
    for on GPUs, or several trials on each GPU where there is none."""
    wanted = settings.cores_per_trial
    if kind == "cuda":
        if wanted > 1:
            rule = "asks for CPU cores, and trials run on GPUs here"
            raise invalid("cores_per_trial", f"'{wanted}' {rule}: leave it out")
        return 1
    if wanted > (count := settings.slots(available, kind)):
        raise invalid("cores_per_trial", f"'{wanted}' is more than there are to use: write at most {count}")
    if settings.trials_per_gpu not in (1, AUTO):
        rule = "asks for several trials on each GPU, and there is no GPU here"
        raise invalid("trials_per_gpu", f"'{settings.trials_per_gpu}' {rule}: leave it out; a CPU core runs one trial")
    return wanted
