"""Memory of a process that trains: what its trial took, a limit on it, and how running out is told from other errors;
and its threads.
"""

import contextlib
import ctypes
import errno
import gc
import importlib
import math
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

_CLEAR_REFS = Path("/proc/self/clear_refs")
GPU_BYTES = 200_000_000
"""Of a GPU, that a process keeps from its first trial on: workspaces of products, on two streams. Seen on an H200."""


def prepare_process(threads: int) -> None:
    """Give torch `threads` threads."""
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)


class PeakMemory:
    """The most memory held since it was made or begun again, above what the process held when it was made: bytes.

    Of a GPU what torch keeps from others: what lies in a graph's pool is no tensor's while the graph waits.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self.again()
        self.before = _kept_on_gpu(device) if device.type == "cuda" else status_bytes("VmRSS")

    def again(self) -> None:
        """Forget the peak so far."""
        give_back_freed()
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            return
        with contextlib.suppress(OSError):
            _CLEAR_REFS.write_text("5")  # resets VmHWM, see proc(5)

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """What the process comes to hold inside, such as a library, is its own."""
        held = status_bytes("VmRSS")
        yield
        if self.device.type == "cpu":
            self.before += max(0, status_bytes("VmRSS") - held)

    def bytes(self) -> int:
        if self.device.type == "cuda":
            return max(0, torch.cuda.max_memory_reserved(self.device) - self.before)
        return max(0, status_bytes("VmHWM") - self.before)


_STATUS = Path("/proc/self/status")
_SYSTEM = Path("/proc/meminfo")
_SAID = (
    "can't allocate memory",
    "not enough memory",
    "cannot allocate memory",
    "std::bad_alloc",
    "out of memory",
    "alloc_failed",
    "could not create a memory object",
)  # by torch's allocators, the C++ library, the system, CUDA, cuBLAS and oneDNN
_SAID_UNDER_A_LIMIT = ("could not create a primitive", "could not execute a primitive")  # by oneDNN, of much else too


def ran_out(error: BaseException | None) -> bool:
    """Whether an error, or one that caused it, says that memory ran out: here alone that is decided."""
    while error is not None:
        if isinstance(error, MemoryError | torch.OutOfMemoryError):
            return True
        if isinstance(error, OSError) and error.errno == errno.ENOMEM:
            return True
        said = _SAID + (_SAID_UNDER_A_LIMIT if limited() else ())
        if isinstance(error, RuntimeError) and any(words in str(error).lower() for words in said):
            return True
        error = error.__cause__
    return False


def limited() -> bool:
    """Whether this process may not take all the memory that there is."""
    return resource.getrlimit(resource.RLIMIT_DATA)[0] != resource.RLIM_INFINITY


class MemoryLimit:
    """Holds each trial of this process to `limit` bytes above what the process holds at its begin; None: no limit.

    On a CPU by RLIMIT_DATA, which makes the allocation that goes beyond it fail: it counts what is mapped, whether or
    not it is in use. So the process is a `limited` one from now on, and keeps nothing of what it frees. On a GPU by
    torch.
    """

    def __init__(self, limit: int | None, device: torch.device):
        self._limit, self._device = limit, device
        self._before = 0
        if limit is not None and device.type == "cpu":
            self._set(sys.maxsize)

    def begin(self) -> None:
        """The next trial begins."""
        if self._limit is None:
            return
        give_back_freed()  # what the last trial had is no part of what is held now
        if self._device.type == "cuda":
            total = torch.cuda.get_device_properties(self._device).total_memory
            most = self._limit + _kept_on_gpu(self._device)
            torch.cuda.set_per_process_memory_fraction(min(1.0, most / total), self._device)
            return
        importlib.import_module("torch._inductor.config")  # else the trial itself loads that, where it is compiled
        self._before = status_bytes("VmData")
        self._set(self._before + self._limit)

    def counted(self) -> int:
        """Bytes of this trial that count, where that is not what it is seen to take."""
        limited = self._limit is not None and self._device.type == "cpu"
        return max(0, status_bytes("VmData") - self._before) if limited else 0

    def lift(self) -> None:
        """The trial ran out: what is left to say is said without a limit."""
        if self._limit is not None and self._device.type == "cpu":
            self._set(resource.RLIM_INFINITY)

    def _set(self, wanted: int) -> None:
        hardest = resource.getrlimit(resource.RLIMIT_DATA)[1]
        possible = [value for value in (wanted, hardest) if value != resource.RLIM_INFINITY and value <= sys.maxsize]
        resource.setrlimit(resource.RLIMIT_DATA, (min(possible, default=resource.RLIM_INFINITY), hardest))


def _kept_on_gpu(device: torch.device) -> int:
    """Bytes that this process has of a GPU without a trial, now or once it has had one."""
    return max(torch.cuda.memory_reserved(device), GPU_BYTES)


def give_back_freed() -> None:
    """Give the system what this process freed but kept, and a GPU what other processes may need."""
    gc.collect()
    torch.cuda.empty_cache()  # nothing where this process has used none
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
    if trim is not None:
        trim(0)


def available_bytes(device: torch.device) -> float:
    """That can still be taken of a device's memory; infinite where the system does not tell."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return _field(_SYSTEM, "MemAvailable") or math.inf


def machine_bytes() -> int | None:
    """All the memory of this machine; None where the system does not tell."""
    return _field(_SYSTEM, "MemTotal") or None


def status_bytes(field: str) -> int:
    """A field of this process's status, see proc(5); 0 where the system keeps none."""
    return _field(_STATUS, field)


def _field(file: Path, field: str) -> int:
    """Bytes; the file has kilobytes."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), 0)
