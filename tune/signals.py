"""Handles the signals to end: SIGINT, SIGTERM, and SIGHUP of a terminal that is closed. Standard library only, so that
they are handled before anything heavy is loaded.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class StopSignal:
    """The signal that told this process to end, once there is one; `listen` sets what is called then."""

    def __init__(self) -> None:
        self.name: str | None = None
        self._act: Callable[[str], None] = lambda name: None

    def listen(self, act: Callable[[str], None]) -> None:
        """Call `act` with the name of the signal; at once where it came before."""
        self._act = act
        if self.name:
            act(self.name)

    def end(self, name: str) -> None:
        """Take a signal. KeyboardInterrupt: it is the second, whose name is the text."""
        if self.name:
            raise KeyboardInterrupt(name)
        self.name = name
        self._act(name)


@contextmanager
def catch_stop_signals() -> Iterator[StopSignal]:
    """Yield what takes the signals inside: the first goes to whoever listens, to end in order; the second raises
    KeyboardInterrupt."""
    stop_signal = StopSignal()
    with _heard(stop_signal.end):
        yield stop_signal


@contextmanager
def interruptible() -> Iterator[None]:
    """Let any of the signals inside raise KeyboardInterrupt, as Ctrl-C does, with the signal's name."""

    def end(name: str) -> None:
        raise KeyboardInterrupt(name)

    with _heard(end):
        yield


@contextmanager
def _heard(end: Callable[[str], None]) -> Iterator[None]:
    """Let the signals inside call `end` with their name. SIGHUP does so only once, as the system and a shell both send
    it, and not where it is ignored, as under nohup. In another thread than the main one, which alone hears signals,
    nothing changes."""

    def told(number: int, frame: Any) -> None:
        if number == signal.SIGHUP:
            signal.signal(number, signal.SIG_IGN)
        end(signal.Signals(number).name)

    heard = [signal.SIGINT, signal.SIGTERM]
    if threading.current_thread() is not threading.main_thread():
        heard.clear()
    elif signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        heard.append(signal.SIGHUP)
    before = {number: signal.signal(number, told) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
