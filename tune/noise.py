"""Keep the noise apart: while a study runs, what is printed goes to its log, and only its own lines to the screen."""

import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    """Send this process's output, of C libraries too, and its log and warnings to the file at `path`.

    Yields what writes a line to the real screen, and to the log.
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
            with warnings.catch_warnings():
                yield Voice(screen, file)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for descriptor, copy in zip((1, 2), kept, strict=True):
                os.dup2(copy, descriptor)
                os.close(copy)
            logging.captureWarnings(False)
            logging.getLogger().removeHandler(handler)
