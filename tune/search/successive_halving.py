"""Successive halving of one family's trials under a cap: who starts, who goes on, who thaws, what is left for whom.

Pure: no clock, no randomness. What is decided follows from the events it was told, in their order. There is one mode:
a trial ends where its own life does (a recorded curve, a loop of fixed length), or, where it has none, with a last
segment on what is kept of the cap. Only the fitting of a ladder asks which.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

from tune.search.forecast import NO_PROGRESS, Forecast, Progress, Standing, Standings, expected_gain

TRIALS_AT_600_SECONDS = 12
"""How wide to start; with another cap, by the square root of it."""
START_UP_SHARE = 0.1
"""No plan gives more than this to the start-up of slots beyond the first."""
SHORTEST_SHARE = 0.01
"""Rung 0 is never shorter than this share of what was asked for."""
FEWEST_TRIALS = 3
"""Rung 0 is shorter than asked for where that many trials would not fit otherwise."""
LEAST_BESIDE = 0.5
"""Of the training that it had, what a last segment beside the leader's must bring, which is a decay: less makes nothing
of it."""
CONFIRM_SHARE = 1 / 3
"""Kept to train the last two anew, of what can be used of a cap; what that does not take goes to the last segment."""
CONFIRM_WALL = 0.25
"""Of the wall clock, no such training takes more: on many slots they would last longer than the last segment."""
WORTH = 1.5
"""Times what exploring costs the leader: so much it must be expected to gain, as it finds out only a part of it."""
ENOUGH = 1.01
"""A last segment that adds less than that to a training is none."""
TOO_LITTLE = "an hour more is expected to bring less than --stop-below-gain asks for"
ALIKE = 3
"""Where so many trials failed with one error before any reached a rung, all others would."""
VARYING = re.compile(r"0x[0-9a-f]+|\d+")
"""Of an error's text, what is another in each trial: shapes, addresses."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The ideas of the policy; the replay leaves each out to see what it is worth.

    eta: a rung is so many times the training of the one below, and takes one in so many of those below it. last_share:
    kept from the start for the leader's way to its end, no more than a life of its own takes. law: what trials would
    have at their ends is foretold by a law of all of them; doubt: and counts with so many standard deviations on top:
    one of which little is known waits. fall_kept: before there is one, a loss falls over a rung by
    so much of what it fell over the one below, as on a power law (0: nothing is extrapolated). gains: rungs that make
    trials worse lose their share. worth: more is explored only where it is expected to gain more than it costs the
    leader. past_best: trials that got worse wait behind the others. narrow: slots without use
    are handed back. rush: where a deadline leaves money idle, others than the leader go on. least_gain: nats that the
    last second of a last segment must be expected to bring, by the law (0: none is cut short).
    """

    eta: float = 2.0
    last_share: float = 0.6
    fall_kept: float = 0.75
    law: bool = True
    doubt: float = 1.0
    gains: bool = True
    worth: bool = True
    past_best: bool = True
    narrow: bool = True
    rush: bool = True
    least_gain: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """Rungs 0 to `top`, and what each may use of a family's `seconds`. All in seconds of a slot.

    first: training at rung 0; explore: for the rungs; kept: for the leader's way to its end, of which `last` is for a
    last segment alone; start_up: for slots to come up; overhead: of a segment beside its training; life: training of
    a trial's own life (inf: it has none); eta, fall_kept: as of Rules; confirm: kept for each training of the last two
    with another seed.
    """

    seconds: float
    first: float
    top: int
    explore: float
    kept: float
    last: float
    start_up: float
    overhead: float
    life: float = math.inf
    eta: float = Rules.eta
    fall_kept: float = Rules.fall_kept
    confirm: float = 0.0

    def told(self) -> dict[str, float]:
        """As plain data; a life without end is left out."""
        return {name: value for name, value in asdict(self).items() if math.isfinite(value)}

    def rung_seconds(self, rung: int) -> float:
        """Training of a trial's life at a rung."""
        return min(self.life, self.first * self.eta**rung)

    @property
    def end(self) -> float:
        """Training of a trial's life at its end."""
        return min(self.life, self.rung_seconds(self.top) + self.kept)

    def cost(self, rung: int) -> float:
        """Planned for a segment from the rung below."""
        return self.rung_seconds(rung) - (self.rung_seconds(rung - 1) if rung else 0.0) + self.overhead

    def ahead(self, rung: int, seconds: float) -> float:
        """How many times the training that it has at a rung, in so many seconds, a trial has at its end."""
        if math.isfinite(self.life) or not seconds:
            return self.end / self.rung_seconds(rung)
        return 1 + (self.end - self.rung_seconds(rung)) / seconds

    def falls(self, rung: int) -> float:
        """How many times its drop over a rung a loss is expected to fall still, to its end."""
        rungs = math.log(self.end / self.rung_seconds(rung), self.eta)
        return self.fall_kept * (1 - math.pow(self.fall_kept, max(0.0, rungs))) / (1 - self.fall_kept)

    @property
    def starts(self) -> float:
        """How many trials rung 0 can pay for."""
        return self.quotas([1.0] * (self.top + 1))[0] / self.cost(0)

    def quotas(self, gains: Sequence[float]) -> list[float]:
        """For each rung. gains[k]: the share of trials that rung k made better, 1 where unknown.

        A rung that makes trials worse is not worth its share, nor is any rung above it.
        """
        weights, gain = [], 1.0
        for rung in range(self.top + 1):
            gain *= gains[rung]
            weights.append(gain * self.cost(rung) / self.eta**rung)
        return [self.explore * weight / sum(weights) for weight in weights]


@dataclass(frozen=True, kw_only=True)
class Frame:
    """What a family's ladder is fitted to, beside its part of the cap and the time for it. In seconds of a slot.

    slots: how many it may come to hold; shortest: least training of rung 0 that makes sense; overhead: of a segment
    beside its training; start_up: before a new slot trains; part: the family's of all slots; life: as of Ladder; seeds:
    with which the last two are trained anew.
    """

    slots: int
    shortest: float
    overhead: float
    start_up: float = 0.0
    part: float = 1.0
    life: float = math.inf
    rules: Rules = Rules()
    seeds: int = 0

    def fit(self, seconds: float, wall: float = math.inf, first: float | None = None) -> Ladder:
        """The ladder for so many seconds of the cap, to be used in `wall` seconds. first: rung 0 is fixed already."""
        whole, confirm = seconds, 0.0
        if self.seeds:
            usable = min(seconds, self.part * self.slots * wall)
            confirm = min(CONFIRM_SHARE * usable / (2 * self.seeds), CONFIRM_WALL * wall)
            anew = 2 * self.seeds * confirm
            seconds, wall = seconds - anew, wall - anew / (self.part * self.slots)
        kept = min(self.rules.last_share * min(seconds, wall), self.life + self.overhead)
        coming_up = max(self.start_up, min(self.start_up * self.slots, START_UP_SHARE * seconds))
        explore = max(0.0, min(seconds - kept - coming_up, self.part * self.slots * (wall - kept) - coming_up))
        least = min(
            self.shortest, max(self.overhead, SHORTEST_SHARE * self.shortest, explore / FEWEST_TRIALS - self.overhead)
        )
        bare = Ladder(
            seconds=whole, first=first or least, top=0, explore=explore, kept=kept,
            last=kept if math.isinf(self.life) else 0.0, start_up=coming_up, overhead=self.overhead, life=self.life,
            eta=self.rules.eta, fall_kept=self.rules.fall_kept, confirm=confirm,
        )  # fmt: skip
        ladder = _grow(bare)
        most = TRIALS_AT_600_SECONDS * math.sqrt(seconds / 600.0)
        while first is None and ladder.first < self.life and ladder.starts > most:
            ladder = _grow(replace(bare, first=1.1 * ladder.first))
        return ladder


def _grow(ladder: Ladder) -> Ladder:
    """As many rungs as lead to a life's end; without one, as halving makes sense for and their quotas can pay."""
    while ladder.rung_seconds(ladder.top) < ladder.life:
        taller = replace(ladder, top=ladder.top + 1)
        pays = taller.quotas([1.0] * (taller.top + 1))[-1] >= taller.cost(taller.top)
        if math.isinf(ladder.life) and (not pays or taller.starts < ladder.eta**taller.top):
            break
        ladder = taller
    return ladder


@dataclass(frozen=True, kw_only=True)
class Left:
    """What a free slot finds: device-seconds neither spent nor reserved, slots, trials, seconds to the deadline, and
    those that trials on their way to a rung have reserved; new: what another trial is expected to have at its end."""

    seconds: float
    slots: int
    running: int
    wall: float = math.inf
    reserved: float = 0.0
    new: Callable[[], Forecast | None] = lambda: None


@dataclass(frozen=True)
class Start:
    """Begin a new trial and train it to rung 0."""

    reason: str


@dataclass(frozen=True)
class Promote:
    """Take a paused trial, however long it has waited, up to `rung`."""

    trial: str
    rung: int
    reason: str


@dataclass(frozen=True)
class Finish:
    """The last segment of a trial, its decay and all overhead included, in up to `seconds` of a slot.

    training: the seconds of training in all at which it ends; None: as far as that leads.
    """

    trial: str
    seconds: float
    reason: str
    training: float | None = None


@dataclass(frozen=True)
class Confirm:
    """Train the configuration of a trial anew, to an end of its own, in up to `seconds` of a slot, beside that of
    another one; number: of its seeds after the study's."""

    of: str
    other: str
    number: int
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


Move = Start | Promote | Finish | Confirm | HandBack | Wait


class SuccessiveHalving:
    """One family's trials, and which of them its device-seconds go to.

    price(trial, rung): expected seconds of a slot, overhead included, to bring a trial (None: a new one) from where it
    is to a rung; more: whether there are configurations left to start.
    """

    def __init__(self, frame: Frame, ladder: Ladder, price: Callable[[str | None, int], float]) -> None:
        self._frame, self.ladder, self._price, self.more = frame, ladder, price, True
        self._used = [0.0] * (ladder.top + 1)
        self._rules = frame.rules
        self._standings = Standings(
            lambda rung: self.ladder.falls(rung), lambda rung, seconds: self.ladder.ahead(rung, seconds),
            rises=frame.rules.past_best, law=frame.rules.law, doubt=frame.rules.doubt,
        )  # fmt: skip
        self._finisher: str | None = None
        self._ends: dict[str, float] = {}
        """Training of trials that had their decay, in seconds of their lives."""
        self._errors: Counter[str] = Counter()

    @property
    def hopeless(self) -> bool:
        """So many trials failed with one error, and none reached a rung, that there is no use in another."""
        alike = max(self._errors.values(), default=0)
        return alike >= ALIKE and not any(standing.losses for standing in self.trials.values())

    @property
    def trials(self) -> dict[str, Standing]:
        """Where each trial stands."""
        return self._standings.trials

    def rung_seconds(self, rung: int) -> float:
        """Training seconds of a trial's life at a rung."""
        return self.ladder.rung_seconds(rung)

    def outlook(self, size: float, speed: float) -> Forecast | None:
        """What a new trial is expected to have at its end that trains on so many tokens a second; None: too little is
        known, or its end is one of its own."""
        return None if math.isfinite(self.ladder.life) else self._standings.outlook(size, self.ladder.end * speed)

    def foretold(self, trial: str, tokens: float) -> Forecast | None:
        """As Standings has it."""
        return self._standings.foretold(trial, tokens)

    def enough(self, trial: str, seconds: float = math.inf) -> float | None:
        """The training in all from which on a second more brings a trial too little; None where a last segment of so
        many seconds does not get there, no gain is asked for, or there is no law."""
        most = self.trials[trial].progress.seconds + min(seconds, 2 * self.ladder.seconds)
        gain = self._rules.least_gain
        enough = self._standings.enough(trial, gain, most) if gain else most
        return enough if enough < most else None

    # --- events

    def promoted(self, trial: str, rung: int, seconds: float) -> None:
        """A trial is on its way to a rung, for so many seconds of a slot; to tell it again changes nothing."""
        if self._standings.depart(trial, rung):
            self.trials[trial].price = seconds
            self._use(rung, seconds)

    def finishing(self, trial: str) -> None:
        """A trial is in its last segment; to tell it again changes nothing."""
        self._standings.depart(trial, None)
        self._finisher = trial if self._finisher is None else self._finisher

    def confirming(self, trial: str, of: str) -> None:
        """A trial trains the configuration of another one anew; to tell it again changes nothing."""
        self._standings.depart(trial, None)

    def reported(
        self, trial: str, rung: int, loss: float, *, telling: bool = True, progress: Progress = NO_PROGRESS
    ) -> None:
        """A trial reached a rung and waits there, or is at its end. One whose loss is not finite has diverged.

        telling: its drop over the last rung tells how it will go on; not so within a warm-up of the learning rate.
        """
        self._standings.record(trial, rung, loss, telling=telling, progress=progress)
        if self.ladder.rung_seconds(rung) >= self.ladder.life:
            self._standings.close(trial, "finished")

    def interrupted(self, trial: str) -> None:
        """A segment ended before its goal: the trial waits where it was."""
        standing = self.trials[trial]
        if standing.goal is not None:
            self._use(standing.goal, -standing.price)
        self._standings.pause(trial)
        self._release(trial)

    def finished(self, trial: str, training: float = 0.0) -> None:
        """A trial is at its end, after so many seconds of training."""
        self._ends[trial] = training
        self._standings.close(trial, "finished")
        if math.isfinite(self.ladder.life):
            self._release(trial)

    def ended(self, trial: str, reason: str) -> None:
        """A trial is over: diverged, memory, price, error."""
        self._standings.close(trial, "ended")
        self._release(trial)
        if reason.startswith("error"):
            self._errors[VARYING.sub("#", reason)] += 1

    def refitted(self, seconds: float, wall: float = math.inf) -> Ladder:
        """The ladder on which the rungs stay as they are, for another share of the cap or another deadline."""
        rules = replace(self._frame.rules, eta=self.ladder.eta, fall_kept=self.ladder.fall_kept)
        return replace(self._frame, rules=rules).fit(seconds, wall, self.ladder.first)

    def refit(self, ladder: Ladder) -> None:
        """The family's share or the deadline changed, and with it the ladder.

        A trial at its end may go on, from before its decay.
        """
        self.ladder, self._finisher = ladder, None
        self._use(ladder.top, 0.0)
        for standing in self.trials.values():
            if standing.state == "finished":
                standing.state = "paused"
        self._standings.again()

    # --- decisions

    def decide(self, left: Left) -> Move:
        """What a free slot should do. Nothing counts as done before it is told."""
        if self.hopeless:
            return HandBack(f"{ALIKE} trials failed with one error, and none reached a rung")
        move: Move = HandBack("the leader has its last segment")
        if self._finisher is not None and self.trials[self._finisher].state == "finished":
            end = self.enough(self._finisher)
            if end is None or end > ENOUGH * self._ends.get(self._finisher, 0.0):
                return move
            return HandBack(f"{move.reason}, and {left.seconds:.0f} s are left: {TOO_LITTLE}")
        if self._finisher is None:
            move = self._explore(left)
            if not isinstance(move, HandBack | Wait):
                return move
        if left.running == 0 or self._money_lies_idle(left):
            return self._lead(left)
        return move if self._rules.narrow else Wait(move.reason)

    def _explore(self, left: Left) -> Move:
        """Serve the lowest rung below its quota that has someone to serve."""
        free = self._free(left)
        gains = [self._standings.gain(rung) if self._rules.gains else 1.0 for rung in range(self.ladder.top + 1)]
        quotas = self.ladder.quotas(gains)
        for rung, (quota, used) in enumerate(zip(quotas, self._used, strict=False)):
            room = quota - used
            if room <= 0:
                continue
            if rung == 0:
                if self._affords_another(free) and self._is_worth(None, left):
                    return Start(f"of {quota:.0f} s for rung 0, {used:.0f} are used")
                continue
            trial, flying = self._standings.first(rung - 1), self._standings.flying(rung - 1)
            places = math.ceil(room / (self.ladder.cost(rung) if trial is None else self._price(trial, rung)))
            if trial is not None and places > flying:
                if self._price(trial, rung) <= free and self._is_worth(trial, left):
                    return Promote(trial, rung, self._place(trial))
            elif flying and left.running:
                if left.running < places:
                    return Wait(f"rung {rung - 1} is not complete")
                return HandBack(f"rung {rung} has room for {places} more, and {left.running} run")
        return HandBack("what runs needs no other slot")

    def _lead(self, left: Left) -> Move:
        """Nothing is left to explore: the leader goes on, or beside trials that run the best of those that wait."""
        seconds, beside = min(left.seconds, left.wall), left.running > 0
        room = self._free(left) if self._finisher is None else 0.0
        trial, risen = self._standings.leader(), self._standings.leader(past_best=True)
        if trial is None and self._affords_another(room if beside or risen else seconds):
            return Start("no other trial can go on")
        trial = trial or risen
        least = self.ladder.overhead + (self.ladder.first if beside else 0.0)
        if beside and trial is not None and math.isinf(self.ladder.life):
            least += LEAST_BESIDE * self.ladder.rung_seconds(self.trials[trial].rung)
        if trial is None or seconds <= least:
            return HandBack("no trial can go on" if trial is None else "nothing is left")
        last = self._last(trial, seconds, least)
        if isinstance(last, HandBack):
            return last
        rung = self.trials[trial].rung + 1
        if rung <= self.ladder.top and self._price(trial, rung) <= room:
            return Promote(trial, rung, "leads, and its rung's share is used")
        if self._finisher is not None:
            return replace(last, reason="is next, and the deadline leaves the slot nothing else to do")
        return last

    def _last(self, trial: str, seconds: float, least: float) -> Finish | HandBack:
        """The last segment of a trial that leads, in up to so many seconds, if it is to have `least` or more."""
        end = self.enough(trial, seconds - self.ladder.overhead)
        if end is None:
            blind = self._rules.least_gain and not self.foretold(trial, 1.0)
            why = ": no law tells what an hour brings" if blind else ""
            return Finish(trial, seconds, f"leads, and gets what is left{why}")
        had = max(self.trials[trial].progress.seconds, self._ends.get(trial, 0.0))
        price = end - had + self.ladder.overhead
        if price <= least or end <= ENOUGH * had:
            return HandBack(f"{seconds:.0f} s are left: {TOO_LITTLE}")
        return Finish(trial, price, f"leads, and gets {price:.0f} s of {seconds:.0f}: then {TOO_LITTLE}", end)

    def _is_worth(self, trial: str | None, left: Left) -> bool:
        """Whether a trial (None: a new one) on its way to the top rung is expected to make the best better by more than
        the leader, which would have these seconds, becomes by them. Where no law tells, it is."""
        leader = self._standings.leader()
        if not self._rules.worth or leader in (None, trial) or math.isfinite(self.ladder.life):
            return True
        assert leader is not None
        less = left.seconds - self._price(trial, self.ladder.top)
        longer, shorter = (self._standings.after(leader, min(each, left.wall)) for each in (left.seconds, less))
        other = left.new() if trial is None else self._standings.after(trial, min(less, left.wall))
        if longer is None or shorter is None or other is None:
            return True
        return expected_gain(shorter, other) > WORTH * (shorter[0] - longer[0])

    def _free(self, left: Left) -> float:
        """Seconds of a slot that rungs may use: what is kept for a last segment is not for them."""
        return min(left.seconds, left.wall) - self.ladder.last

    def _money_lies_idle(self, left: Left) -> bool:
        """Before a deadline: the trials that climb cannot spend what is left. A last segment has its part already."""
        return (
            self._rules.rush
            and math.isfinite(left.wall)
            and left.seconds + left.reserved > self._standings.climbing * left.wall
        )

    def _affords_another(self, seconds: float) -> bool:
        return self.more and self._price(None, 0) <= seconds

    def _place(self, trial: str) -> str:
        standing = self.trials[trial]
        loss, (expected, _) = standing.losses[standing.rung], self._standings.expected(trial)
        at_its_end = f", {expected:.3f} expected at its end" if expected != loss else ""
        return f"best of those that wait at rung {standing.rung}: loss {loss:.3f}{at_its_end}"

    def _use(self, rung: int, seconds: float) -> None:
        self._used.extend([0.0] * (rung + 1 - len(self._used)))
        self._used[rung] += seconds

    def _release(self, trial: str) -> None:
        if self._finisher == trial:
            self._finisher = None

    def state(self) -> dict[str, object]:
        """All that its events made of it, as plain data."""
        return {
            "ladder": self.ladder.told(),
            "rungs": [self._used, self._finisher],
            "errors": dict(self._errors),
            "standings": {trial: standing.told() for trial, standing in self.trials.items()},
        }
