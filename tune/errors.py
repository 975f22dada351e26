"""What a user can put right, told from faults of ours; an error of their code in one line; what they type to call us.
Standard library only, anyone may import it.
"""

import errno
import importlib.util
import re
import shlex
import sqlite3
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FRAME = re.compile(r'File "([^<"][^"]*)", line (\d+)(?:, in ([^\n]+))?')
LONGEST = 140
SCRIPTS = ("tune", "analysis", "kernels", "model")
INSTALLED = "ration"
COMMANDS = {
    "run": "tune/run.py",
    "plan": "tune/run.py",
    "rank": "analysis/rank.py",
    "report": "analysis/report.py",
    "experiment": "tune/experiment.py",
    "replay": "tune/replay.py",
    "kernels": "kernels/run.py",
}
"""What the installed command calls our scripts."""


class UserError(ValueError):
    """One line that names field, value, rule and remedy. Entries print it and exit with 2; any other error keeps its
    traceback.
    """


def told(trace: str) -> tuple[str | None, str] | None:
    """Of a traceback, as text, the error in one line, such as `ValueError: its text (mine.py:12)`; before it the
    function of a user's, such as `loss`, that we had called.

    Where no line of the user's is in it there is no function, and no place; of what is no traceback there is nothing.
    """
    frames = list(FRAME.finditer(trace))
    if not frames:
        return None
    said = next((line for line in trace[frames[-1].end() :].splitlines() if line and not line[0].isspace()), "an error")
    kind, colon, text = said.partition(":")
    said = f"{kind.rpartition('.')[2]}{colon}{text}"[:LONGEST]
    theirs = [frame.groups() for frame in frames if is_a_users(Path(frame[1]))]
    if not theirs:
        return None, said
    return theirs[0][2], f"{said} ({Path(theirs[-1][0]).name}:{theirs[-1][1]})"


def told_of(error: BaseException) -> str:
    """An error that was caught, in such a line."""
    found = told("".join(traceback.format_exception(error)))
    return found[1] if found else type(error).__name__


def is_a_users(file: Path) -> bool:
    """Neither installed nor ours, on whatever node of a cluster it lies."""
    if {"site-packages", "dist-packages"} & set(file.parts) or file.is_relative_to(sysconfig.get_path("stdlib")):
        return False
    ours = (file.parts[place:] for place, part in enumerate(file.parts) if part in ("tune", "model"))
    return not any(ROOT.joinpath(*parts).is_file() for parts in ours)


def check_not_hidden(package: str) -> None:
    """UserError: what a user has on the path is found in the place of a package of ours."""
    spec = importlib.util.find_spec(package)
    origin = Path(spec.origin) if spec is not None and spec.origin else None
    if origin is not None and origin != ROOT / package / "__init__.py":
        remedy = "run from another folder, or name your loop as FILE:function to the command"
        raise UserError(f"{package}: {str(origin)!r} hides the `{package}` that is Ration's: {remedy}")


def called(script: str) -> str:
    """How this user calls a script of ours: `python tune/run.py`, or `ration run` where that is what is installed; from
    another folder by the path that was typed there."""
    if sys.argv[0] != INSTALLED:
        folder = _folder_typed()
        return f"python {shlex.quote(folder) if folder else ''}{script}"
    module = script.removesuffix(".py").replace("/", ".")
    return next((f"{INSTALLED} {name}" for name, each in COMMANDS.items() if each == script), f"python -m {module}")


def _folder_typed() -> str:
    """What was typed before the name of a script of ours, such as `../ration/`; nothing from our own folder, or where
    it was another's script."""
    typed = Path(sys.argv[0])
    with suppress(OSError, ValueError):
        own = typed.resolve().relative_to(ROOT)
        if own.parts[0] in SCRIPTS and not Path.cwd().samefile(ROOT) and sys.argv[0].endswith(f"/{own}"):
            return sys.argv[0].removesuffix(str(own))
    return ""


REFUSALS = {
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO
}  # fmt: skip


def refused(error: BaseException) -> bool:
    """Whether it tells of a disk that is full, read-only, not ours to write on, or broken."""
    return isinstance(error, sqlite3.Error) or (isinstance(error, OSError) and error.errno in REFUSALS)


@contextmanager
def told_in_one_line(to_go_on: str) -> Iterator[None]:
    """UserError where a disk refuses what is written inside; with it what to type to go on."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        if not refused(error):
            raise
        told = [error.filename, error.strerror] if isinstance(error, OSError) else ["journal.db", error]
        what = " ".join(": ".join(str(each) for each in told if each is not None).split())
        raise UserError(f"--out: {what}: what was told is kept; mend that, then go on with {to_go_on}") from error
