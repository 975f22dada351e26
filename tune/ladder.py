"""The ladder: how much training a rung is, and what share of a family's device-seconds each rung may use."""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields, replace

ETA = 2.0
"""A rung is this many times the training of the one below."""
TILT = 0.85
"""Where trials have an end, a rung may use this many times the device-seconds of the one below."""
FINISH_SHARE = 0.6
"""Kept from the start for the leader's last stretch, where trials have no end of their own."""
TOP_SHARE = 0.3
"""Where they have one, the leader climbs the ladder to it; this much is kept for the climb above its quotas."""
FALL_TO_COME = 1.0
"""Where trials have an end, a loss is expected to fall still by this many times its drop over the last rung."""
FALL_KEPT = 0.75
"""Where they have none: a loss falls over a rung by this much of what it fell over the one below, as on a power law."""
TRIALS_AT_600_SECONDS = 12
"""How wide to start without an end in sight; with another cap, by the square root of it."""
START_UP_SHARE = 0.1
"""No plan gives more than this to the start-up of slots beyond the first."""
FEWEST_TRIALS = 3
"""Rung 0 is shorter than asked for where that many trials would not fit otherwise."""

Trial = Hashable


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """Rungs 0 to `top`; `explore` device-seconds for them, `kept` for the leader, `start_up` for slots to come up;
    `first` training seconds at rung 0. What a deadline leaves of a cap beside these is for last stretches of others.

    horizon(trial): training seconds to a trial's end, of an average one for None; None where trials have no end.
    """

    first: float
    top: int
    explore: float
    kept: float
    start_up: float
    overhead: float
    horizon: Callable[[Trial | None], float] | None

    def told(self) -> dict[str, float]:
        """As plain data, all but the horizon."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name != "horizon"}

    def rung_seconds(self, rung: int, trial: Trial | None = None) -> float:
        """Training seconds of a trial's life at a rung: the same for all, or the same share of the way to each end."""
        if self.horizon is None:
            return self.first * ETA**rung
        return self.horizon(trial) * min(1.0, self.first * ETA**rung / self.horizon(None))

    def cost(self, rung: int, trial: Trial | None = None) -> float:
        """Device-seconds planned for a stretch from the rung below, by which quotas are counted."""
        below = self.rung_seconds(rung - 1, trial) if rung else 0.0
        return self.rung_seconds(rung, trial) - below + self.overhead

    def falls(self, rung: int) -> float:
        """How many times its drop over a rung a loss is expected to fall still, to the end of its last stretch."""
        if self.horizon is not None:
            return FALL_TO_COME
        rungs = math.log((self.rung_seconds(self.top) + self.kept) / self.rung_seconds(rung), ETA)
        return FALL_KEPT * (1 - FALL_KEPT ** max(0.0, rungs)) / (1 - FALL_KEPT)

    @property
    def starts(self) -> float:
        """How many trials rung 0 can pay for."""
        return self.quotas([1.0] * (self.top + 1))[0] / self.cost(0)

    def quotas(self, gains: Sequence[float]) -> list[float]:
        """Device-seconds for each rung. gains[k]: the share of trials that rung k made better, 1 where unknown.

        Where trials have no end a rung takes one in ETA of those below it. A rung that makes trials worse is not worth
        its share, nor is any rung above it.
        """
        weights, gain = [], 1.0
        for rung in range(self.top + 1):
            gain *= gains[rung]
            weights.append(gain * (TILT**rung if self.horizon else self.cost(rung) / ETA**rung))
        return [self.explore * weight / sum(weights) for weight in weights]


def fit(
    *, seconds: float, slots: int, start_up: float, shortest: float, overhead: float, first: float | None = None,
    horizon: Callable[[Trial | None], float] | None, finish_share: float | None, wall: float = math.inf,
    part: float = 1.0,
) -> Ladder:  # fmt: skip
    """The ladder that suits a cap, and `wall` seconds of a part of the slots. `first`: rung 0 is fixed already."""
    share = finish_share if finish_share is not None else FINISH_SHARE if horizon is None else TOP_SHARE
    kept = share * min(seconds, wall)
    if horizon is not None:
        kept = min(kept, horizon(None) + overhead)
    coming_up = max(start_up, min(start_up * slots, START_UP_SHARE * seconds))
    explore = max(0.0, seconds - kept - coming_up)
    if horizon is None:
        explore = min(explore, max(0.0, part * slots * (wall - kept) - coming_up))
    parts = {"explore": explore, "kept": kept, "start_up": coming_up, "overhead": overhead}
    if horizon is not None:
        first = first or shortest
        top = max(1, math.ceil(math.log(horizon(None) / first, ETA) - 1e-9))
        return Ladder(first=first, top=top, **parts, horizon=horizon)
    least = min(shortest, max(overhead, explore / FEWEST_TRIALS - overhead))
    ladder = _grow(Ladder(first=first or least, top=0, **parts, horizon=None))
    while first is None and ladder.starts > TRIALS_AT_600_SECONDS * math.sqrt(seconds / 600.0):
        ladder = _grow(replace(ladder, first=1.1 * ladder.first, top=0))
    return ladder


def _grow(ladder: Ladder) -> Ladder:
    """As many rungs as halving makes sense for and their quotas can pay."""
    while True:
        taller = replace(ladder, top=ladder.top + 1)
        pays = taller.quotas([1.0] * (taller.top + 1))[-1] >= taller.cost(taller.top)
        if not pays or taller.starts < ETA**taller.top:
            return ladder
        ladder = taller
