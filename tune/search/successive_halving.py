"""Successive halving of one family's trials under a cap: which start, go on or thaw, and what is left for each.

Pure: no clock, no randomness. What is decided follows from the events it was told, in their order.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

from tune.reports import LEASE_RESERVE_FACTOR, TIE
from tune.search.forecast import NO_FAVOUR, NO_PROGRESS, Favour, Progress, Standings
from tune.search.front import Forecast, expected_gain
from tune.search.ladder import Frame, Ladder
from tune.search.policy import BudgetLeft, Finish, HandBack, Move, Policy, Promote, Start, Wait
from tune.units import duration_text

LEAST_BESIDE = 0.5
"""Least training in a last segment beside the leader's, as a share of what its trial had: that is a decay, and a
shorter one gains nothing."""
LEADERS = 2
"""Number of leaders that have a slot each before others explore on, where a deadline leaves device-seconds unused."""
CLIMB = 1 / 8
"""Share of the seconds of a last segment that the leader's next rung may take, before it is asked again which trial
leads: little is known of one that was seen on few tokens, and what it trains on its way is not lost. On four tables .08
to .3 come to the same (docs/log.md, day 26)."""
ENOUGH = 1.01
"""Factor by which a last segment must lengthen a training to be worth it."""
NO_TRIAL, BEFORE_DEADLINE = "no trial can go on", "before the deadline"
PAYS_NO_MORE = "what is left pays for nothing more"
NO_LONGER = "would train no longer than it has"
TOO_LITTLE = "an hour more is expected to bring less than --stop-below-gain asks for"
PAST_BEST = f"trials are past their best, and with what is left none is expected to gain {TIE:g} nats"
SAME_ERRORS_TO_GIVE_UP = 3
"""Number of trials that fail with one error, before any reached a rung, at which all others are expected to fail too.
"""
DIVERGED_TO_GIVE_UP = 20
"""The same of trials that diverge, for each slot: of a space with few good learning rates most may, and of many slots
so many do before any other can reach a rung."""
HOPELESS = (
    f"{SAME_ERRORS_TO_GIVE_UP} trials failed with one error, or {DIVERGED_TO_GIVE_UP} diverged on each slot, "
    "and none reached a rung in this run"
)
DIVERGED = "diverged"  # as it begins the reason of such a trial's end
VARYING_ERROR_PARTS = re.compile(r"0x[0-9a-f]+|\d+")
"""The parts of an error's text that differ between trials: shapes, addresses."""


class SuccessiveHalving(Policy):
    """The policy of one family: which of its trials its device-seconds go to.

    price(trial, rung): expected seconds of a slot, overhead included, to bring a trial (None: a new one) from where it
    is to a rung; favour(trial): as in Standings.
    """

    shared_failures: tuple[str, ...] = ("error", DIVERGED)
    """Beginnings of the reasons for a trial's end by which it may be expected that all others end like it."""

    def __init__(
        self, frame: Frame, ladder: Ladder, price: Callable[[str | None, int], float],
        favour: Callable[[str], Favour] = lambda trial: NO_FAVOUR,
    ) -> None:  # fmt: skip
        self._frame, self.ladder, self._price, self.has_more = frame, ladder, price, True
        self._used = [0.0] * (ladder.top + 1)
        self._rules = frame.rules
        self.standings = Standings(
            lambda rung: self.ladder.falls(rung),
            lambda rung, seconds: self.ladder.training_multiple(rung, seconds),
            frame.rules, metric=frame.metric, favour=favour,
        )  # fmt: skip
        self.trials = self.standings.trials
        self._finisher: str | None = None
        self._ends: dict[str, float] = {}
        """By trial that had its decay, its seconds of training in all."""
        self._beside: dict[str, float] = {}
        """Seconds that their last segments took beside the training."""
        self._begin: Mapping[str, float] = {}
        """By trial, its seconds of training when this run began."""
        self._errors: Counter[str] = Counter()
        self._errors_before: Counter[str] = Counter()
        self._heard = False
        """Whether a trial reached a rung or its end in this run; `_errors_before` are those of earlier runs."""
        self._cut_short: dict[str, None] = {}
        """Trials that wait and reached no rung yet, in their order."""
        self._refitted = False
        """Whether the cap has changed, so that the rungs' quotas are not those by which some of them were used."""
        self._returned: list[str] = []
        """Trials that ended by themselves."""

    @property
    def past_best(self) -> bool:
        """Whether any trial is past its best: then the law tells nothing of the ends of the others."""
        return bool(self.standings.turned)

    @property
    def is_hopeless(self) -> bool:
        """Whether in this run so many trials failed with one error or diverged, and none reached a rung, that there is
        no use in another."""
        new = self._errors - self._errors_before
        diverged = new.pop(DIVERGED, 0)
        failed = max(new.values(), default=0)
        enough = DIVERGED_TO_GIVE_UP * (1 + self.standings.in_flight.total())
        return not self._heard and (failed >= SAME_ERRORS_TO_GIVE_UP or diverged >= enough)

    @property
    def last_segment(self) -> float:
        return self.ladder.last

    def rung_seconds(self, rung: int) -> float:
        return self.ladder.rung_seconds(rung)

    def outlook(self, size: float, speed: float) -> Forecast | None:
        """Return what a new trial that trains on so many tokens a second is expected to have at its end; None: too
        little is known, trials have ends of their own, or some are past their best."""
        by_law = math.isinf(self.ladder.life) and not self.past_best
        return self.standings.forecast_new(size, self.ladder.end * speed) if by_law else None

    def enough_seconds(self, trial: str, seconds: float = math.inf) -> float | None:
        """Return the seconds of training in all from which on one more brings a trial too little; None where a last
        segment of so many seconds does not get there, no least gain is asked for, or there is no law."""
        most = self.trials[trial].progress.seconds + min(seconds, 2 * self.ladder.seconds)
        gain = self._rules.least_gain
        enough = self.standings.enough_seconds(trial, gain, most) if gain else most
        return enough if enough < most else None

    # --- events

    def on_promoted(self, trial: str, rung: int, seconds: float) -> None:
        if self.standings.note_departure(trial, rung):
            self._cut_short.pop(trial, None)
            self.trials[trial].price = seconds
            self._count_use(rung, seconds)

    def on_finishing(self, trial: str) -> None:
        self.standings.note_departure(trial, None)
        self._finisher = trial if self._finisher is None else self._finisher

    def on_confirming(self, trial: str, of: str) -> None:
        self.standings.note_departure(trial, None)

    def on_reported(
        self, trial: str, rung: int, loss: float, *, telling: bool = True, progress: Progress = NO_PROGRESS
    ) -> None:
        self.standings.record(trial, rung, loss, telling=telling, progress=progress)
        self._heard = True
        if self.ladder.rung_seconds(rung) >= self.ladder.life:
            self.standings.close(trial, "finished")

    def on_interrupted(self, trial: str) -> None:
        standing = self.trials[trial]
        if standing.goal is not None:
            self._count_use(standing.goal, -standing.price)
        if standing.goal == 0:
            self._cut_short[trial] = None
        self.standings.pause(trial)
        self._release(trial)

    def on_finished(self, trial: str, training: float = 0.0, beside: float = 0.0) -> None:
        self._ends[trial], self._heard = training, True
        self._beside[trial] = beside
        self.standings.close(trial, "finished")
        if math.isfinite(self.ladder.life):
            self._release(trial)

    def on_returned(self, trial: str, *, trained: bool = True) -> None:
        self._returned.append(trial)
        self._heard = self._heard or trained
        self.standings.close(trial, "finished")
        self._release(trial)

    def on_life_known(self, life: float, gap: float) -> None:
        self.ladder = self.ladder.with_life(life, gap)
        self._count_use(self.ladder.top, 0.0)

    def on_turned(self, trial: str, loss: float, training: float) -> None:
        self._heard = True
        self.standings.note_turn(trial, loss, training)
        self._release(trial)

    def on_ended(self, trial: str, reason: str) -> None:
        self.standings.close(trial, "ended")
        self._release(trial)
        if reason.startswith(self.shared_failures):
            self._errors[VARYING_ERROR_PARTS.sub("#", reason)] += 1

    def on_resumed(self, begin: Mapping[str, float]) -> None:
        """A run of the study begins: what failed before may be mended, and what went well may fail now. begin: by
        trial, the seconds of training from which it may go on, before its decay if it had one."""
        self._errors_before, self._heard, self._begin = self._errors.copy(), False, begin

    def make_ladder(self, seconds: float, within: float = math.inf, deadline: float = math.inf) -> Ladder:
        """Return the ladder with the same rungs for another share of the cap or another deadline."""
        rules = replace(self._frame.rules, eta=self.ladder.eta, fall_kept=self.ladder.fall_kept)
        return replace(self._frame, rules=rules, life=self.ladder.life).fit(
            seconds, within, deadline, first=self.ladder.first
        )

    def refit(self, ladder: Ladder) -> None:
        """Take another ladder, as the family's share or the deadline changed.

        A trial at its end may go on, from before its decay.
        """
        self.ladder, self._finisher, self._refitted = ladder, None, True
        self._count_use(ladder.top, 0.0)
        for trial, standing in self.trials.items():
            if standing.state == "finished" and trial not in self.standings.turned and trial not in self._returned:
                standing.state = "paused"
        self.standings.reorder()

    # --- decisions

    def decide(self, left: BudgetLeft) -> Move:
        """Return what a free slot should do. Nothing counts as done before its event is told."""
        if self.is_hopeless:
            return HandBack(HOPELESS)
        move: Move = HandBack("the leader has its last segment")
        if self._finisher is not None and (shared := self._share(left)):
            return shared
        if self._finisher is not None and self.trials[self._finisher].state == "finished":
            end = self.enough_seconds(self._finisher)
            if end is None or end > ENOUGH * self._ends.get(self._finisher, 0.0):
                return move
            return HandBack(f"{move.reason}, and {left.seconds:.0f} s are left: {TOO_LITTLE}")
        if self._finisher is None:
            move = self._explore(left)
            if not isinstance(move, HandBack | Wait):
                return move
        if left.running == 0 or self._money_lies_idle(left):
            return self._explore_beside(left) or self._lead(left)
        return move if self._rules.narrow else Wait(move.reason)

    def _explore(self, left: BudgetLeft) -> Move:
        """Return a move for the lowest rung below its quota to which a trial can go."""
        free, anew = self._free_seconds(left), None
        for rung, (quota, used) in enumerate(zip(self.ladder.quotas, self._used, strict=False)):
            room = quota - used
            if room <= 0:
                continue
            if rung == 0:
                if another := self._new_or_promoted(free, f"of {quota:.0f} s for rung 0, {used:.0f} are used"):
                    return another
                continue
            trial, in_flight = self.standings.first(rung - 1), self.standings.in_flight[rung - 1]
            if trial is not None and self._rather_new(rung):
                anew = self._new_before_rung_1(min(free, left.seconds - self.ladder.kept))
                continue
            places = math.ceil(room / (self.ladder.cost(rung) if trial is None else self._price(trial, rung)))
            if trial is not None and places > in_flight:
                if self._price(trial, rung) <= self._free_seconds(left, trial):
                    return Promote(trial, rung, self._place_text(trial))
            elif in_flight and anew is None:
                if left.running < places:
                    return Wait(f"rung {rung - 1} is not complete")
                return HandBack(f"rung {rung} has room for {places} more, and {left.running} run")
        return anew or HandBack("what runs needs no other slot")

    def _explore_beside(self, left: BudgetLeft) -> Move | None:
        """Return a move of a slot beside the leaders', where a deadline leaves more than these can use and each has a
        slot: from the top rung down one trial in eta of those below goes up, else a new one begins (ASHA, Li et al.
        2020, arXiv:1810.05934)."""
        climbs = left.binding and left.running and math.isfinite(self.ladder.life) and not self._rules.front
        if not climbs or not self.standings.enough_running_ahead(LEADERS):
            return None
        seconds = min(left.seconds, left.wall)
        for rung in range(self.ladder.top, 0, -1):
            trial = self.standings.first(rung - 1)
            if trial is None or self.standings.share(rung) * self.ladder.eta >= 1 or self._rather_new(rung):
                continue
            if self._price(trial, rung) <= seconds:
                return Promote(trial, rung, f"{self._place_text(trial)}; the leaders have their slots")
        return self._new_or_promoted(seconds, "the leaders have their slots")

    def _lead(self, left: BudgetLeft) -> Move:
        """Return a move where nothing is left to explore: the leader goes on, or, beside trials that run, the best of
        those that wait."""
        seconds, beside = min(left.seconds, left.wall), left.running > 0
        if shared := self._share(left):
            return shared
        trial, risen = self.standings.leader(), self.standings.leader(past_best=True)
        if self.past_best and not self._rules.front:
            waiting, risen = self.standings.waiting(), None
            trial = next((each for each in waiting if self.standings.can_improve(each, seconds)), None)
            if trial is None and not self.standings.can_improve(None, seconds):
                return HandBack(f"{left.seconds:.0f} s are left: {PAST_BEST}")
        room = self._free_seconds(left, trial) if self._finisher is None else 0.0
        can_pay = room if beside or risen else seconds
        why = "no trial waits that could go on" if self.trials else "nothing was tried yet"
        if trial is None and (another := self._new_or_promoted(can_pay, why)):
            return another
        rather_new = trial is not None and self.trials[trial].rung == 0 and not self.past_best
        if rather_new and (another := self._new_before_rung_1(room)):
            return another
        trial = trial or risen
        least = self.ladder.overhead + (self.ladder.first if beside else 0.0)
        if beside and trial is not None and math.isinf(self.ladder.life):
            least += LEAST_BESIDE * self.ladder.rung_seconds(self.trials[trial].rung)
        least += LEASE_RESERVE_FACTOR * self.trials[trial].progress.gap if trial is not None else 0.0
        if trial is None or seconds <= least:
            before = f" {BEFORE_DEADLINE}" if left.binding and left.wall < left.seconds else ""
            return HandBack(NO_TRIAL if trial is None else f"{PAYS_NO_MORE}{before}")
        last = self._last_segment(trial, seconds, least, by_deadline=left.binding and left.wall < left.seconds)
        if isinstance(last, HandBack):
            return last
        rung, climb = self.trials[trial].rung + 1, CLIMB * seconds if math.isinf(self.ladder.life) else 0.0
        if rung <= self.ladder.top and self._price(trial, rung) <= max(room, climb):
            return Promote(trial, rung, "leads those that wait")
        if self._finisher is None:
            return last
        if not self._pays_beside(self._finisher, trial, last.seconds):
            return HandBack(f"{seconds:.0f} s are left: {TOO_LITTLE}")
        return replace(last, reason="is next, and there is no time for anything else in the slot")

    def _pays_beside(self, leader: str, trial: str, seconds: float) -> bool:
        """Whether a last segment beside the leader's is expected to gain over the leader what is asked for of so many
        seconds; True where nothing is asked for or no law tells."""
        leads = self.standings.expected(leader)
        other = self.standings.forecast_after(trial, seconds - self.ladder.overhead)
        return other is None or expected_gain(leads, other) >= self._rules.least_gain * seconds

    def _share(self, left: BudgetLeft) -> Finish | None:
        """Return the next of the last segments that points of the front share; None where losses are compared, trials
        have ends of their own, or nothing tells which trial it should be."""
        if not self._rules.front or math.isfinite(self.ladder.life):
            return None

        def least(trial: str) -> float:
            decay = LEAST_BESIDE * self.ladder.rung_seconds(self.trials[trial].rung)
            return self.ladder.overhead + max(decay, self._to_catch_up(trial))

        shared = self.standings.next_pareto_segment(min(left.seconds, left.slots * left.wall), left.wall, least)
        return shared and Finish(*shared, f"is expected to add the most to the front, of {left.seconds:.0f} s")

    def _to_catch_up(self, trial: str) -> float:
        """Return the seconds until a trial has trained for longer than at the end that it had; 0: it had none."""
        begins = max(self.trials[trial].progress.seconds, self._begin.get(trial, 0.0))
        return max(0.0, ENOUGH * self._ends[trial] - begins) if trial in self._ends else 0.0

    def _last_segment(
        self, trial: str, seconds: float, least: float, *, by_deadline: bool = False
    ) -> Finish | HandBack:
        """Return the last segment of a trial that leads, in up to so many seconds, if it is to have more than `least`,
        and, where the trial had one already, to train it for longer than that did."""
        behind = self._to_catch_up(trial)
        if behind and (short := behind + max(self.ladder.overhead, self._beside[trial]) - seconds) >= 0:
            more = duration_text(math.ceil(short + 1 + self._frame.start_up))
            takes = f"a deadline {more} later" if by_deadline else f"{more} more of a slot"
            return HandBack(f"{seconds:.0f} s are left: from before its decay {trial} {NO_LONGER}; it takes {takes}")
        end = self.enough_seconds(trial, seconds - self.ladder.overhead)
        if end is None:
            blind = self._rules.least_gain and not self.standings.forecast_at(trial, 1.0)
            why = ": no scaling law yet, gains unknown" if blind else ""
            return Finish(trial, seconds, f"leads, and gets what is left{why}")
        had = max(self.trials[trial].progress.seconds, self._ends.get(trial, 0.0))
        price = end - had + self.ladder.overhead
        if price <= least or end <= ENOUGH * had:
            return HandBack(f"{seconds:.0f} s are left: {TOO_LITTLE}")
        return Finish(trial, price, f"leads, and gets {price:.0f} s of {seconds:.0f}: then {TOO_LITTLE}", end)

    def _free_seconds(self, left: BudgetLeft, trial: str | None = None) -> float:
        """Return the seconds of a slot that a trial (None: any) may use on its way to a rung. What is kept for a last
        segment is not for it, nor, where the cap is another than at first, what the leader needs to come to an end of
        its own."""
        kept = self.ladder.last
        if self._refitted and math.isfinite(self.ladder.life):
            leader = self.standings.leader()
            if leader is not None and leader != trial:
                kept = min(self.ladder.kept, self._price(leader, self.ladder.top))
        return min(left.seconds, left.wall) - kept

    def _money_lies_idle(self, left: BudgetLeft) -> bool:
        """Whether the trials that are on their way to rungs cannot spend what is left before the deadline. What a last
        segment needs is reserved already."""
        return (
            self._rules.rush
            and math.isfinite(left.wall)
            and left.seconds + left.reserved > self.standings.in_flight.total() * left.wall
        )

    def _new_before_rung_1(self, seconds: float) -> Start | Promote | None:
        """Return a move for another trial, where enough went to rung 1 and so many seconds pay for it; else None."""
        return self._new_or_promoted(seconds, "rung 1 made most that reached it worse") if self._rather_new(1) else None

    def _rather_new(self, rung: int) -> bool:
        """Whether a new trial is worth more than one on its way to this rung."""
        return rung == 1 and self.has_more and self.standings.enough_at_rung_1()

    def _new_or_promoted(self, seconds: float, reason: str) -> Start | Promote | None:
        """Return a move for another trial to rung 0, if so many seconds pay for it: one that was cut short on its way
        there, else a new one."""
        begun = next((trial for trial in self._cut_short if self._price(trial, 0) <= seconds), None)
        if begun is not None:
            return Promote(begun, 0, f"was cut short before rung 0; {reason}")
        return Start(reason) if self.has_more and self._price(None, 0) <= seconds else None

    def _place_text(self, trial: str) -> str:
        standing = self.trials[trial]
        loss, (expected, _) = standing.losses[standing.rung], self.standings.expected(trial)
        metric = self._frame.metric
        at_its_end = f", {metric.text(expected, '.3f').split()[-1]} expected at its end" if expected != loss else ""
        how = "adds the most to the front" if self._rules.front else "most promising"
        return f"{how} of those that wait at rung {standing.rung}: {metric.text(loss, '.3f')}{at_its_end}"

    def _count_use(self, rung: int, seconds: float) -> None:
        self._used.extend([0.0] * (rung + 1 - len(self._used)))
        self._used[rung] += seconds

    def _release(self, trial: str) -> None:
        if self._finisher == trial:
            self._finisher = None

    def state(self) -> dict[str, object]:
        known: dict[str, object] = {
            "ladder": self.ladder.to_json(),
            "rungs": [self._used, self._finisher],
            "errors": dict(self._errors),
            "standings": {trial: standing.to_json() for trial, standing in self.trials.items()},
        }
        known |= {"returned": self._returned} if self._returned else {}
        return known | ({"past best": turned} if (turned := self.standings.turned) else {})
