"""A real search as a process of its own, as a person starts it: watched, read, signalled, killed; a soak's bench."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.soak.observer import Observer
from tune.errors import ROOT

BUILTIN = ("--translation-corpus", "builtin", "--text-corpus", "builtin")  # every soak is alike, whatever the hub says
RUN = ROOT / "tune" / "run.py"
LONGEST_SECONDS = 900.0
"""No search of a soak takes longer; one that does has failed."""


class Search:
    """One run of a search, by a script and its own arguments.

    `lines` is what it printed so far; begun and ended are on the monotonic clock.
    """

    def __init__(self, observer: Observer, *flags: str | Path, script: Sequence[Path] = (RUN,)) -> None:
        self._changed = threading.Condition()
        self.lines: list[str] = []
        self.begun = time.monotonic()
        self.ended: float | None = None
        self._process = subprocess.Popen(
            [sys.executable, *map(str, (*script, *flags)), *(() if {"--resume", "--train"} & {*flags} else BUILTIN)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        self.driver = self._process.pid
        observer.watch(self.driver)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def printed(self) -> str:
        """All that it printed."""
        return "".join(self.lines)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self.lines.append(line)
                self._changed.notify_all()
        self._process.wait()
        with self._changed:
            self.ended = time.monotonic()
            self._changed.notify_all()

    def wait_for(self, text: str) -> bool:
        """Until it has printed `text`; False where it ended before."""
        with self._changed:
            self._changed.wait_for(lambda: self._printed(text) or self.ended is not None, LONGEST_SECONDS)
            return self._printed(text)

    def _printed(self, text: str) -> bool:
        return any(text in line for line in self.lines)

    def ends_within(self, seconds: float) -> bool:
        """Whether it ends by itself within so many seconds from now."""
        with self._changed:
            return self._changed.wait_for(lambda: self.ended is not None, max(0.0, seconds))

    def until(self, there: Callable[[], object], look_seconds: float = 0.1) -> bool:
        """Until something is there, for which is looked so often; False where it ended before."""
        while not (found := bool(there())) and not self.ends_within(look_seconds):
            pass
        return found

    def finish(self) -> int:
        """Until its end; its exit code. RuntimeError: it ended with a traceback, which is told."""
        if not self.ends_within(LONGEST_SECONDS):
            self.kill()
            raise TimeoutError(f"a search did not end within {LONGEST_SECONDS:.0f} s:\n{self.printed}")
        if (code := self._process.wait()) == 1 and "Traceback (most recent call last)" in self.printed:
            raise RuntimeError(f"a search ended with an error of its own:\n{self.printed}")
        return code

    def kill(self) -> None:
        """SIGKILL to the driver alone; its children are Ray's to end, or ours."""
        self._process.kill()
        self._reader.join(LONGEST_SECONDS)

    def tell(self, number: signal.Signals) -> None:
        """A signal as a scheduler sends it: to the driver alone."""
        self._process.send_signal(number)

    def interrupt(self) -> None:
        """Ctrl-C: SIGINT to the whole process group, Ray's processes included."""
        os.killpg(self.driver, signal.SIGINT)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table: what was looked at, what is asked, what was measured, and whether that is what is asked.

    details: the single measurements, for the JSON beside the table.
    """

    what: str
    asked: str
    measured: str
    kept: bool
    details: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What the parts of a soak share. folder: of its studies, each under a name of its own; short: the small form."""

    folder: Path
    chance: random.Random
    observer: Observer
    short: bool
