"""How long a part of a program takes in all."""

from time import perf_counter


class Stopwatch:
    """Adds up the wall-clock `seconds` that were spent inside of it: `with stopwatch: ...`, one after another."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._began = 0.0

    def __enter__(self) -> None:
        self._began = perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += perf_counter() - self._began
