"""A running study at a glance, read from its journal: the account, who runs, who waits, who ended, who is best."""

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tune.dimensions import label
from tune.journal import SHARE
from tune.ledger import GRACE_SECONDS
from tune.queries import best_so_far, level_text

SLOTS = f"""
    SELECT TOTAL((IFNULL(closed, ?) - opened) * {SHARE}), TOTAL(closed IS NULL),
           TOTAL((closed IS NULL) * {SHARE})
    FROM slots"""
LEASES = f"""
    SELECT trial, family, rung, purpose, reserved - (? - leases.opened) * {SHARE} AS ahead
    FROM leases JOIN trials USING (trial) JOIN slots USING (slot) WHERE leases.closed IS NULL ORDER BY lease"""
ASIDE = "SELECT TOTAL(value) FROM study WHERE key = 'aside'"
DONE = {"finished": "finished", "failed": "error"}
"""Why a trial of these states ended; those that were stopped have a reason."""


@dataclass(frozen=True, kw_only=True)
class Best:
    """The first of a family's ranking so far; where: at which level, and on what its perplexity was measured; curve:
    its training losses in nats, one a report."""

    trial: str
    config: str
    perplexity: float
    where: str
    curve: Sequence[float]


@dataclass(frozen=True, kw_only=True)
class FamilyView:
    """A family's trials; running: such as `t003 to rung 1`; ended: how many for which reason."""

    running: Sequence[str]
    paused: int
    ended: dict[str, int]
    best: Best | None


@dataclass(frozen=True, kw_only=True)
class View:
    """In device-seconds the cap, what is spent of it, reserved and left; slots held, and the device-seconds that they
    take a second; wall: seconds to the deadline.
    """

    cap: float
    spent: float
    reserved: float
    slots: int
    rate: float
    wall: float | None
    families: dict[str, FamilyView]

    @property
    def left(self) -> float:
        """Neither spent nor reserved."""
        return max(0.0, self.cap - self.spent - self.reserved)

    @property
    def seconds_to_end(self) -> float | None:
        """Of wall time, if the slots held now are kept to the end; None while there are none."""
        if not self.slots:
            return None
        to_cap = max(0.0, self.cap - self.spent) / self.rate
        return to_cap if self.wall is None else min(to_cap, max(0.0, self.wall))


def look(
    journal: sqlite3.Connection, families: Iterable[str], *, cap: float, now: float, wall: float | None = None
) -> View:
    """The study at `now` on its own clock, `wall` seconds before its deadline."""
    spent, held, rate = journal.execute(SLOTS, (now,)).fetchone()
    (aside,) = journal.execute(ASIDE).fetchone()
    leases = journal.execute(LEASES, (now,))
    running = [dict(row) for row in leases]
    trials = journal.execute("SELECT family, state, reason FROM trials").fetchall()
    best = best_so_far(journal)
    return View(
        cap=cap, spent=spent, slots=int(held), rate=rate, wall=wall,
        reserved=aside + sum(max(0.0, lease["ahead"]) for lease in running) + rate * GRACE_SECONDS,
        families={
            name: FamilyView(
                running=list(dict.fromkeys(
                    f"{lease['trial']} {_goal(lease)}" for lease in running if lease["family"] == name
                )),
                paused=sum(row["family"] == name and row["state"] == "paused" for row in trials),
                ended=dict(Counter(
                    DONE.get(row["state"], str(row["reason"]).partition(":")[0])
                    for row in trials if row["family"] == name and row["state"] not in ("running", "paused")
                )),
                best=_best(journal, best[name]) if name in best else None,
            )
            for name in families
        },
    )  # fmt: skip


def _goal(lease: Mapping[str, Any]) -> str:
    if lease["purpose"] == "final":
        return "to its end"
    return f"to rung {lease['rung']}" if lease["purpose"] == "rung" else f"for {lease['purpose']}"


def _best(journal: sqlite3.Connection, row: sqlite3.Row) -> Best:
    query = "SELECT train_loss FROM reports WHERE trial = ? AND train_loss IS NOT NULL ORDER BY report"
    return Best(
        trial=row["trial"], config=label(json.loads(row["config"])), perplexity=row["perplexity"],
        where=level_text(row) + (", on the whole split" if row["on_whole"] else ""),
        curve=[loss for (loss,) in journal.execute(query, (row["trial"],))],
    )  # fmt: skip
