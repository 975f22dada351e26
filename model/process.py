"""What a process that trains needs once: its threads, and how much memory its trial took."""

import contextlib
from pathlib import Path

import torch

from model.memory import give_back_freed, status_bytes

_CLEAR_REFS = Path("/proc/self/clear_refs")


def prepare_process(threads: int) -> None:
    """Give torch `threads` threads, and keep torch.compile from starting processes of its own."""
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    torch._inductor.config.compile_threads = 1


class PeakMemory:
    """The most memory held since it was made or begun again, above what the process held when it was made: bytes."""

    def __init__(self, device: torch.device):
        self.device = device
        self.again()
        self.before = status_bytes("VmRSS")

    def again(self) -> None:
        """Forget the peak so far."""
        give_back_freed()
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            return
        with contextlib.suppress(OSError):
            _CLEAR_REFS.write_text("5")    # resets VmHWM, see proc(5)

    def bytes(self) -> int:
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        return max(0, status_bytes("VmHWM") - self.before)
