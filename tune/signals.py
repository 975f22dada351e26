"""Being told to end: SIGINT, SIGTERM, and SIGHUP of a terminal that is closed. Standard library only, so that it is
heard before anything heavy is loaded.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Told:
    """The signal that told this process to end, once there is one; `listen` takes what is to be done about it."""

    def __init__(self) -> None:
        self.name: str | None = None
        self._act: Callable[[str], None] = lambda name: None

    def listen(self, act: Callable[[str], None]) -> None:
        """From now on; at once where the signal came before."""
        self._act = act
        if self.name:
            act(self.name)

    def end(self, name: str) -> None:
        """The second signal is KeyboardInterrupt, with its name."""
        if self.name:
            raise KeyboardInterrupt(name)
        self.name = name
        self._act(name)


@contextmanager
def ended_in_order() -> Iterator[Told]:
    """A signal once: whoever listens ends in order; a second time: KeyboardInterrupt."""
    told = Told()
    with _heard(told.end):
        yield told


@contextmanager
def interruptible() -> Iterator[None]:
    """Any of them is as good as Ctrl-C: KeyboardInterrupt, with the signal's name."""

    def end(name: str) -> None:
        raise KeyboardInterrupt(name)

    with _heard(end):
        yield


@contextmanager
def _heard(end: Callable[[str], None]) -> Iterator[None]:
    """The signals call `end` with their name; SIGHUP, which nohup lets be ignored, once: the system and a shell both
    send it."""

    def told(number: int, frame: Any) -> None:
        if number == signal.SIGHUP:
            signal.signal(number, signal.SIG_IGN)
        end(signal.Signals(number).name)

    heard = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        heard.append(signal.SIGHUP)
    before = {number: signal.signal(number, told) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
