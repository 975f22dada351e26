"""One family in a study: its trials, its share of the cap, its policy, its cost model and its memory model; and the
slots and the lengths of leases that the engine counts with.
"""

import math
import statistics
from bisect import bisect_left, insort
from collections.abc import Callable, Sized
from dataclasses import dataclass, field
from typing import Protocol

from tune.reports import LEASE_RESERVE_FACTOR, Report
from tune.search.forecast import NO_PROGRESS, Progress
from tune.search.memory_model import MemoryModel
from tune.search.policy import BudgetLeft, Confirm, Move, Policy
from tune.search_space import LARGEST_SEED, Config
from tune.store.accounting import UNITS_PER_SECOND, Accounting, ExactSum, RunningLease

MOST_REFUSALS = 50
"""Number of configurations in a row that do not fit in memory after which a family starts no more."""

MARGIN, SLACK_SECONDS = 2.0, 3.0
"""Factor and seconds of a lease over its price, where the cap allows: neither a noisy neighbour nor the first, slow
steps of a new shape may cut a segment short. What is not used is released."""
DECODING_SHARE = 0.01
"""Largest share of a last segment that is left for its winner to decode with."""
CONFIRM_TRAINING = 0.75
"""Share of the seconds of a last comparison's training, less those that open and close it, that its steps are planned
to take: they may be slower than they were."""
CONFIRM_LEAST = 1 / 3
"""Least share of all seconds of such a training for its steps: where the closing does not fit beside them, it is left
out."""
WARM_UPS_BEFORE_A_FALL_TELLS = 2.0
"""Number of warm-ups of the learning rate before a fall of the loss tells how a trial will go on: with the rate's
warm-up it falls steeply, for slow trials most of all. Counted in steps of the family's first trial, so that all at a
rung are compared in the same way."""

FIRST_OVERHEAD_SECONDS = 1.5
"""Expected overhead of a segment until the first one was paid: loading, hand-over, evaluation and checkpoint."""
FIRST_START_UP_SECONDS = 6.0
"""Expected start-up of a slot until the first one came up: the process, its imports, its first batch."""


@dataclass(kw_only=True)
class TrialRecord:
    """The training of one configuration, as far as it has come.

    step_seconds: median seconds of a step by which its rungs were fixed, None before that; goal: steps of its life that
    its last lease was for, None where only seconds counted; deaths: how often its process died; micro_batches: into how
    many parts its batches were cut, None before it ran; confirms: the trial whose configuration it trains anew. Of a
    user's loop, gap: the longest seconds between two of its reports so far, or of a lease without one (0: no report).
    """

    family: str
    config: Config
    steps: int = 0
    step_seconds: float | None = None
    checkpoint: str | None = None
    goal: int | None = None
    deaths: int = 0
    micro_batches: int | None = None
    confirms: str | None = None
    gap: float = 0.0

    def begin_at(self, newest: tuple[str, int] | None) -> None:
        """Begin the next segment at the newest sound checkpoint, its path and steps; None: there is none, whatever the
        journal says, and the trial begins anew."""
        self.checkpoint, self.steps = newest or (None, 0)


class CostModel:
    """What segments of one family cost, in seconds of a slot.

    A segment costs its training (the ladder says how long) and an overhead: loading, evaluation, checkpoint. A trial's
    own last overhead is the best guess of its next; for a new trial it is the median of the others' last ones.
    overhead, start_up: what is expected of a segment and of a slot until the first was paid.
    """

    def __init__(self, overhead: float = FIRST_OVERHEAD_SECONDS, start_up: float = FIRST_START_UP_SECONDS) -> None:
        self._first = overhead, start_up
        self._overheads: dict[str, float] = {}
        self._in_order: list[float] = []
        self._slowdowns: dict[str, float] = {}
        self._start_ups: list[float] = []

    def learn(self, run: RunningLease, *, slowdown: float, aside: float = 0.0) -> None:
        """Learn from what a lease was charged. slowdown: its seconds a step over those by which the trial's rungs were
        fixed; aside: seconds of it that another such segment will not have, as those that only a trial's last segment
        has."""
        trial, start_up = run.assignment.trial, 0.0
        if run.fresh_slot:
            start_up = run.charged.get("start", 0.0)
            self._start_ups.append(start_up)
        if trial in self._overheads:
            del self._in_order[bisect_left(self._in_order, self._overheads[trial])]
        self._overheads[trial] = sum(run.charged.values()) - run.charged.get("steps", 0.0) - start_up - aside
        insort(self._in_order, self._overheads[trial])
        self._slowdowns[trial] = slowdown

    def reset(self) -> None:
        """Forget what was learned, here or in earlier studies: it was of another processor."""
        self._first = FIRST_OVERHEAD_SECONDS, FIRST_START_UP_SECONDS
        for known in (self._overheads, self._in_order, self._slowdowns, self._start_ups):
            known.clear()

    def state(self) -> list[object]:
        """Return all that was learned, as plain data."""
        return [self._overheads, self._slowdowns, self._start_ups]

    @property
    def start_up(self) -> float:
        """Expected seconds until a new slot trains."""
        return statistics.median(self._start_ups) if self._start_ups else self._first[1]

    def segment(self, trial: str | None, training_seconds: float) -> float:
        """Return the expected seconds of a segment that trains a trial (None: a new one) for so many more."""
        return training_seconds * self._slowdowns.get(trial or "", 1.0) + self._overhead(trial)

    def _overhead(self, trial: str | None) -> float:
        if trial in self._overheads:
            return self._overheads[trial]
        known = self._in_order
        return (known[(len(known) - 1) // 2] + known[len(known) // 2]) / 2 if known else self._first[0]


class Suggestions(Protocol):
    """Source of a family's new configurations. What a subclass leaves out is as of one that has none."""

    @property
    def has_more(self) -> bool:
        """Whether there is a configuration that was not tried yet."""
        return False

    def suggest(self, trial: str) -> Config:
        """Return such a configuration, for this trial."""
        raise AssertionError("there is none")

    def note_tried(self, trial: str, config: Config) -> None:
        """Note that a trial was given a configuration, now or in an earlier run."""
        return

    def tell(self, trial: str, rung: int, loss: float | None, progress: Progress = NO_PROGRESS) -> None:
        """Learn the loss of a trial at a rung, and its progress there; None: it failed on the way there."""
        return


@dataclass(kw_only=True)
class Family:
    """One family's part of a study: its share of the cap in seconds of a slot, its policy, and what is known of it.

    charged: seconds of its closed leases; leases: seconds of those in use, by trial; rungs_until: when those of them
    that are for a rung end; equal_tokens: rungs are equal in tokens, not in device-seconds; step_seconds: the step time
    that then turns their seconds into steps for all trials; mean_step_seconds: of its trials, of which `timed` count;
    life_steps: of a trial's own life (inf: it has none); refusals: configurations in a row that do not fit in memory;
    warm_up_steps: over which the learning rate of its trials rises; whole: a training goes on only where what is left
    pays for it to its end; margin: factor of its leases over their prices; guess(trial): expected seconds a step of a
    trial that made none, 0: not known; decoding(step_seconds): seconds of a slot that its winner needs to decode for a
    start; closing(step_seconds): seconds of a slot to measure a trial at its end; seed: of its trials. Of a user's
    loop, first_lease: seconds in which a trial is to report once, until one did; gap: the longest between two reports
    so far.
    """

    seconds: float
    policy: Policy
    cost_model: CostModel
    suggestions: Suggestions
    memory: MemoryModel = field(default_factory=MemoryModel)
    charged: float = 0.0
    leases: ExactSum[str] = field(default_factory=ExactSum)
    rungs_until: ExactSum[str] = field(default_factory=ExactSum)
    refusals: int = 0
    equal_tokens: bool = False
    step_seconds: float | None = None
    timed: int = 0
    mean_step_seconds: float = 0.0
    life_steps: float = math.inf
    warm_up_steps: int = 0
    whole: bool = False
    margin: float = MARGIN
    guess: Callable[[str], float] = lambda trial: 0.0
    decoding: Callable[[float], float] = lambda step_seconds: 0.0
    closing: Callable[[float], float] = lambda step_seconds: 0.0
    seed: int = 0
    first_lease: float = 0.0
    gap: float = 0.0

    @property
    def seconds_used(self) -> float:
        """Seconds of a slot that it was charged, and those that its leases may still use."""
        return self.charged + self.leases.beyond(0.0) / UNITS_PER_SECOND

    @property
    def life_seconds(self) -> float:
        """Seconds of training of a trial's own life, at the mean step time; inf: none is known to have one."""
        return self.life_steps * (self.mean_step_seconds or self.step_seconds or math.inf)

    def seconds_left(
        self, accounting: Accounting, slots: int, wall: float, *, left_over: float = 0.0, binding: bool = False
    ) -> BudgetLeft:
        """Return what it may still use: its own share, and what others left over."""
        start_up = 0.0 if accounting.idle_slots else self.cost_model.start_up
        return BudgetLeft(
            seconds=min(self.seconds - self.seconds_used + left_over, accounting.affordable) - start_up,
            slots=slots, running=len(self.leases), wall=wall,
            reserved=self.rungs_until.beyond(accounting.clock()) / UNITS_PER_SECOND, binding=binding,
        )  # fmt: skip

    def steps_at(self, record: TrialRecord | None, rung: int) -> int | None:
        """Return the steps of a trial's life (None: a new one's) at a rung; None while no step time is known, and for a
        new one where rungs are equal in device-seconds."""
        own = record.step_seconds if record else None
        step_seconds = self.step_seconds if self.equal_tokens else own
        if step_seconds is None:
            return None
        steps = self.policy.rung_seconds(rung) / step_seconds
        return round(min(steps, self.life_steps))

    def goal_steps(self, record: TrialRecord, rung: int | None, end: float | None = None) -> int | None:
        """Return the steps of a trial's life at the end of a segment; None where only seconds count, as in a last one
        (rung None) without an `end`, in seconds of training."""
        steps = None if rung is None else self.steps_at(record, rung)
        if end is not None and record.step_seconds:
            steps = round(end / record.step_seconds)
        return None if steps is None else max(record.steps + 1, steps)

    def confirming_record(self, move: Confirm, record: TrialRecord, other: TrialRecord) -> TrialRecord:
        """Return the record of a trial with the configuration of another and a new seed; where rungs are equal in
        tokens, for no more steps than the second trial of the comparison has time for."""
        alike = (record, other) if self.equal_tokens else (record,)
        steps = min(self._steps_in(move.seconds, each) for each in alike)
        seed = (self.seed + move.number) % (LARGEST_SEED + 1)
        return TrialRecord(
            family=record.family, config=record.config | {"seed": seed}, goal=steps,
            micro_batches=record.micro_batches, confirms=move.of,
        )  # fmt: skip

    def _steps_in(self, seconds: float, record: TrialRecord) -> int:
        """Return the steps of a whole training in so many seconds; the same however often it is asked."""
        step = record.step_seconds or self.step_seconds or seconds
        training = CONFIRM_TRAINING * (seconds - self.policy.ladder.overhead - self.closing(step))
        return max(1, int(max(training, CONFIRM_LEAST * seconds) / step))

    def price(self, trial: str | None, record: TrialRecord | None, rung: int) -> float:
        """Return the expected seconds of a slot to bring a trial (None: a new one) from where it is to a rung.

        Where rungs are equal in tokens, a trial without a step time is expected to have the mean of the others.
        """
        seconds = self.policy.rung_seconds(rung)
        if (steps := self.steps_at(record, rung)) is not None:
            made, step_seconds = (record.steps, record.step_seconds) if record else (0, None)
            seconds = max(1, steps - made) * (step_seconds or self.mean_step_seconds or self.step_seconds or 0.0)
        return max(self.cost_model.segment(trial, max(0.0, seconds)), self.least_seconds(trial, record))

    def time(self, step_seconds: float) -> None:
        """Add a trial's step time to the mean."""
        self.timed += 1
        self.mean_step_seconds += (step_seconds - self.mean_step_seconds) / self.timed

    def least_seconds(self, trial: str | None, record: TrialRecord | None) -> float:
        """Return the seconds of a slot in which a trial comes to a report; a shorter lease would be lost. 0: it reports
        steadily."""
        gap = record.gap if record else 0.0
        return self.cost_model.segment(trial, LEASE_RESERVE_FACTOR * gap) if gap else 0.0

    @property
    def longest_silence(self) -> float:
        """Seconds of a lease without a report after which a loop that had reported before hangs: twice as many as a new
        trial has on a new slot for its first, as restoring may take long."""
        return 2 * (SLOWER * self.gap + START_UP_MARGIN * self.cost_model.start_up)

    def seconds_to_reserve(self, record: TrialRecord, price: float, most: float) -> float:
        """Return the seconds to reserve for a segment of this price; where its loop never reported, at least what a
        first report may take, up to half of `most`: a loop that hangs leaves as much to the next."""
        seconds = with_margin(max(price, self.gap), self.margin) + LEASE_RESERVE_FACTOR * self.gap
        first = SLOWER * self.gap or self.first_lease
        return max(seconds, min(first, most / 2)) if record.step_seconds is None else seconds

    def last_segment(self, record: TrialRecord, seconds: float) -> float:
        """Return how many of so many seconds a last segment gets, so that its trial, should it win, can decode."""
        return seconds - min(DECODING_SHARE * seconds, self.decoding(record.step_seconds or 0.0))

    def learn_memory(self, accounting: Accounting, run: RunningLease, report: Report) -> int:
        """Learn with how many parts memory ran out on a lease, and at its end, unless it ran out then, what the trial
        took.

        Returns into how many parts the trial's batches are cut now.
        """
        while run.micro_batches < report.micro_batches:
            self._note_memory(accounting, run, run.micro_batches, None)
            run.micro_batches *= 2
        if report.ended and not report.ran_out:
            self._note_memory(accounting, run, report.micro_batches, report.limited_bytes)
        return report.micro_batches

    def learn_never_fits(self, accounting: Accounting, run: RunningLease) -> int:
        """Learn that a trial ran out of memory where smaller parts did not help or would not have.

        Returns into how many parts its batches would have to be cut: more than are of use.
        """
        most = self.memory.most(run.assignment.config)
        self._note_memory(accounting, run, most, None)
        return 2 * most

    def _note_memory(self, accounting: Accounting, run: RunningLease, micro_batches: int, measured: int | None) -> None:
        config = run.assignment.config
        predicted = self.memory.predicted(config, micro_batches)
        accounting.note_memory(run.assignment, micro_batches, predicted, measured, self.memory.limit)
        self.memory.learn(config, micro_batches, measured)

    def note_rung(self, trial: str, rung: int, loss: float, progress: Progress) -> None:
        """Tell the policy and the suggestions that a trial waits at a rung."""
        warm_up_seconds = self.warm_up_steps * (self.step_seconds or 0.0)
        telling = self.policy.rung_seconds(rung - 1) >= WARM_UPS_BEFORE_A_FALL_TELLS * warm_up_seconds
        self.policy.on_reported(trial, rung, loss, telling=telling, progress=progress)
        self.suggestions.tell(trial, rung, loss, progress)

    def decide(self, left: BudgetLeft) -> Move:
        """Return what a free slot should do for it. Where no configuration is left, no new trial begins."""
        if self.refusals >= MOST_REFUSALS or not self.suggestions.has_more:
            self.policy.has_more = False
        return self.policy.decide(left)

    def state(self) -> dict[str, object]:
        """Return all that its events made of it, as plain data; what was suggested follows from that."""
        account = [self.charged, self.refusals, self.step_seconds, *([self.gap] if self.gap else [])]
        return self.policy.state() | {
            "prices": self.cost_model.state(), "memory": self.memory.state(), "account": account
        }  # fmt: skip


SLOWER = 10.0
"""How many times the longest time between two reports so far a new trial may take for its first: it may be a larger
model."""
START_UP_MARGIN = 4.0
"""How many times its expected seconds the start-up of a slot may take: a busy machine can make it much longer."""


def with_margin(price: float, margin: float = MARGIN) -> float:
    """Return the seconds to reserve for a segment of this price."""
    return price * margin + SLACK_SECONDS


def with_start_up(seconds: float, start_up: float, even_share: float) -> float:
    """Return the seconds to reserve for a slot that must start first.

    The margin of the start-up may not take more than the slot's even share of what is left: the next slot could not
    start.
    """
    return max(seconds + start_up, min(seconds + START_UP_MARGIN * start_up, even_share))


class Slots:
    """The slots of a search. most: how many trials may run at once; there(): names of the slots that there are just
    now, where machines may be lost."""

    def __init__(
        self, most: int, slots_there: Callable[[], frozenset[str]] | None, running: Sized, accounting: Accounting
    ) -> None:
        whole = frozenset(map(str, range(most)))
        self.most, self.there = most, slots_there or (lambda: whole)
        self._running, self._accounting = running, accounting
        self._handed_back = 0

    @property
    def count_kept(self) -> int:
        """Number of slots that were not handed back for good."""
        return self.most - self._handed_back

    @property
    def count_free(self) -> int:
        """Number of slots that can take work: those held and idle, and those not opened yet."""
        if self.count_kept <= len(self._running):  # then no machine is asked, which takes a while on a cluster
            return 0
        return max(0, self._count_in_use() - len(self._running))

    @property
    def has_lost_idle(self) -> bool:
        """Whether a slot is held idle whose machine is gone."""
        idle = self._accounting.idle_slots
        return idle > 0 and idle + len(self._running) > self._count_in_use()

    @property
    def all_gone(self) -> bool:
        """Whether nothing runs, and every slot was handed back or is lost."""
        return not self._running and self._count_in_use() <= 0

    def hand_back(self) -> bool:
        """Give up a free slot for good: an idle one, else one that was never opened. Returns whether it was open."""
        self._handed_back += 1
        held = self._accounting.idle_slots > 0
        if held:
            self._accounting.hand_back()
        return held

    def _count_in_use(self) -> int:
        """Return the number of slots that were not handed back for good and are there."""
        return min(self.count_kept, len(self.there()))
