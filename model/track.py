"""Long work that a caller may want to watch."""

from collections.abc import Iterable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Track(Protocol):
    """Goes through `total` items, and may show how far it has come with what it is `about`."""

    def __call__(self, items: Iterable[T], about: str, total: int) -> Iterable[T]: ...


def untracked(items: Iterable[T], about: str, total: int) -> Iterable[T]:
    """Shows nothing."""
    return items
