"""This machine to a process: its processor's name, what is told of processes, files written whole, and a folder of this
user's alone for as long as the process lives; standard library only.

Others may name what lies in that folder, but not enter it. It is known to be in use by a lock that ends with its
process, so one that a SIGKILL left behind is told from one in use without a look at processes, which another container
may hide.
"""

import fcntl
import gc
import os
import platform
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tune.errors import UserError

PREFIX = "ration-ray-"
LOCK = "lock"
LONGEST = 107 - len("/12345678/ray/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store") - len(PREFIX)
"""Bytes of a path in which Ray may put its sockets: Linux takes 107 for a socket's name."""


PROC, CGROUP = Path("/proc"), Path("/sys/fs/cgroup")
READY = "RATION_READY"
"""The environment's name for a folder: a worker that has imported what trials need leaves a file there."""


def cpu_name() -> str:
    """The processor's model, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def core_count(cgroup: Path = CGROUP) -> int:
    """CPU cores that this process may use; in a container no more than it is given the time of, but one."""
    there = len(os.sched_getaffinity(0))
    with suppress(OSError, ValueError):  # a quota may be `max`
        quota, period = map(int, (cgroup / "cpu.max").read_text().split())
        return max(1, min(there, quota // period))
    with suppress(OSError):  # as Linux had it before
        quota, period = (int((cgroup / "cpu" / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
        return max(1, min(there, quota // period)) if quota > 0 else there
    return there


def stat_of(process: int | str, proc: Path = PROC) -> list[str]:
    """What the system tells of a process, from its state on, see proc(5); nothing where there is none."""
    try:
        return (proc / str(process) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def descendants(pid: int, proc: Path = PROC) -> list[int]:
    """The processes that one began, and these, as far as all between them live."""
    begun: dict[int, list[int]] = {}
    for path in proc.glob("[0-9]*"):
        if fields := stat_of(path.name, proc):
            begun.setdefault(int(fields[1]), []).append(int(path.name))
    found = [pid]
    for each in found:  # which grows meanwhile; each has its own once, whatever the system tells of parents
        found += begun.pop(each, [])
    return found[1:]


def write_whole(path: Path, text: str) -> None:
    """As UTF-8, whole or not at all, in place of what is there. One process at a time writes a file."""
    new = path.with_name(f".{path.name}.new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


@contextmanager
def kept_for_good() -> Iterator[None]:
    """What is imported inside is not looked through for garbage, neither meanwhile, of which a quarter of the time
    goes there, nor ever after."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.freeze()
            gc.enable()


@contextmanager
def private_folder() -> Iterator[Path]:
    """A new one, gone afterwards; those that processes of this user left behind when they were killed go too."""
    sweep(root := usable_place())
    folder, lock = made(root)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def place() -> Path:
    """Where temporary files go, or /tmp where that is too long a name for sockets."""
    wanted = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
    return Path(wanted if len(os.fsencode(wanted)) <= LONGEST else "/tmp")


def usable_place() -> Path:
    """The same. UserError: nothing can be made there."""
    try:
        tempfile.TemporaryFile(dir=(root := place())).close()
    except OSError as error:
        name = "RAY_TMPDIR" if os.environ.get("RAY_TMPDIR") else "TMPDIR"
        what = f"'{os.environ.get(name, '')}' takes no files ({error.strerror})"
        raise UserError(f"{name}: {what}: name a folder that does, or leave it out") from None
    return root


def made(root: Path) -> tuple[Path, int]:
    """A new folder, and its lock. Another process may sweep it away in the moment before it is locked."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=root))
        with suppress(FileNotFoundError):
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if os.fstat(lock).st_nlink:
                return folder, lock
            os.close(lock)


def sweep(root: Path) -> None:
    """Remove what is provably of this user and of a process that is gone: closed to others, and its lock is free."""
    for folder in root.glob(f"{PREFIX}*"):
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
