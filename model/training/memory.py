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
"""Bytes of a GPU that a process keeps from its first trial on, as workspaces of matrix products on two streams. Seen on
an H200."""


class PeakMemory:
    """The peak of memory in bytes since it was made or `reset`, above what the process held when it was made.

    On a GPU what torch has reserved: memory in a CUDA graph's pool belongs to no tensor between replays.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self.reset()
        self.before = _kept_on_gpu(device) if device.type == "cuda" else status_bytes("VmRSS")

    def reset(self) -> None:
        """Forget the peak so far."""
        give_back_freed()
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            return
        with contextlib.suppress(OSError):
            _CLEAR_REFS.write_text("5")  # resets VmHWM, see proc(5)

    @contextlib.contextmanager
    def excluding(self) -> Iterator[None]:
        """Count memory taken inside, such as for a library, as the process's own and not as the trial's."""
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
)  # messages of torch's allocators, the C++ library, the system, CUDA, cuBLAS and oneDNN
_SAID_UNDER_A_LIMIT = ("could not create a primitive", "could not execute a primitive")  # oneDNN's, for much else too


def ran_out(error: BaseException | None) -> bool:
    """Whether an error, or one that caused it, says that memory ran out. Only here this is decided."""
    while error is not None:
        if isinstance(error, MemoryError | torch.OutOfMemoryError):
            return True
        if isinstance(error, OSError) and error.errno == errno.ENOMEM:
            return True
        phrases = _SAID + (_SAID_UNDER_A_LIMIT if is_memory_limited() else ())
        if isinstance(error, RuntimeError) and any(words in str(error).lower() for words in phrases):
            return True
        error = error.__cause__
    return False


def is_memory_limited() -> bool:
    """Whether this process is under a limit of memory (RLIMIT_DATA)."""
    return resource.getrlimit(resource.RLIMIT_DATA)[0] != resource.RLIM_INFINITY


class MemoryLimit:
    """Limits each trial of this process to `limit` bytes above what the process holds when it begins; None: no limit.

    On a CPU by RLIMIT_DATA, beyond which allocations fail: it counts what is mapped, whether or not it is in use. So
    the process is `is_memory_limited` from now on, and does not keep what it frees. On a GPU by torch's limit for a
    process.
    """

    def __init__(self, limit: int | None, device: torch.device):
        self._limit, self._device = limit, device
        self._before = 0
        if limit is not None and device.type == "cpu":
            self._set(sys.maxsize)

    def begin(self) -> None:
        """Set the limit for the next trial."""
        if self._limit is None:
            return
        give_back_freed()  # the last trial's memory must not count as held
        if self._device.type == "cuda":
            total = torch.cuda.get_device_properties(self._device).total_memory
            most = self._limit + _kept_on_gpu(self._device)
            torch.cuda.set_per_process_memory_fraction(min(1.0, most / total))  # refuses a device without index
            return
        importlib.import_module("torch._inductor.config")  # else a trial that is compiled imports it, and pays for it
        self._before = status_bytes("VmData")
        self._set(self._before + self._limit)

    def counted_bytes(self) -> int:
        """Return the bytes of this trial that count towards RLIMIT_DATA; 0 where no such limit is set."""
        limited = self._limit is not None and self._device.type == "cpu"
        return max(0, status_bytes("VmData") - self._before) if limited else 0

    def lift(self) -> None:
        """Lift the limit once a trial is over or ran out of memory, so that its report is not under it."""
        if self._limit is not None and self._device.type == "cpu":
            self._set(resource.RLIM_INFINITY)

    def _set(self, wanted: int) -> None:
        hardest = resource.getrlimit(resource.RLIMIT_DATA)[1]
        possible = [value for value in (wanted, hardest) if value != resource.RLIM_INFINITY and value <= sys.maxsize]
        resource.setrlimit(resource.RLIMIT_DATA, (min(possible, default=resource.RLIM_INFINITY), hardest))


def _kept_on_gpu(device: torch.device) -> int:
    """Return the bytes of a GPU that this process has beside its trials, now or once it has had one."""
    return max(torch.cuda.memory_reserved(device), GPU_BYTES)


def give_back_freed() -> None:
    """Give memory that this process freed but kept back to the system, and on a GPU to other processes."""
    gc.collect()
    torch.cuda.empty_cache()  # without effect where this process has used no GPU
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
    if trim is not None:
        trim(0)


def available_bytes(device: torch.device) -> float:
    """Return how many bytes of a device's memory are available; infinite where the system does not tell."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return _field(_SYSTEM, "MemAvailable") or math.inf


def machine_bytes() -> int | None:
    """Return the bytes of this machine's memory; None where the system does not tell."""
    return _field(_SYSTEM, "MemTotal") or None


def status_bytes(field: str) -> int:
    """Return a field of this process's status in bytes, see proc(5); 0 where the system keeps none."""
    return _field(_STATUS, field)


def _field(file: Path, field: str) -> int:
    """Return a field of a file in bytes, which has it in kilobytes; 0 where it is not there."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), 0)
