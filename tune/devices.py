"""What trials run on: GPUs where there are any, else CPU cores."""

import os
import platform
from dataclasses import dataclass

import torch

from model.precision import native
from tune.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Devices:
    """What trials run on: kind "cuda" or "cpu", how many slots, a name for the records, bytes of memory of a GPU.

    precisions: what all of them do natively.
    """

    kind: str
    slots: int
    name: str
    precisions: tuple[str, ...]
    memory_bytes: int | None = None

    @property
    def gpus(self) -> int:
        """GPUs that Ray manages."""
        return self.slots if self.kind == "cuda" else 0


def find_devices(settings: Settings) -> Devices:
    """GPUs where there are any, else one CPU core a slot. ValueError: more asked for than there are."""
    if count := torch.cuda.device_count():
        about = torch.cuda.get_device_properties(0)
        return Devices(
            kind="cuda", slots=settings.slots(count), name=about.name, precisions=native("cuda"),
            memory_bytes=int(about.total_memory),
        )  # fmt: skip
    return Devices(
        kind="cpu", slots=settings.slots(len(os.sched_getaffinity(0))), name=f"CPU core ({platform.machine()})",
        precisions=native("cpu"),
    )  # fmt: skip
