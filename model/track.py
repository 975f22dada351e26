"""Long work that a caller may want to watch."""

import math
from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar

CHUNK = 10_000
"""Items that are worked on at a time: what the tokenizers library tells of a text is many times as large as it."""
T = TypeVar("T")


class Track(Protocol):
    """Goes through `total` items, and may show how far it has come with what it is `about`."""

    def __call__(self, items: Iterable[T], about: str, total: int) -> Iterable[T]: ...


def untracked(items: Iterable[T], about: str, total: int) -> Iterable[T]:
    """Shows nothing."""
    return items


def chunks(items: list[T], track: Track, about: str) -> Iterator[list[T]]:
    """The items, CHUNK at a time."""
    for start in track(range(0, len(items), CHUNK), about, math.ceil(len(items) / CHUNK)):
        yield items[start:start + CHUNK]
