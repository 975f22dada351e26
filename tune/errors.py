"""Errors that a user can fix, apart from our own bugs; an error of their code in one line; how they call our scripts.
Standard library only: any module may import it.
"""

import errno
import importlib.util
import os
import re
import shlex
import sqlite3
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.machinery import PathFinder
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FRAME = re.compile(r'File "([^<"][^"]*)", line (\d+)(?:, in ([^\n]+))?')
LONGEST = 140
SCRIPTS = ("tune", "analysis", "kernels", "model")
INSTALLED = "ration"
COMMANDS = {
    "run": ("tune/run.py", "search for the best small Transformer that a fixed number of device-hours can buy"),
    "plan": ("tune/run.py", "what a search would do and cost; spends nothing"),
    "rank": ("analysis/rank.py", "rank what was found"),
    "report": ("analysis/report.py", "write one self-contained page of a study"),
    "experiment": ("tune/experiment.py", "repeat an experiment of the published reports, under a cap"),
    "replay": ("tune/replay.py", "the search engine, and baselines, on recorded curves"),
    "kernels": ("kernels/run.py", "measure the kernels"),
}
"""By its name under the installed command, the script of each, and what it does."""


class UserError(ValueError):
    """An error that the user can fix, in one line that names field, value, rule and remedy. Entries print it and exit
    with 2; any other error keeps its traceback.
    """


def parse_traceback(trace: str) -> tuple[str | None, str] | None:
    """Return from the text of a traceback the user's function that we called, such as `loss`, and the error in one
    line, such as `ValueError: its text (mine.py:12)`.

    Without a line of the user's code in it the function is None and the error has no place. None: it is no traceback.
    """
    frames = list(FRAME.finditer(trace))
    if not frames:
        return None
    message = next(
        (line for line in trace[frames[-1].end() :].splitlines() if line and not line[0].isspace()), "an error"
    )
    kind, colon, text = message.partition(":")
    message = f"{kind.rpartition('.')[2]}{colon}{text}"
    message = message if len(message) <= LONGEST else f"{message[: LONGEST - 1].rstrip()}…"
    theirs = [frame.groups() for frame in frames if is_user_code(Path(frame[1]))]
    if not theirs:
        return None, message
    return theirs[0][2], f"{message} ({Path(theirs[-1][0]).name}:{theirs[-1][1]})"


def error_text(error: BaseException) -> str:
    """Return a caught error as the line that `parse_traceback` makes."""
    found = parse_traceback("".join(traceback.format_exception(error)))
    return found[1] if found else type(error).__name__


def is_user_code(file: Path) -> bool:
    """Whether a file is neither installed nor ours, wherever our checkout is on a cluster's node. A folder of a user's
    that is here, such as `model/`, may have files of the same names as ours."""
    if {"site-packages", "dist-packages"} & set(file.parts) or file.is_relative_to(sysconfig.get_path("stdlib")):
        return False
    alike = [place for place, part in enumerate(file.parts) if part in ("tune", "model")]
    above = (Path(*file.parts[:place]) for place in alike if ROOT.joinpath(*file.parts[place:]).is_file())
    return all(os.path.isdir(each) and not os.path.isfile(each / "tune" / "store" / "journal.py") for each in above)


def check_not_hidden(package: str, first: str | None = None) -> None:
    """Check that a package of ours is the one that Python finds: here, or in a process that begins with the folder
    `first` on its path ("": a worker of Ray's, whose path is the working folder, PYTHONPATH and then ours). UserError:
    something on the user's path hides it; another copy of Ration, such as one that is installed, does not."""
    if first is None:
        spec = importlib.util.find_spec(package)
        remedy = "run from another folder, or name your loop as FILE:function to the command"
    else:
        spec, remedy = PathFinder.find_spec(package, [first]), "rename it, or work in another folder"
        if spec is None or spec.origin is None:
            others = [*os.environ.get("PYTHONPATH", "").split(os.pathsep), *(sys.path[1:] if first else ())]
            spec = PathFinder.find_spec(package, [*filter(None, others)])
            remedy = "take it off PYTHONPATH, or uninstall it"
    if spec is None or not spec.origin or Path(spec.origin).resolve() == ROOT / package / "__init__.py":
        return
    if package != "tune" or not (Path(spec.origin).parent / "store" / "journal.py").is_file():
        raise UserError(f"{package}: {spec.origin!r} hides the `{package}` that is Ration's: {remedy}")


def script_command(script: str) -> str:
    """Return how this user calls a script of ours: `python tune/run.py`, from another folder with the path that was
    typed, or the whole one; or `ration run` where it was called through the installed command."""
    if sys.argv[0] != INSTALLED:
        return f"python {shlex.quote(_folder_typed() + script)}"
    module = script.removesuffix(".py").replace("/", ".")
    return next((f"{INSTALLED} {name}" for name, each in COMMANDS.items() if each[0] == script), f"python -m {module}")


def _folder_typed() -> str:
    """Return what stands before the name of a script of ours: nothing in our own folder; the path that was typed, such
    as `../ration/`; where another script was called, or one of ours from its folder, the whole path."""
    with suppress(OSError, ValueError):
        if Path.cwd().samefile(ROOT):
            return ""
        own = Path(sys.argv[0]).resolve().relative_to(ROOT)
        if own.parts[0] in SCRIPTS and sys.argv[0].endswith(f"/{own}"):
            return sys.argv[0].removesuffix(str(own))
    return f"{ROOT}/"


DISK_ERRNOS = {
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE,
    getattr(errno, "EREMOTEIO", errno.EIO),  # only Linux has it
}  # fmt: skip
NETWORK_ERRNOS = {errno.ENOTCONN, errno.EHOSTDOWN, errno.ETIMEDOUT}
"""Those of a network disk that is gone, where they are of a file; else of a socket."""


def is_disk_error(error: BaseException) -> bool:
    """Whether an error means a disk that is full, read-only, not ours to write on, broken, or out of reach."""
    if isinstance(error, OSError):
        return error.errno in DISK_ERRNOS or (error.errno in NETWORK_ERRNOS and error.filename is not None)
    return isinstance(error, sqlite3.Error)


@contextmanager
def disk_error_as_user_error(to_go_on: str) -> Iterator[None]:
    """Turn the error of a disk that refuses what is written inside into a UserError. to_go_on: what to type next."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        if not is_disk_error(error):
            raise
        parts = [error.filename, error.strerror] if isinstance(error, OSError) else ["journal.db", error]
        what = " ".join(": ".join(str(each) for each in parts if each is not None).split())
        raise UserError(f"--out: {what}: what was told is kept; correct that, then go on with {to_go_on}") from error
