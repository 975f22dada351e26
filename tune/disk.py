"""A disk that does not take what is written to it: told from faults of ours, and named in one line."""

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from tune.errors import UserError

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
        raise UserError(sentence(error, to_go_on)) from error


def sentence(error: BaseException, to_go_on: str) -> str:
    """What is wrong with the disk, and what becomes of the study: one line."""
    what = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else f"journal.db: {error}"
    one_line = " ".join(what.split())
    return f"--out: {one_line}: what was told is kept; mend that, then go on with {to_go_on}"
