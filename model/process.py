"""What a process that trains needs once: its threads, and how much memory its trial took."""

import contextlib
import ctypes
import gc
from pathlib import Path

import torch

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")


def prepare_process(threads: int) -> None:
    """Give torch `threads` threads, and keep torch.compile from starting processes of its own."""
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    torch._inductor.config.compile_threads = 1


class PeakMemory:
    """The most memory held since it was made, above what the process held then: bytes."""

    def __init__(self, device: torch.device):
        self.device = device
        gc.collect()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            return
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)    # glibc only
        if trim is not None:
            trim(0)
        with contextlib.suppress(OSError):
            _CLEAR_REFS.write_text("5")    # resets VmHWM, see proc(5)
        self.before = _status_bytes("VmRSS")

    def bytes(self) -> int:
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        return max(0, _status_bytes("VmHWM") - self.before)


def _status_bytes(field: str) -> int:
    """A field of this process's status; 0 where the system keeps none."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), 0)
