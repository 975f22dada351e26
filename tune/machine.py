"""This machine as a process has it: the processor's name, CPU cores, facts of processes, files and folders written
whole, and a folder of this user alone for as long as the process lives; standard library only.

Other users may know that folder's name, but not enter it. A lock that ends with its process says that it is in use, so
one that a SIGKILL left behind is recognized without a look at processes, which another container may hide.
"""

import errno
import fcntl
import gc
import os
import platform
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tune.errors import UserError, is_disk_error

PREFIX = "ration-ray-"
LOCK = "lock"
PROBED_BYTES = 2**20
"""Bytes that a disk takes which is not full."""
UNFINISHED = ".unfinished-"
"""Beginning of the name of what is yet to be whole."""
REPLACED = f"{UNFINISHED}replaced-"
"""Beginning of the name of what is being replaced."""
LONGEST = 107 - len("/12345678/ray/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store") - len(PREFIX)
"""Most bytes of the path of a folder in which Ray can make its sockets: Linux allows 107 for a socket's path."""

PROC, CGROUP = Path("/proc"), Path("/sys/fs/cgroup")
TICKS = os.sysconf("SC_CLK_TCK")
READY = "RATION_READY"
"""Environment variable with a folder in which a worker leaves a file once it has imported what trials need."""


def cpu_name(proc: Path = PROC) -> str:
    """Return the processor's model; on ARM, where the system does not tell it, the architecture with the numbers of
    maker and part, of each kind of core; else the architecture."""
    try:
        lines = [line.partition(":") for line in (proc / "cpuinfo").read_text(errors="replace").splitlines()]
    except OSError:
        return platform.machine()
    told = [(name.strip(), value.strip()) for name, _, value in lines]
    numbers = dict.fromkeys(value for name, value in told if name in ("CPU implementer", "CPU part"))
    return next((value for name, value in told if name == "model name"), " ".join([platform.machine(), *numbers]))


def core_count(cgroup: Path = CGROUP) -> int:
    """Return the CPU cores that this process may use; in a container no more than its CPU quota, but at least 1."""
    there = len(os.sched_getaffinity(0))
    with suppress(OSError, ValueError):  # a quota may be `max`
        quota, period = map(int, (cgroup / "cpu.max").read_text().split())
        return max(1, min(there, quota // period))
    with suppress(OSError):  # cgroups of version 1
        quota, period = (int((cgroup / "cpu" / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
        return max(1, min(there, quota // period)) if quota > 0 else there
    return there


def stat_of(process: int | str, proc: Path = PROC) -> list[str]:
    """Return the fields of a process's stat file from its state on, see proc(5); none where there is no process."""
    try:
        return (proc / str(process) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def core_seconds(proc: Path = PROC) -> tuple[float, float] | None:
    """Return the seconds of all cores since the boot, see proc(5): those in which they were busy, stolen time included,
    and all; in steps of hundredths. None: the system does not tell."""
    try:
        user, nice, system, idle, waiting, *rest = map(int, (proc / "stat").read_text().split()[1:9])
    except (OSError, ValueError):
        return None
    busy = user + nice + system + sum(rest)
    return busy / TICKS, (busy + idle + waiting) / TICKS


def descendants(pid: int, proc: Path = PROC) -> list[int]:
    """Return the processes that one started, directly or through others, as far as all between them are alive."""
    begun: dict[int, list[int]] = {}
    for path in proc.glob("[0-9]*"):
        if fields := stat_of(path.name, proc):
            begun.setdefault(int(fields[1]), []).append(int(path.name))
    found = [pid]
    for each in found:  # grows meanwhile; pop() ends it even if parents form a loop
        found += begun.pop(each, [])
    return found[1:]


def write_whole(path: Path, text: str) -> None:
    """Write a file as UTF-8, whole or not at all, in place of what is there. One process at a time may write it."""
    new = path.with_name(f".{path.name}.new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def write_folder_whole(path: Path, fill: Callable[[Path], object]) -> Path:
    """Let `fill` write a folder under a temporary name, sync it and give it its name, in place of what is there. One
    process at a time may do so in the folder above. OSError: the disk takes no more, also where `fill` raises another
    error for that."""
    path.parent.mkdir(parents=True, exist_ok=True)
    restore_replaced(path.parent)
    for leftover in path.parent.glob(f"{UNFINISHED}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    place = path.with_name(UNFINISHED + path.name)
    place.mkdir()
    try:
        fill(place)
        sync_folder(place)
    except BaseException as error:
        try:
            if isinstance(error, Exception) and not is_disk_error(error):
                ask_disk(path.parent)
        finally:
            shutil.rmtree(place, ignore_errors=True)
        raise
    replaced = path.with_name(REPLACED + path.name)
    if path.exists():
        path.rename(replaced)
    try:
        place.rename(path)
    except OSError:
        restore_replaced(path.parent)
        raise
    sync(path.parent)
    shutil.rmtree(replaced, ignore_errors=True)
    return path


def restore_replaced(folder: Path) -> None:
    """Give folders in this one their names back that were to be replaced, where a kill came before what replaces them.
    No other process may write there meanwhile."""
    for replaced in folder.glob(f"{REPLACED}*"):
        path = folder / replaced.name.removeprefix(REPLACED)
        if not path.exists():
            replaced.rename(path)


def ask_disk(folder: Path) -> None:
    """Write PROBED_BYTES in a folder, and remove them. OSError: its disk takes no more, whatever a library says of what
    it could not write there."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(PROBED_BYTES))
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Have the disk keep a folder with all that is in it. OSError: it does not."""
    for each in [*(path for path in folder.rglob("*") if not path.is_symlink()), folder]:
        sync(each)


def sync(path: Path) -> None:
    """Have the disk keep a file, or the names in a folder, as they are now. Some network disks cannot be asked to keep
    a folder, which is no error. OSError: it does not."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL or not path.is_dir():
            raise
    finally:
        os.close(descriptor)


def can_print() -> bool:
    """Whether the disk takes more of what this process prints."""
    try:
        print(flush=True)
    except OSError:
        return False
    return True


@contextmanager
def excluded_from_gc() -> Iterator[None]:
    """Exempt what is imported inside from garbage collection: meanwhile, where it takes a quarter of the time, and for
    good."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.freeze()
            gc.enable()


@contextmanager
def private_folder(root: Path | None = None, prefix: str = PREFIX) -> Iterator[Path]:
    """Yield a new folder in `root` (None: where temporary files go), removed afterwards; folders of that prefix left
    behind there by killed processes of this user are removed."""
    remove_stale_folders(root := root or usable_temp_root(), prefix)
    folder, lock = make_locked_folder(root, prefix)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def temp_root() -> Path:
    """Return the folder for temporary files, or /tmp where its path is too long for sockets."""
    wanted = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
    return Path(wanted if len(os.fsencode(wanted)) <= LONGEST else "/tmp")


def usable_temp_root() -> Path:
    """Return what `temp_root` does. UserError: no file can be made there, or none can be locked."""
    root = Path()  # where no folder takes temporary files, temp_root finds none
    try:
        root = temp_root()
        with tempfile.TemporaryFile(dir=root) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
    except OSError as error:
        remedy = f"name a folder of at most {LONGEST} bytes that takes files and locks"
        raise UserError(f"RAY_TMPDIR: '{root}' cannot be used ({error.strerror}): {remedy}") from None
    return root


def make_locked_folder(root: Path, prefix: str) -> tuple[Path, int]:
    """Make a new folder; return it and the descriptor of its lock. It tries again where another process sweeps the
    folder away before it is locked."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=root))
        with suppress(FileNotFoundError):
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if os.fstat(lock).st_nlink:
                return folder, lock
            os.close(lock)


def remove_stale_folders(root: Path, prefix: str) -> None:
    """Remove folders that are provably this user's and of a process that is gone: closed to others, lock free."""
    for folder in root.glob(f"{prefix}*"):
        with suppress(OSError):
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
                continue
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
