"""Successive halving of one family under a cap: how much training a rung is and what share of the cap it may use; who
starts, who goes on, who thaws, what is left for whom.

Pure: no clock, no randomness. What is decided follows from the events that were told, in their order.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from tune.search.forecast import Standing, Standings

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


REVIVED_SHARE = 0.5
"""Of what is climbed above the quotas: for the best trial so far where it is past its best, instead of the leader."""
ALIKE = 3
"""Where so many trials failed with one error before any reached a rung, all others would."""
VARYING = re.compile(r"0x[0-9a-f]+|\d+")
"""Of an error's text, what is another in each trial: shapes, addresses."""



@dataclass(frozen=True, kw_only=True)
class Left:
    """What a free slot finds: device-seconds neither spent nor reserved, slots, trials, seconds to the deadline."""

    seconds: float
    slots: int
    running: int
    wall: float | None = None


@dataclass(frozen=True)
class Start:
    """Begin a new trial and train it to rung 0."""

    reason: str


@dataclass(frozen=True)
class Promote:
    """Take a paused trial, however long it has waited, up to `rung`."""

    trial: Trial
    rung: int
    reason: str


@dataclass(frozen=True)
class Finish:
    """The last stretch of a trial, its decay and all overhead included, in up to `seconds` device-seconds."""

    trial: Trial
    seconds: float
    reason: str


@dataclass(frozen=True)
class HandBack:
    """Nothing worthwhile for this slot, now or later."""

    reason: str


@dataclass(frozen=True)
class Wait:
    """Keep the slot: a running trial must report first."""

    reason: str


Move = Start | Promote | Finish | HandBack | Wait


class Contest:
    """One family's contest for its device-seconds.

    seconds: the family's share of the cap; slots: how many it may come to hold; price(trial, rung): expected
    device-seconds, overhead included, to bring a trial (None: a new one) from where it is to a rung; shortest: least
    training seconds of rung 0 that make sense; overhead: device-seconds of a stretch beside its training; start_up:
    device-seconds before a new slot trains; horizon(trial): training seconds to a trial's end (None: of an average
    one). Without a horizon one leader gets a last stretch, of at least `finish_share` of the cap, and others do on
    slots that a deadline leaves nothing else to do for; with one, trials climb to their ends. configs: how many exist
    (None: no end); wall: seconds from the start to the deadline, and part: the family's of the slots until then;
    ladder: the one to climb, where it was fitted before.
    """

    def __init__(
        self, *, seconds: float, slots: int, price: Callable[[Trial | None, int], float], shortest: float,
        overhead: float, start_up: float = 0.0, horizon: Callable[[Trial | None], float] | None = None,
        configs: int | None = None, finish_share: float | None = None, wall: float = math.inf,
        part: float = 1.0, ladder: Ladder | None = None,
    ) -> None:  # fmt: skip
        self.seconds, self.price, self.configs = seconds, price, configs
        self._slots, self._shortest, self._overhead, self._start_up = slots, shortest, overhead, start_up
        self._horizon, self._finish_share, self._part = horizon, finish_share, part
        self.ladder = ladder or self._fit(seconds, wall, None)
        self._used = [0.0] * (self.ladder.top + 1)
        self._used_past_best = 0.0
        self._standings = Standings(lambda rung: self.ladder.falls(rung))
        self._finisher: Trial | None = None
        self._errors: Counter[str] = Counter()

    @property
    def hopeless(self) -> bool:
        """So many trials failed with one error, and none reached a rung, that there is no use in another."""
        alike = max(self._errors.values(), default=0)
        return alike >= ALIKE and not any(standing.losses for standing in self.trials.values())

    @property
    def trials(self) -> dict[Trial, Standing]:
        """Where each trial stands."""
        return self._standings.trials

    def rung_seconds(self, rung: int, trial: Trial | None = None) -> float:
        """Training seconds of a trial's life at a rung."""
        return self.ladder.rung_seconds(rung, trial)

    # --- events

    def started(self, trial: Trial) -> None:
        """A new trial is on its way to rung 0."""
        self.promoted(trial, 0)

    def promoted(self, trial: Trial, rung: int) -> None:
        """A trial is on its way to a rung; to tell it again changes nothing."""
        if self._standings.depart(trial, rung):
            self._use(trial, rung)

    def finishing(self, trial: Trial) -> None:
        """A trial is in its last stretch; to tell it again changes nothing."""
        self._standings.depart(trial, None)
        self._finisher = trial if self._finisher is None else self._finisher

    def reported(self, trial: Trial, rung: int, loss: float, *, telling: bool = True) -> None:
        """A trial reached a rung and waits there. One whose loss is not finite has diverged.

        telling: its drop over the last rung tells how it will go on; not so within a warm-up of the learning rate.
        """
        self._standings.record(trial, rung, loss, telling=telling)

    def interrupted(self, trial: Trial) -> None:
        """A stretch ended before its goal: the trial waits where it was."""
        goal = self.trials[trial].goal
        if goal is not None:
            self._use(trial, goal, -1.0)
        self._standings.pause(trial)
        self._release(trial)

    def finished(self, trial: Trial, loss: float) -> None:
        """A trial had its last stretch."""
        self._standings.close(trial, "finished")
        if self._horizon is not None:
            self._release(trial)

    def ended(self, trial: Trial, reason: str) -> None:
        """A trial is over: diverged, memory, price, error."""
        self._standings.close(trial, "ended")
        self._release(trial)
        if reason.startswith("error"):
            self._errors[VARYING.sub("#", reason)] += 1

    def refitted(self, seconds: float, wall: float = math.inf) -> Ladder:
        """The ladder on which the rungs stay as they are, for another share of the cap or another deadline."""
        return self._fit(seconds, wall, self.ladder.first)

    def refit(self, seconds: float, ladder: Ladder | None = None) -> None:
        """The family's share or the deadline changed, and with it the ladder (None: as `refitted` has it).

        A trial that had its last stretch may go on from before its decay.
        """
        self.seconds, self.ladder, self._finisher = seconds, ladder or self.refitted(seconds), None
        self._used.extend([0.0] * (self.ladder.top + 1 - len(self._used)))
        for trial, standing in self.trials.items():
            if standing.state == "finished":
                self._standings.pause(trial)

    # --- decisions

    def next(self, left: Left) -> Move:
        """What a free slot should do. It counts as done: a move that cannot be made is `interrupted`."""
        move = self.decide(left)
        if isinstance(move, Promote):
            self.promoted(move.trial, move.rung)
        elif isinstance(move, Finish):
            self.finishing(move.trial)
        return move

    def decide(self, left: Left) -> Move:
        """The same, and nothing counts as done before it is told."""
        move: Move = HandBack("the leader has its last stretch")
        if self.hopeless:
            return HandBack(f"{ALIKE} trials failed with one error, and none reached a rung")
        if self._finisher is None or self._horizon is not None:
            move = self._explore(left)
            if not isinstance(move, HandBack | Wait) or left.running == 0:
                return self._lead(left) if isinstance(move, HandBack | Wait) else move
        elif self.trials[self._finisher].state == "finished":
            return move
        return self._lead(left) if self._money_lies_idle(left) else move

    def _explore(self, left: Left) -> Move:
        """Serve the lowest rung below its quota that has someone to serve."""
        free = self._free(left)
        quotas = self.ladder.quotas([self._standings.gain(rung) for rung in range(self.ladder.top + 1)])
        for rung, (quota, used) in enumerate(zip(quotas, self._used, strict=False)):
            room = quota - used
            if room <= 0:
                continue
            if rung == 0:
                if self._affords_another(free):
                    return Start(f"of {quota:.0f} s for rung 0, {used:.0f} are used")
                continue
            trial, flying = self._standings.first(rung - 1), self._standings.flying(rung - 1)
            places = math.ceil(room / self.ladder.cost(rung, trial))
            if trial is not None and places > flying:
                if self.price(trial, rung) <= free:
                    return Promote(trial, rung, self._place(trial))
            elif flying and left.running:
                if left.running < places:
                    return Wait(f"rung {rung - 1} is not complete")
                return HandBack(f"rung {rung} has room for {places} more, and {left.running} run")
        return HandBack("what runs needs no other slot")

    def _lead(self, left: Left) -> Move:
        """Nothing is left to explore: the leader goes on. Beside trials that run, the best of those that wait does."""
        seconds = left.seconds if left.wall is None else min(left.seconds, left.wall)
        room, beside = seconds, self._horizon is None and left.running > 0
        if beside:
            room = self._free(left) if self._finisher is None else 0.0
        trial = self._revived() or self._standings.leader()
        if trial is None and self._horizon is not None and self._affords_another(seconds):
            return Start("no trial can get better")
        if trial is None:
            trial = self._standings.leader(past_best=True)
        if trial is None and self._affords_another(room):
            return Start("no other trial can go on")
        least = self._overhead + (self.ladder.first if beside else 0.0)
        if trial is None or seconds <= least:
            return HandBack("nothing is left" if trial is not None else "no trial can go on")
        rung = self.trials[trial].rung + 1
        climbs = beside or (self._horizon is not None and rung <= self.ladder.top)
        if climbs and self.price(trial, rung) <= room:
            return Promote(trial, rung, "leads, and its rung's share is used")
        if self._horizon is None and self._finisher is not None:
            return Finish(trial, seconds, "is next, and the deadline leaves the slot nothing else to do")
        return Finish(trial, seconds, "leads, and gets what is left")

    def _revived(self) -> Trial | None:
        """The best trial so far, where it is past its best and such trials had less than their share of the climb.

        A lower learning rate, or a start again from the best weights, may still make it better.
        """
        trial = self._standings.best() if self._horizon is not None else None
        if trial is None or not self.trials[trial].past_best:
            return None
        climb = sum(self._used) - self.ladder.explore
        return trial if self._used_past_best < REVIVED_SHARE * climb else None

    def _free(self, left: Left) -> float:
        """Device-seconds that exploring may use: what is kept for the leader's last stretch is not for it."""
        kept = self.ladder.kept if self._horizon is None else 0.0
        return min(left.seconds, math.inf if left.wall is None else left.wall) - kept

    def _money_lies_idle(self, left: Left) -> bool:
        """Before a deadline: the slots that run cannot spend what is left. A last stretch has its part already."""
        running = self._standings.climbing if self._horizon is None else left.running
        return left.wall is not None and left.seconds > running * left.wall

    def _affords_another(self, seconds: float) -> bool:
        more = self.configs is None or len(self.trials) < self.configs
        return more and self.price(None, 0) <= seconds

    def _place(self, trial: Trial) -> str:
        standing = self.trials[trial]
        return f"best of those that wait at rung {standing.rung}, loss {standing.losses[standing.rung]:.3f}"

    def _use(self, trial: Trial, rung: int, times: float = 1.0) -> None:
        self._used.extend([0.0] * (rung + 1 - len(self._used)))
        seconds = times * self.ladder.cost(rung, trial)
        self._used[rung] += seconds
        if self.trials[trial].past_best:
            self._used_past_best += seconds

    def _release(self, trial: Trial) -> None:
        if self._finisher == trial:
            self._finisher = None

    def _fit(self, seconds: float, wall: float, first: float | None) -> Ladder:
        return fit(
            seconds=seconds, slots=self._slots, start_up=self._start_up, shortest=self._shortest,
            overhead=self._overhead, first=first, horizon=self._horizon, finish_share=self._finish_share, wall=wall,
            part=self._part,
        )  # fmt: skip

    def state(self) -> dict[str, Any]:
        """All that its events made of it, as plain data."""
        return {
            "ladder": [self.seconds, self.ladder.told()],
            "rungs": [self._used, self._used_past_best, self._finisher],
            "errors": dict(self._errors),
            "standings": {str(trial): vars(standing) for trial, standing in self.trials.items()},
        }
