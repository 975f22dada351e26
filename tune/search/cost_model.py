"""Prices: what the next stretch of a trial will cost, learned from what the stretches before it did cost, or given."""

import json
import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tune.errors import UserError
from tune.search.records import Running

FIRST_OVERHEAD_SECONDS = 1.5
"""Of a stretch, until the first one was paid: loading, hand-over, evaluation and checkpoint."""
FIRST_START_UP_SECONDS = 6.0
"""Of a slot, until the first one came up: the process, its imports, its first batch."""


class Prices:
    """What stretches of one family cost, in device-seconds.

    A stretch costs its training (the ladder says how long) and an overhead: loading, evaluation, checkpoint. A trial's
    own last overhead is the best guess of its next; for a new trial it is the median of the others' last ones.
    """

    def __init__(self) -> None:
        self._overheads: dict[str, float] = {}
        self._slowdowns: dict[str, float] = {}
        self._start_ups: list[float] = []

    def learn(self, run: Running, *, slowdown: float) -> None:
        """What a lease was charged; `slowdown`: its seconds a step over those that fixed the trial's rungs."""
        trial, start_up = run.assignment.trial, 0.0
        if run.fresh_slot:
            start_up = run.charged.get("start", 0.0)
            self._start_ups.append(start_up)
        self._overheads[trial] = sum(run.charged.values()) - run.charged.get("steps", 0.0) - start_up
        self._slowdowns[trial] = slowdown

    def forget(self) -> None:
        """What was learned was of another processor."""
        for known in (self._overheads, self._slowdowns, self._start_ups):
            known.clear()

    def state(self) -> list[Any]:
        """All that was learned, as plain data."""
        return [self._overheads, self._slowdowns, self._start_ups]

    @property
    def start_up(self) -> float:
        """Device-seconds until a new slot trains."""
        return statistics.median(self._start_ups) if self._start_ups else FIRST_START_UP_SECONDS

    def stretch(self, trial: str | None, training_seconds: float) -> float:
        """Expected device-seconds of a stretch that trains a trial (None: a new one) for `training_seconds` more."""
        return training_seconds * self._slowdowns.get(trial or "", 1.0) + self._overhead(trial)

    def _overhead(self, trial: str | None) -> float:
        if trial in self._overheads:
            return self._overheads[trial]
        return statistics.median(self._overheads.values()) if self._overheads else FIRST_OVERHEAD_SECONDS


@dataclass(frozen=True, kw_only=True)
class FixedPrices:
    """Prices of one family that are given, so that what is decided does not depend on the machine.

    In device-seconds: of a step of any trial, of a stretch beside its steps, of a slot until it trains. Where they are
    below the real ones the study ends early, since the cap holds all the same; where they are above, some of the cap
    is left unspent.
    """

    step_seconds: float
    overhead_seconds: float = FIRST_OVERHEAD_SECONDS
    start_up_seconds: float = FIRST_START_UP_SECONDS

    @property
    def start_up(self) -> float:
        """Device-seconds until a new slot trains."""
        return self.start_up_seconds

    def learn(self, run: Running, *, slowdown: float) -> None:
        """What a lease was charged changes no price."""

    def forget(self) -> None:
        """Nor does another processor."""

    def state(self) -> list[Any]:
        """Nothing was learned."""
        return []

    def stretch(self, trial: str | None, training_seconds: float) -> float:
        """Device-seconds of a stretch that trains a trial for `training_seconds` more."""
        return training_seconds + self.overhead_seconds

    def steps_in(self, seconds: float) -> int:
        """Steps of a stretch that costs so many device-seconds."""
        return max(1, int((seconds - self.overhead_seconds) / self.step_seconds))


def load_prices(path: Path, families: Iterable[str]) -> dict[str, FixedPrices]:
    """The prices of each family from a JSON file: {family: {"step_seconds": S, "overhead_seconds": S, ...}, ...}.

    Raises UserError: it cannot be read, or a price is missing, unknown or no positive number.
    """
    known = [each.name for each in fields(FixedPrices)]
    example = '{"nanogpt": {"step_seconds": 0.03}}'
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        prices = {family: FixedPrices(**found[family]) for family in families}
    except OSError as error:
        raise UserError(f"--prices: {str(path)!r} cannot be read ({error.strerror}): name another file") from None
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        rule = f"it holds for each family step_seconds, and if need be {' and '.join(known[1:])}"
        raise UserError(f"--prices: {str(path)!r} ({error}): {rule}; write such as {example}") from None
    for family, price in prices.items():
        for name in known:
            value = getattr(price, name)
            if type(value) not in (int, float) or not (math.isfinite(value) and value > 0):
                raise UserError(f"--prices: {name} of {family} is {value!r}: a price is above 0; write {example}")
    return prices
