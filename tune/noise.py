"""Keep the noise apart: while a study runs, what is printed goes to its log, and only its own lines to the screen."""

import logging
import os
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import TextIO


class Voice:
    """Writes a line to the real screen, and to the log; `show` may be replaced by another way to the screen."""

    def __init__(self, screen: TextIO, log: TextIO) -> None:
        self.screen, self._log = screen, log
        self.show: Callable[[str], None] = self.plain

    def __call__(self, line: str) -> None:
        self.show(line)
        self._log.write(line + "\n")

    def plain(self, line: str) -> None:
        """To the screen as it is."""
        self.screen.write(line + "\n")


@contextmanager
def screen_apart(path: Path) -> Iterator[Voice]:
    """Send this process's output, of C libraries and in a notebook too, and its log and warnings to the file at `path`.

    Yields what writes a line to the real screen, and to the log; which has the traceback too where an error ends it.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(1), os.dup(2)]
    with path.open("a", encoding="utf-8", buffering=1) as file, os.fdopen(os.dup(1), "w", buffering=1) as screen:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        handler = logging.StreamHandler(file)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logging.getLogger().addHandler(handler)
        logging.captureWarnings(True)

        try:
            with warnings.catch_warnings(), redirect_stdout(file), redirect_stderr(file):
                yield Voice(screen, file)
        except BaseException:
            with suppress(OSError):
                traceback.print_exc(file=file)
            raise
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for descriptor, copy in zip((1, 2), kept, strict=True):
                os.dup2(copy, descriptor)
                os.close(copy)
            logging.captureWarnings(False)
            logging.getLogger().removeHandler(handler)


@contextmanager
def last_word(line: str) -> Iterator[None]:
    """Say this on stderr where this process ends inside without a word: by SIGKILL, or as Ray ends it from C++ code.

    A shell that lives on says it, when the pipe to it closes before it was told that all is well.
    """
    words = ["/bin/sh", "-c", 'read -r over || printf "%s\\n" "$0" >&2', line]
    with subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True) as waits:
        try:
            yield
        finally:
            waits.communicate(b"over\n")
