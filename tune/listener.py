"""What wants to know of a search as it goes: the screen, TensorBoard."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from tune.planner import Planner


class Listener(Protocol):
    """Hears of every decision and report, after it was written down."""

    def decided(self, planner: "Planner", trial: str | None, action: str, reason: str) -> None:
        """A decision, with its reason."""

    def reported(self, planner: "Planner", trial: str, row: Mapping[str, Any]) -> None:
        """A row of the journal's table `reports` was written."""
