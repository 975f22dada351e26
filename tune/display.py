"""The live display: while a study runs on a terminal, a panel at its foot; what is said scrolls by above it.

A thread of its own reads the journal and is the only one that draws, so the search waits for neither.
"""

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from queue import SimpleQueue

from rich.console import Console
from rich.live import Live

from tune.journal import connect
from tune.noise import Voice
from tune.panel import Panel
from tune.settings import Settings
from tune.view import View, look

REFRESH_SECONDS = 0.5
SHARE = 0.05
"""Of the time, what looking and drawing may take."""


@contextmanager
def displayed(
    voice: Voice, study: Path, settings: Settings, clock: Callable[[], float], wall_left: Callable[[], float | None]
) -> Iterator[None]:
    """Show the study in this folder while this lasts, where there is a terminal; `clock`: the study's own seconds;
    wall_left: those to its deadline.

    Nothing changes where there is none, or one that cannot draw.
    """
    console = Console(file=voice.screen, markup=False, emoji=False, highlight=False)
    draws = console.is_terminal and not console.is_dumb_terminal and "utf" in console.encoding
    if not (voice.screen.isatty() and draws):
        yield
        return
    display = Display(voice, console, study, settings, clock, wall_left)
    display.start()
    try:
        yield
    finally:
        display.close()


class Display:
    """The thread; what the voice says meanwhile is shown with its next drawing."""

    def __init__(
        self, voice: Voice, console: Console, study: Path, settings: Settings, clock: Callable[[], float],
        wall_left: Callable[[], float | None],
    ) -> None:  # fmt: skip
        self._voice, self._console, self._study, self._settings, self._clock = voice, console, study, settings, clock
        self._wall_left = wall_left
        self._said: SimpleQueue[str] = SimpleQueue()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="display", daemon=True)

    def start(self) -> None:
        """From now on lines go above the panel."""
        self._voice.show = self._said.put
        self._thread.start()

    def close(self) -> None:
        """Take the panel away; everything that was said stands there."""
        self._over.set()
        self._thread.join()
        self._say(self._voice.plain)

    def _run(self) -> None:
        try:
            self._draw()
        finally:
            self._voice.show = self._voice.plain
            self._say(self._voice.plain)

    def _draw(self) -> None:
        wait = 0.0
        live = Live(
            console=self._console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        )
        with closing(connect(self._study)) as journal, live:
            while not self._over.wait(wait):
                began = time.monotonic()
                view = self._look(journal)
                if all(size := os.get_terminal_size(self._voice.screen.fileno())):
                    self._console.size = size
                self._say(lambda line: self._console.print(line, soft_wrap=True))
                live.update(Panel(view, self._study.name), refresh=True)
                wait = max(REFRESH_SECONDS, (time.monotonic() - began) / SHARE)

    def _look(self, journal: sqlite3.Connection) -> View:
        families, cap = self._settings.families, self._settings.budget
        return look(journal, families, cap=cap, now=self._clock(), wall=self._wall_left())

    def _say(self, show: Callable[[str], None]) -> None:
        if lines := [self._said.get() for _ in range(self._said.qsize())]:
            show("\n".join(lines))
