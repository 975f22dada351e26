"""The ladder of one family: which rungs its share of a cap pays for, what each may use, what is kept for the end; and
the rules of the policy that trains trials by it.

A trial ends where its own life does (a recorded curve, a loop of fixed length), or, where it has none, with a last
segment on what is kept of the cap.
"""

import math
from dataclasses import asdict, dataclass, replace

from tune.recipe import LIFE_SHARE
from tune.reports import NATS, Metric

TRIALS_AT_600_SECONDS = 12
"""Most trials that rung 0 is planned for with 600 seconds of a slot; it grows with the square root of the seconds."""
START_UP_SHARE = 0.1
"""Largest share of the seconds that is planned for the start-up of slots beyond the first."""
SHORTEST_SHARE = 0.01
"""Rung 0 is never shorter than this share of what was asked for."""
FEWEST_TRIALS, LEAST_TRIALS = 6, 3
"""Rung 0 is shorter than asked for where fewer trials than the first number would fit otherwise, but shorter than
SETTLED_SHARE of that only where fewer than the second would."""
SETTLED_SHARE = 0.2
"""Share of a rung 0 of fifty steps that ten are: what fewer steps tell does not make up for more trials."""
RUNGS_IN_TIME = 2
"""Rungs that one trial has time for before what is kept for the last segment, where a deadline binds, or the wall clock
and trials have no life of their own: rung 0 is no longer, however many slots there are."""
CONFIRM_SHARE = 1 / 3
"""Share of what can be used of a cap that is kept to train the last two anew; what they do not use goes to the last
segment."""
CONFIRM_WALL = 0.25
"""Largest share of the wall clock for one such training: on many slots they would last longer than the last segment."""
WALL_CLOCK_MULTIPLE = 2.0
"""About how long a search that is not patient takes, in multiples of the time that all slots together take for the cap.
"""


def wall_clock(within: float, deadline: float, life: float, seconds: float) -> float:
    """Return the seconds in which a search uses so many of a slot, at most those to its deadline: `within`, which is
    WALL_CLOCK_MULTIPLE times what all slots take for them, or once that and a trial's own life (inf: it has none), if
    that is longer and they pay for a life. No number of slots makes a training shorter, and one that is cut off before
    its end is worth little."""
    return min(deadline, max(within, within / WALL_CLOCK_MULTIPLE + life if life <= seconds else 0.0))


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The ideas of the policy; the replay leaves each out to measure what it is worth.

    eta: a rung is so many times the training of the one below, and one trial in so many reaches it. last_share: share
    that is kept from the start for the leader's last segment; wall_share: the same of the wall clock, where that is too
    short for one slot to use all, and others try shapes at the same time; own_life_share: the same where trials have a
    life of their own, at most what such a life takes. law: final losses are predicted by a law of all trials; doubt:
    standard deviations that are added to a prediction, so that a trial of which little is known waits. fall_kept:
    before there is a law, a loss is expected to fall over a rung by this share of its fall over the one below, as on a
    power law (0: nothing is extrapolated). past_best: trials that got worse wait behind the others, and new ones begin
    where rung 1 makes most of them worse. narrow: slots without use are handed back. rush: where a deadline leaves
    device-seconds unused, others than the leader go on. least_gain: nats that the last second of a last segment must be
    expected to bring, by the law (0: none is cut short). front: trials are worth what they add to the front of size
    against loss, and points of it share what is kept for a last segment.
    """

    eta: float = 2.0
    last_share: float = LIFE_SHARE
    wall_share: float = LIFE_SHARE
    own_life_share: float = 0.6
    fall_kept: float = 2 / 3
    law: bool = True
    doubt: float = 1.0
    past_best: bool = True
    narrow: bool = True
    rush: bool = True
    least_gain: float = 0.0
    front: bool = False


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """The rungs 0 to `top` of a family, and what each may use of its `seconds`. All in seconds of a slot.

    first: training at rung 0; explore: for the rungs; kept: for the leader's way to its end, of which `last` is for a
    last segment alone; start_up: for slots to start; overhead: of a segment beside its training; life: training of a
    trial's own life (inf: it has none); eta, fall_kept: as in Rules; confirm: kept for each training of the last two
    with another seed; own: most that is kept, in the wall clock that there is, where trials turn out to have lives of
    their own; slots: that may explore at once; within, deadline: as in wall_clock, of a family with less than a slot of
    its own that part. The last four are also inf where the journal is of an earlier version, which does not tell them.
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
    own: float = math.inf
    slots: float = math.inf
    within: float = math.inf
    deadline: float = math.inf

    def to_json(self) -> dict[str, float]:
        """Return it as plain data; what is infinite is left out."""
        return {name: value for name, value in asdict(self).items() if math.isfinite(value)}

    def rung_seconds(self, rung: int) -> float:
        """Return the seconds that a trial has trained in all at a rung."""
        return min(self.life, self.first * self.eta**rung)

    @property
    def end(self) -> float:
        """Seconds that a trial has trained in all at its end."""
        return min(self.life, self.rung_seconds(self.top) + self.kept)

    def with_life(self, life: float, gap: float) -> "Ladder":
        """Return the ladder once it is known how many seconds of training a life lasts (inf: it has no end of its own),
        and in how many of them a trial reports: no rung is shorter than that, as nothing would be told there."""
        bare = replace(self, top=0, first=max(self.first, min(gap, life)))
        if math.isfinite(life):
            before, wall = (wall_clock(self.within, self.deadline, each, self.seconds) for each in (math.inf, life))
            own = self.kept if math.isinf(self.own) else self.own
            own *= min(self.seconds, wall) / min(self.seconds, before)
            kept = min(own, life + self.overhead)
            less = self.kept - kept + (wall - before if wall > before else 0.0)
            explore = self.explore + (self.slots * less if math.isfinite(self.slots) else less)
            explore = max(0.0, min(self.seconds - kept - self.start_up, explore))
            bare = replace(bare, life=life, kept=kept, last=0.0, explore=explore, own=own)
        return _grow(bare)

    def cost(self, rung: int) -> float:
        """Return the planned seconds of a segment from the rung below to this one."""
        return self.rung_seconds(rung) - (self.rung_seconds(rung - 1) if rung else 0.0) + self.overhead

    def training_multiple(self, rung: int, seconds: float) -> float:
        """Return how many times its training at a rung, which took so many seconds (0: not known), a trial has at its
        end."""
        if math.isfinite(self.life) or not seconds:
            return self.end / self.rung_seconds(rung)
        return 1 + max(0.0, self.end - self.rung_seconds(rung)) / seconds

    def falls(self, rung: int) -> float:
        """Return how many times its drop over a rung a loss is still expected to fall, to its end."""
        rungs = math.log(self.end / self.rung_seconds(rung), self.eta)
        return self.fall_kept * (1 - math.pow(self.fall_kept, max(0.0, rungs))) / (1 - self.fall_kept)

    @property
    def starts(self) -> float:
        """Number of trials that rung 0 can pay for."""
        return self.quotas[0] / self.cost(0)

    @property
    def quotas(self) -> list[float]:
        """Seconds that each rung may use."""
        weights = [self.cost(rung) / self.eta**rung for rung in range(self.top + 1)]
        return [self.explore * weight / sum(weights) for weight in weights]


@dataclass(frozen=True, kw_only=True)
class Frame:
    """What a family's ladder is fitted to, beside its part of the cap and the time for it. In seconds of a slot.

    slots: how many it may come to hold; shortest: training that rung 0 should have at least; overhead: of a segment
    beside its training; start_up: until a new slot trains; part: the family's part of all slots; life: as in Ladder;
    seeds: with which the last two are trained anew; metric: by which trials are compared.
    """

    slots: int
    shortest: float
    overhead: float
    start_up: float = 0.0
    part: float = 1.0
    life: float = math.inf
    rules: Rules = Rules()
    seeds: int = 0
    metric: Metric = NATS

    def fit(
        self, seconds: float, within: float = math.inf, deadline: float = math.inf, *, first: float | None = None
    ) -> Ladder:
        """Return the ladder for so many seconds of the cap. within, deadline: as in wall_clock, of which a family with
        less than a slot of its own has that part; first: training at rung 0 where that is fixed already."""
        whole, confirm, slots = seconds, 0.0, self.part * self.slots
        if slots < 1:
            within, deadline, slots = within * slots, deadline * slots, 1.0
        wall = wall_clock(within, deadline, self.life, seconds)
        binding = wall == deadline < math.inf
        if self.seeds:
            usable = min(seconds, slots * wall)
            confirm = min(CONFIRM_SHARE * usable / (2 * self.seeds), CONFIRM_WALL * wall)
            anew = 2 * self.seeds * confirm
            seconds, wall = seconds - anew, wall - anew / slots
        share = self.rules.wall_share if slots > 1 and wall < seconds else self.rules.last_share
        share = share if math.isinf(self.life) else self.rules.own_life_share
        kept = min(share * min(seconds, wall), self.life + self.overhead)
        coming_up = max(self.start_up, min(self.start_up * self.slots, START_UP_SHARE * seconds))
        explore = max(0.0, min(seconds - kept, slots * (wall - kept)) - coming_up)
        many, few = (explore / trials - self.overhead for trials in (FEWEST_TRIALS, LEAST_TRIALS))
        timed = binding or (math.isinf(self.life) and math.isfinite(wall))
        longest = (wall - kept - self.start_up) / RUNGS_IN_TIME - self.overhead if timed else math.inf
        least = min(longest, max(many, min(few, SETTLED_SHARE * self.shortest)))
        least = min(self.shortest, max(self.overhead, SHORTEST_SHARE * self.shortest, least))
        bare = Ladder(
            seconds=whole, first=first or least, top=0, explore=explore, kept=kept,
            last=kept if math.isinf(self.life) else 0.0, start_up=coming_up, overhead=self.overhead, life=self.life,
            eta=self.rules.eta, fall_kept=self.rules.fall_kept, confirm=confirm,
            own=self.rules.own_life_share * min(seconds, wall), slots=slots, within=within, deadline=deadline,
        )  # fmt: skip
        ladder = _grow(bare)
        most = TRIALS_AT_600_SECONDS * math.sqrt(seconds / 600.0)
        while first is None and ladder.first < min(self.life, longest) and ladder.starts > most:
            ladder = _grow(replace(bare, first=min(1.1 * ladder.first, longest)))
        return ladder


def _grow(ladder: Ladder) -> Ladder:
    """Return the ladder with as many rungs as lead to a life's end; without such an end, with as many as make sense for
    halving and as their quotas can pay for."""
    while ladder.rung_seconds(ladder.top) < ladder.life:
        taller = replace(ladder, top=ladder.top + 1)
        pays = taller.quotas[-1] >= taller.cost(taller.top)
        if math.isinf(ladder.life) and (not pays or taller.starts < ladder.eta**taller.top):
            break
        ladder = taller
    return ladder
