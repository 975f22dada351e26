"""Two accounts of one study: the journal's, and the operating system's."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.soak.observer import Process
from tune.store.accounting import DECODING
from tune.store.journal import connect

OFF_SECONDS, OFF_SHARE = 1.0, 0.01
"""How far the two may be apart for one slot: the larger of both."""
UNSEEN_SECONDS = 20.0
"""A slot on which no process was seen to work was not held for longer than one takes to begin on a busy machine."""
MOST_PAIRS = 10_000
"""Of beginnings and ends that are tried, where more slots than processes were there."""


@dataclass(frozen=True, kw_only=True)
class Held:
    """How long one slot was held, by the journal and from outside, in seconds; booting: of these, in which its process
    may have been nobody's yet."""

    journal: float
    outside: float
    booting: float

    @property
    def off(self) -> float:
        """Seconds that the journal charged too much, or too little if below zero."""
        return max(self.journal - self.outside, min(0.0, self.journal - self.outside + self.booting))

    def is_within(self, seconds: float) -> bool:
        """Whether it is off by no more; where no process was seen to work, whether it was none that begins."""
        return abs(self.off) <= seconds if self.outside else self.journal <= UNSEEN_SECONDS


def rows(study: Path, query: str, *values: Any) -> list[dict[str, Any]]:
    """The rows of a query on a study's journal."""
    connection = connect(study)
    try:
        return [dict(row) for row in connection.execute(query, values)]
    finally:
        connection.close()


def number(study: Path, query: str, *values: Any) -> float:
    """The one number of a query, 0 where it is NULL."""
    return float(next(iter(rows(study, query, *values)[0].values())) or 0.0)


def last_slot(study: Path) -> int:
    """The number of the slot that was opened last, -1 where there was none, or no journal with its tables yet."""
    if not rows(study, "SELECT name FROM sqlite_master WHERE name = 'slots'"):
        return -1
    return int(rows(study, "SELECT IFNULL(MAX(slot), -1) AS slot FROM slots")[0]["slot"])


def compare(study: Path, processes: Sequence[Process], *, after: int = -1, to: int = 1_000_000) -> list[Held]:
    """The slots of a study; of one run, those `after` a slot and up `to` one.

    An idle process goes to whichever slot's trial comes, and any of them ends where a slot is handed back: beginnings
    are held against beginnings and ends against ends, each in their order. More slots than processes had one that
    nobody saw work, as another was idle before it had begun: as is likeliest. What the driver decoded of the winners it
    did itself: no trial process had that slot.
    """
    query = """
        SELECT opened, IFNULL(closed, opened) AS closed FROM slots
        WHERE slot > ? AND slot <= ? AND slot IN (SELECT slot FROM leases WHERE purpose <> ?) ORDER BY opened, slot"""
    slots = rows(study, query, after, to, DECODING)
    opened, closed = [row["opened"] for row in slots], sorted(row["closed"] for row in slots)
    gone = sorted(process.served_until for process in processes)
    outside = [end - process.serves_from for end, process in zip(gone, processes, strict=True)]
    booting = [process.booting for process in processes]
    counted, unseen = min(len(slots), len(processes)), [0.0] * max(0, len(slots) - len(processes))

    def held(first: Sequence[float], last: Sequence[float]) -> list[Held]:
        """Those that processes had began and ended at these moments, the others at the rest."""
        starts = [*first, *(each for each in opened if each not in first)]
        ends = [*last, *(each for each in closed if each not in last)]
        journal = [end - start for start, end in zip(starts, ends, strict=True)]
        every = itertools.zip_longest(journal, outside + unseen, booting + unseen, fillvalue=0.0)
        return [Held(journal=mine, outside=theirs, booting=boot) for mine, theirs, boot in every]

    pairs = itertools.product(itertools.combinations(opened, counted), itertools.combinations(closed, counted))
    found = itertools.starmap(held, itertools.islice(pairs, MOST_PAIRS))
    return min(found, key=lambda each: max((abs(slot.off) for slot in each if slot.outside), default=0.0))


def spent(study: Path) -> float:
    """Device-seconds by the journal."""
    return number(study, "SELECT TOTAL(closed - opened) FROM slots")


def decodes(study: Path) -> bool:
    """Whether the driver decodes a winner just now."""
    return bool(rows(study, "SELECT 1 FROM leases WHERE purpose = ? AND closed IS NULL", DECODING))


def adds_up(study: Path) -> bool:
    """Whether every slot is closed, every charge belongs to one, and no trial came to a rung twice."""
    charged = number(study, "SELECT TOTAL(seconds) FROM charges")
    still_open = number(study, "SELECT COUNT(*) FROM slots WHERE closed IS NULL")
    twice = rows(study, "SELECT 1 FROM reports WHERE rung IS NOT NULL GROUP BY trial, rung HAVING COUNT(*) > 1")
    return abs(charged - spent(study)) < 0.05 and not still_open and not twice


def taken_up(study: Path) -> list[dict[str, Any]]:
    """Every lease with a report, in order: its trial, and the training seconds of its life it began and ended with."""
    return rows(
        study,
        """
        SELECT lease, leases.trial, purpose, rung, slot, first.training_seconds - (
            SELECT TOTAL(seconds) FROM charges WHERE charges.lease = leases.lease AND what = 'steps'
            AND charges.at <= first.at) AS began, last.training_seconds AS ended, last.final AS decayed
        FROM leases
        JOIN (SELECT lease, at, training_seconds, MIN(report) FROM reports GROUP BY lease) AS first USING (lease)
        JOIN (SELECT lease, training_seconds, final, MAX(report) FROM reports GROUP BY lease) AS last USING (lease)
        ORDER BY lease""",
    )
