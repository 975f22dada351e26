"""Our own contest with one of its ideas taken out, for `tune/replay.py --ablations IDEA`."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tune import ladder, rungs
from tune.ladder import Ladder
from tune.rungs import Contest, HandBack, Left, Move, Wait
from tune.standings import Entry, Standings, Trial

NEXT, FIRST, DEPART, ENTRY = Contest.next, Standings.first, Standings.depart, Standings._entry


def _keep_slots(self: Contest, left: Left) -> Move:
    """A slot is kept as long as anything runs."""
    move = NEXT(self, left)
    return Wait(move.reason) if isinstance(move, HandBack) and left.running else move


def _equal_seconds(self: Ladder, rung: int, trial: Trial | None = None) -> float:
    """Rungs are equal in device-seconds, not in the share of the way to a trial's end."""
    assert self.horizon is not None
    return float(min(self.horizon(trial), self.first * ladder.ETA**rung))


def _depart_for_good(self: Standings, trial: Trial, goal: int | None) -> bool:
    """Once a rung is served, those who wait two rungs below it are left behind."""
    self.behind = max(getattr(self, "behind", 0), (goal or 0) - 1)  # type: ignore[attr-defined]
    return DEPART(self, trial, goal)


def _first_not_behind(self: Standings, rung: int, *, past_best: bool = False) -> Trial | None:
    return FIRST(self, rung, past_best=past_best) if rung >= getattr(self, "behind", 0) else None


def _entry_of_any(self: Standings, trial: Trial) -> Entry:
    """Trials that a rung made worse are as promising as their loss."""
    return False, *ENTRY(self, trial)[1:]


IDEAS: dict[str, list[tuple[Any, str, Any]]] = {
    "equal-tokens": [(Ladder, "rung_seconds", _equal_seconds)],
    "extrapolation": [(ladder, "FALL_TO_COME", 0.0)],
    "thawing": [(Standings, "depart", _depart_for_good), (Standings, "first", _first_not_behind)],
    "gains": [(Standings, "gain", lambda self, rung: 1.0)],
    "past-best": [(Standings, "_entry", _entry_of_any)],
    "revival": [(rungs, "REVIVED_SHARE", 0.0)],
    "kept-money": [(ladder, "TOP_SHARE", 0.0)],
    "tilt": [(ladder, "TILT", 1.0)],
    "eta-2": [(ladder, "ETA", 4.0)],
    "certain-places": [(Standings, "flying", lambda self, rung: 0)],
    "narrowing": [(Contest, "next", _keep_slots)],
    "deadline-rush": [(Contest, "_money_lies_idle", lambda self, left: False)],
}
"""What is changed to do without an idea: places, and what stands there instead."""


@contextmanager
def without(idea: str) -> Iterator[None]:
    """The contest does without an idea."""
    changes = [(place, name, instead, getattr(place, name)) for place, name, instead in IDEAS[idea]]
    for place, name, instead, _ in changes:
        setattr(place, name, instead)
    try:
        yield
    finally:
        for place, name, _, before in changes:
            setattr(place, name, before)
