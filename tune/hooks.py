"""The screen: one line a decision, with its reason."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from tune.dimensions import label
from tune.duration import duration_text
from tune.planner import Planner

BUDGET_LINE_SECONDS = 30.0


class Screen:
    """One line a decision with its reason, and a line on the budget now and then."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._next_budget_line = time.monotonic() + BUDGET_LINE_SECONDS

    def decided(self, planner: Planner, trial: str | None, action: str, reason: str) -> None:
        """t003 nanogpt d128 h4 l4 p.1 bf16: promote: place 1 of 5 at rung 0"""
        record = planner.trials.get(trial or "")
        who = f"{trial} {record.family} {label(record.config)}" if record else "slot"
        self._write(f"{_clock(planner.books.clock())} {who}: {action}: {reason}")

    def reported(self, planner: Planner, trial: str, row: Mapping[str, Any]) -> None:
        """The result of a rung or of a last stretch; and the budget, when it was not shown for a while."""
        if row["rung"] is not None or row["final"]:
            where = "after its decay" if row["final"] else f"at rung {row['rung']}"
            family = planner.trials[trial].family
            whole = row.get("whole_perplexity")
            measured = f"{row['perplexity']:.4g}" if whole is None else f"{whole:.4g} on the whole split"
            result = f"perplexity {measured} after {row['steps']:,} steps"
            self._write(f"{_clock(planner.books.clock())} {trial} {family} {where}: {result}")
        if time.monotonic() >= self._next_budget_line:
            self._next_budget_line = time.monotonic() + BUDGET_LINE_SECONDS
            self._write(budget_line(planner))


def budget_line(planner: Planner) -> str:
    """What is spent, reserved and left, how many slots are held, and by whom; one of nobody is between two leases."""
    ledger, held = planner.books.ledger, planner.books.idle_slots + len(planner.running)
    money = f"spent {_whole(ledger.spent)} of {duration_text(ledger.cap)} ({100 * ledger.spent / ledger.cap:.0f} %)"
    rest = f"reserved {_whole(ledger.reserved)}, left {_whole(max(0.0, ledger.left))}"
    names = ", ".join(planner.running)
    holds = f"{held} {'slot' if held == 1 else 'slots'} held{f', by {names}' if names else ''}"
    return f"{_clock(planner.books.clock())} budget: {money}, {rest}; {holds}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"[{minutes // 60}:{minutes % 60:02d}:{rest:02d}]"


def _whole(seconds: float) -> str:
    return duration_text(round(seconds))
