"""Keep the noise apart: while a study runs, what is printed goes to its log, and only its own lines to the screen."""

import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def screen_apart(path: Path) -> Iterator[Callable[[str], None]]:
    """Send this process's output, of C libraries too, and its log and warnings to the file at `path`.

    Yields a function that writes a line to the real screen, and to the log.
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

        def write(line: str) -> None:
            screen.write(line + "\n")
            file.write(line + "\n")

        try:
            with warnings.catch_warnings():
                yield write
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for descriptor, copy in zip((1, 2), kept, strict=True):
                os.dup2(copy, descriptor)
                os.close(copy)
            logging.captureWarnings(False)
            logging.getLogger().removeHandler(handler)
