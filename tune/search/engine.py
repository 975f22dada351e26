"""The search engine: it decides what a free slot does next, and what a report changes.

It asks each family for its next move, and writes a decision into the store before it is carried out. It does not import
Ray: the scheduler passes decisions on to Ray, and tests give it a fake clock.
"""

import json
import math
import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Literal

from tune.reports import ENDS, Report
from tune.search.family import MOST_REFUSALS, Family, Slots, TrialRecord, with_margin, with_start_up
from tune.search.ladder import wall_clock
from tune.search.policy import BudgetLeft, Confirm, Finish, HandBack, Promote, Start, Train, Wait
from tune.search.state import AgreedTerms, State, last_events, parse_agreed_terms
from tune.search.successive_halving import BEFORE_DEADLINE, HOPELESS, PAYS_NO_MORE
from tune.search_space import Config
from tune.store.accounting import Accounting, Assignment, RunningLease
from tune.store.heartbeat import GRACE_SECONDS, IDLE, WORKING
from tune.store.journal import ENDED_BY_CAP, ENDED_BY_ERRORS

GIVE_UP = "give up"
"""The decision to start no more trials of a family, as too many failed with one error or diverged; recorded of the last
of these."""


class Listener:
    """An object that is told of every decision and report, after it was written down: the terminal, TensorBoard, a
    user's callback.

    The driver calls it, and decides nothing until it returns. A subclass may leave out any of the methods.
    """

    def on_decision(self, engine: "Engine", trial: str | None, action: str, reason: str) -> None:
        """A decision was made, for this reason."""

    def on_report(self, engine: "Engine", trial: str, report: Report) -> None:
        """A report was written down; it is as the journal has it now."""

    def on_close(self, engine: "Engine") -> None:
        """No trial runs any more; the winners are put in their folders next."""


DEATHS_ALLOWED = 1
"""A trial whose process died more often than this is recorded as failed."""
OVERDUE_SECONDS = 0.5
"""Part of the grace in which a trial's last report may still arrive; then the driver ends its process, just before the
process would end itself."""
NOTE_SECONDS = 10.0
"""Seconds between two notes in the journal that the driver lives: a power failure may take its signs of life."""
DIGESTED_TRIALS = 100
"""Number of trials above which the state's digest is not written at each event, as its cost grows with their number."""
LEAST_LEASE_SECONDS = 1.0
"""Shortest lease that is given: nothing useful fits in less."""
MACHINE_GONE = "its machine is gone"
MACHINES_LOST = "lost machines"
DRIVER_SLEPT = "its driver slept or was busy"
HUNG = "hung: no sign of life by the end of its lease"
GO_ON = "go on"
"""The decision to give a trial another lease for the goal that it had."""
RETRY = "retry"
"""The decision to let a trial that failed in an earlier run wait where it was."""
CONFIRM = "confirm"
"""The decision to train a configuration anew with another seed, for the last comparison."""

ProcessFate = Literal["goes on", "waits", "ends"]
"""What becomes of a trial's process after a report."""


class Engine:
    """The search engine, without Ray. Its families are added after it is made, as they ask it for their prices.

    slots: how many trials may run at once; slots_there(): names of the slots that there are at the moment, where
    machines may be lost; wall_left(): seconds to the deadline, inf where there is none; within: seconds of the study's
    clock in which the cap should be used, as far as the slots can and no trial's own life takes longer; silence():
    since when the driver gave no sign of life for too long, None where that did not happen since the last call.
    """

    def __init__(
        self,
        *,
        accounting: Accounting,
        slots: int,
        wall_left: Callable[[], float],
        slots_there: Callable[[], frozenset[str]] | None = None,
        within: float = math.inf,
        listeners: Sequence[Listener] = (),
    ) -> None:
        self.accounting, self.families = accounting, dict[str, Family]()
        self.wall_left, self.within, self._listeners = wall_left, within, listeners
        self.state = State(self.families, accounting.journal.folder, accounting.ledger.share)
        self.trials, self.running, self.cut_short = self.state.trials, self.state.running, self.state.cut_short
        self.stopping: str | None = None
        self.slots = Slots(slots, slots_there, self.running, accounting)
        self.silence: Callable[[], float | None] = lambda: None
        self._silent_since = self._noted = -math.inf
        self._events = 0

    @property
    def is_done(self) -> bool:
        """Whether nothing runs and no slot is left."""
        return self.slots.all_gone

    @property
    def cut_off(self) -> str | None:
        """What ended the search before its own end: a signal, the deadline, or that all its machines are gone, and with
        them slots that were not handed back; None: nothing."""
        return self.stopping or (MACHINES_LOST if self.slots.count_kept else None)

    @property
    def ended_by(self) -> str:
        """What ended the search: what cut it off, an error that several trials share, or that they diverge; else its
        cap."""
        hopeless = all(family.policy.is_hopeless for family in self.families.values())
        return self.cut_off or (ENDED_BY_ERRORS if hopeless else ENDED_BY_CAP)

    def note_alive(self) -> None:
        """Note in the journal that the driver lives, as its signs of life do: not where what is left does not pay for
        workers that wait, and where the disk is full the next time."""
        now = self.accounting.clock()
        if now - self._noted >= NOTE_SECONDS and self.accounting.ledger.can_wait(GRACE_SECONDS):
            self._noted = now
            with suppress(sqlite3.OperationalError):
                self.accounting.journal.write_facts(alive=now)

    def overdue(self) -> list[str]:
        """Return the running trials that overran their lease by more than OVERDUE_SECONDS."""
        self._wake()
        late = self.accounting.clock() - OVERDUE_SECONDS
        return [name for name, run in self.running.items() if late > run.assignment.opened + run.assignment.seconds]

    def has_lost_machine(self, trial: str) -> bool:
        """Whether a machine is gone: slots are missing that were there when a running trial's lease was opened."""
        return not self.running[trial].there <= self.slots.there()

    def price_of(self, name: str) -> Callable[[str | None, int], float]:
        """Return a family's prices as its policy asks for them: a function of a trial (None: a new one) and a rung."""

        return lambda trial, rung: self.families[name].price(trial, self.trials.get(trial or ""), rung)

    @contextmanager
    def transaction(self, *, changes: bool = True) -> Iterator[None]:
        """Write all that happens inside to the journal in one transaction; on a disk with a digest of the state, which
        is left out at most events where there are many trials."""
        with self.accounting.journal.transaction():
            yield
            if changes and self.accounting.journal.on_disk:
                self._events += 1
                digested = self._events % max(1, len(self.trials) - DIGESTED_TRIALS) == 0
                self.accounting.journal.write_facts(state=self.state.digest() if digested else None)

    # The terms it runs under

    def apply_terms(self, deadline: float | None, processor: str, stop_below_gain: float | None = None) -> list[str]:
        """Put the study under its ledger's cap, this deadline (in seconds from its start), this least gain (in nats a
        device-hour) and this processor from now on, and write them down where they differ from those before. Returns
        notes for the user."""
        journal, cap = self.accounting.journal, self.accounting.ledger.cap
        agreed = parse_agreed_terms(journal.facts())
        before = agreed[-1] if agreed else None
        decision, report = last_events(journal)
        now = AgreedTerms(
            at=self.accounting.clock(), seconds=cap, deadline=deadline, stop_below_gain=stop_below_gain,
            processor=processor, decision=decision, report=report,
        )  # fmt: skip
        other = before is not None and before.processor not in (None, processor)
        if before is None or (before.seconds, before.deadline) != (cap, deadline) or now.asks_for_less(before):
            walls = self.within, deadline or math.inf
            ladders = {
                name: each.policy.make_ladder(each.seconds, *walls) if before else each.policy.ladder
                for name, each in self.families.items()
            }
            now = replace(now, families={name: (self.families[name].seconds, ladders[name]) for name in ladders})
        elif not other and before.stop_below_gain == stop_below_gain:
            return []
        with self.transaction():
            self.state.apply_terms(now, new=before is None)
            journal.write_facts(caps=[each.to_json() for each in (*agreed, now)], slots_kept=None)
        if before is None or not other:
            return []
        which = f"{processor}, not {before.processor}"
        return [f"another processor: {which}: costs are learned again; rungs and validation subset stay"]

    # What a free slot does next

    def next_assignment(self) -> Assignment | None:
        """Return what a free slot is to do; None where none is free, or one must wait. Slots of no more use are handed
        back."""
        while not self._wake():  # each time, as it may sleep while it decides
            self._close_lost_slots()
            free = self.slots.count_free  # once for each decision, as a machine may be lost meanwhile
            if free == 0:
                return None
            wall = self.wall_left()
            if wall < LEAST_LEASE_SECONDS:
                self.stopping = self.stopping or "deadline"
            planned = self._planned_wall(wall)
            binding = planned == wall < math.inf
            if self.stopping:
                self._hand_back(self.stopping)
            elif assignment := self._go_on_with_cut_short(planned, free, binding=binding):
                return assignment
            else:
                answer = self._ask_families(planned, free, binding=binding)
                ledger, now = self.accounting.ledger, self.accounting.clock()
                if isinstance(answer, Wait) and not ledger.can_wait(ledger.first_end - now):
                    answer = HandBack("what is left does not pay for a slot that waits")
                if isinstance(answer, HandBack):
                    self._hand_back(answer.reason)
                elif answer is not None:
                    return answer if isinstance(answer, Assignment) else None
        return None

    def _ask_families(
        self, wall: float, free: int, *, binding: bool, parted: bool = True
    ) -> Assignment | HandBack | Wait | None:
        """Ask the families, the one that used the least of its share first, and carry out the first move; None where
        that came to nothing: ask again. parted: as in `_left`.

        A family may also use what is left of the shares of those that have nothing more to do, and, where its part of
        the time is of no use to any, all of it.
        """
        answer: HandBack | Wait = HandBack("there is no family")
        idle = self._idle(wall, free)
        for name, family in sorted(
            self.families.items(), key=lambda each: each[1].seconds_used / max(each[1].seconds, 1e-9)
        ):
            left = self._left(name, wall, free, idle, binding=binding, parted=parted)
            enough = left.seconds >= LEAST_LEASE_SECONDS
            move = family.decide(left) if enough else HandBack(PAYS_NO_MORE)
            if isinstance(move, HandBack) and any(run.silent for run in self.running.values()):
                move = Wait("a loop that had never reported holds more than it will take")
            if not isinstance(move, HandBack | Wait):
                return self._assign(name, move)
            answer = answer if isinstance(answer, Wait) else move
        if binding and parted and isinstance(answer, HandBack):
            return self._ask_families(wall, free, binding=binding, parted=False)
        return answer

    @property
    def wall_clock(self) -> float:
        """Seconds of the study's clock in which the cap is to be used: `within`, or what a family's lives need."""
        families = self.families.values()
        return max(wall_clock(self.within, math.inf, family.life_seconds, family.seconds) for family in families)

    def _planned_wall(self, wall: float) -> float:
        """Return the seconds in which to use what is left: those to the end of `within`, or as many as all slots need
        for it if these are more, but none past the deadline."""
        ledger = self.accounting.ledger
        all_slots = (ledger.cap - ledger.spent) / (ledger.share * max(1, self.slots.count_kept))
        return min(wall, max(self.wall_clock - self.accounting.clock(), all_slots))

    def _left(
        self, name: str, wall: float, free: int, idle: Collection[str], *, binding: bool, parted: bool = True
    ) -> BudgetLeft:
        """Return what a family may still use, where so many slots are free: its own share, and what is left of those of
        the idle ones. parted: where it shares a slot with others that are not idle, it has its part of the time to a
        deadline that binds."""
        family, others = self.families[name], set(idle) - {name}
        left_over = sum(max(0.0, self.families[each].seconds - self.families[each].seconds_used) for each in others)
        active = sum(each.seconds for other, each in self.families.items() if other not in others)
        if binding and parted and active:
            wall *= min(1.0, self.slots.count_kept * family.seconds / active)
        return family.seconds_left(self.accounting, free, wall, left_over=left_over, binding=binding)

    def _idle(self, wall: float, free: int) -> list[str]:
        """Return the families that run nothing, and can run nothing by their own shares; none where there is but
        one."""
        on_their_way = {self.trials[trial].family for trial in self.cut_short}
        several = self.families.items() if len(self.families) > 1 else ()
        return [name for name, family in several if name not in on_their_way and self._is_idle(family, wall, free)]

    def _is_idle(self, family: Family, wall: float, free: int) -> bool:
        left = family.seconds_left(self.accounting, free, wall)
        return left.running == 0 and isinstance(family.decide(left), HandBack)

    def _wake(self) -> bool:
        """Return whether the driver slept, or was busy for longer than the cap pays for waiting workers: then workers
        have ended themselves, and their slots are charged up to that moment.

        A worker that gave no sign of life on its lease may live all the same, elsewhere or with a full disk: it holds
        its lease until its death is heard of, or the lease is over.
        """
        since = self.silence()
        if since is None:
            return False
        self._silent_since = since
        with self.transaction():
            for run in self.running.values():
                last = self.accounting.last_sign(run)
                if last is not None and last.ended is not None:
                    self.accounting.note_gone(run, last.at, since)
                elif self.accounting.clock() > run.assignment.opened + run.assignment.seconds + GRACE_SECONDS:
                    self.accounting.note_gone(run, self._untold_until(run) if last is None else math.inf)
            while self.accounting.idle_slots:
                self.accounting.hand_back_slept(since)
                self._decide(None, "hand back", DRIVER_SLEPT)
        return True

    def _untold_until(self, run: RunningLease) -> float:
        """Return when the worker of a lease ended itself of which it was never told: it waited for its driver for the
        grace. inf: it was told when it started."""
        return math.inf if run.fresh_slot else max(run.assignment.opened, self._silent_since + GRACE_SECONDS)

    def _close_lost_slots(self) -> None:
        """Hand back idle slots whose machine is gone, so that they are charged no more."""
        while self.slots.has_lost_idle:
            with self.transaction():
                self.accounting.hand_back()
                self._decide(None, "hand back", MACHINE_GONE)

    def _hand_back(self, reason: str) -> None:
        with self.transaction():
            if self.slots.hand_back() or self.is_done:
                self._decide(None, "hand back", reason)
            if not self.stopping:
                self.accounting.journal.write_facts(slots_kept=self.slots.count_kept)

    def _go_on_with_cut_short(self, wall: float, free: int, *, binding: bool) -> Assignment | None:
        """Give another lease to a trial whose last one ended before its goal, and which to its policy is still on its
        way; where that cannot be paid for, the trial waits. None: no lease was given."""
        idle = self._idle(wall, free) if self.cut_short else ()
        for trial, rung in sorted(self.cut_short.items()):
            name = self.trials[trial].family
            family = self.families[name]
            budget = self._left(name, wall, free, idle, binding=binding)
            if rung is None:
                time = self._usable_seconds(trial, budget.wall)
            elif (kept := family.policy.last_segment) is not None:
                time = budget.wall - kept if binding else self.wall_left()
            else:
                time = math.inf
            left = min(budget.seconds, time)
            price = self._price_of_rest(trial, left) if rung is None else self.price_of(name)(trial, rung)
            least = max(LEAST_LEASE_SECONDS, family.least_seconds(trial, self.trials[trial]))
            with self.transaction():
                if left >= least and price <= left and not family.policy.is_hopeless:
                    return self._open_lease(trial, rung, price, GO_ON, "its segment was cut short")
                self.state.put_back(trial)
                before = f" {BEFORE_DEADLINE}" if binding and time < budget.seconds else ""
                self._decide(trial, "wait", f"what is left does not pay for the rest of its segment{before}", rung)
        return None

    def _usable_seconds(self, trial: str, wall: float) -> float:
        """Return the most seconds that the rest of a last segment may take, at most `wall`: what was left of its lease,
        unless the cap or the deadline has changed since. inf: it has a goal in steps."""
        if self._goal_steps(trial) is not None:
            return math.inf
        journal = self.accounting.journal
        (lease,) = journal.rows("SELECT * FROM leases WHERE trial = ? ORDER BY lease DESC LIMIT 1", trial)
        refitted = max(terms.at for terms in parse_agreed_terms(journal.facts()) if terms.families) > lease["opened"]
        had = math.inf if refitted else (lease["reserved"] - lease["charged"]) / self.accounting.ledger.share
        return min(had, wall)

    def _goal_steps(self, trial: str) -> int | None:
        """Return the steps at which a last segment that was cut short ends; None: it goes as far as its lease lasts."""
        record = self.trials[trial]
        family = self.families[record.family]
        return record.goal or family.goal_steps(record, None, family.policy.enough_seconds(trial))

    def _price_of_rest(self, trial: str, left: float) -> float:
        """Return the price of the rest of a last segment, where `left` seconds are left."""
        record = self.trials[trial]
        family = self.families[record.family]
        goal = self._goal_steps(trial)
        price = left if goal is None else self.price_to(trial, goal)
        if record.confirms is not None:
            return min(left, max(price, family.policy.ladder.confirm))
        return price if family.whole else min(left, price)

    def price_to(self, trial: str, goal: int) -> float:
        """Return the price of bringing a trial to so many steps in its last segment."""
        record = self.trials[trial]
        family = self.families[record.family]
        seconds = max(1, goal - record.steps) * (record.step_seconds or family.guess(trial))
        return family.cost_model.segment(trial, seconds)

    def _finish(self, name: str, move: Finish) -> Assignment | None:
        """Lease a last segment; with a goal in steps only where there is room for the margin of a lease to these."""
        goal = self.families[name].goal_steps(self.trials[move.trial], None, move.training)
        if goal is not None:
            price, room = self.price_to(move.trial, goal), min(self.accounting.affordable, self.wall_left())
            if with_margin(price) + self.families[name].cost_model.start_up <= room:
                return self._open_lease(move.trial, None, price, "finish", move.reason, goal)
        return self._open_lease(move.trial, None, move.seconds, "finish", move.reason)

    def _assign(self, name: str, move: Start | Promote | Finish | Confirm | Train) -> Assignment | None:
        """Carry out a move; None where no trial began: no configuration is left, the one to train does not fit in
        memory, or by now there is no time for it."""
        price = self.price_of(name)
        with self.transaction():
            if isinstance(move, Finish):
                return self._finish(name, move)
            if isinstance(move, Promote):
                return self._open_lease(move.trial, move.rung, price(move.trial, move.rung), "promote", move.reason)
            if isinstance(move, Confirm):
                record = self.families[name].confirming_record(move, self.trials[move.of], self.trials[move.other])
                return self._open_lease(self._insert_trial(record), None, move.seconds, CONFIRM, move.reason)
            if isinstance(move, Train):
                action, trial = "finish", move.trial
                if trial is None:
                    self.families[name].suggestions.note_tried(self._next_name, move.config)
                    action, trial = "start", self._fitting(name, move.config)
                return self._open_lease(trial, None, move.seconds, action, move.reason, move.steps) if trial else None
            trial = self._new_trial(name)
            return self._open_lease(trial, 0, price(None, 0), "start", move.reason) if trial else None

    def _new_trial(self, name: str) -> str | None:
        """Write down a new trial with an untried configuration that fits in memory, and return its name; those that do
        not fit are written down too. None: no configuration is left."""
        family = self.families[name]
        while family.refusals < MOST_REFUSALS and family.suggestions.has_more:
            if trial := self._fitting(name, family.suggestions.suggest(self._next_name)):
                return trial
        return None

    def _fitting(self, name: str, config: Config) -> str | None:
        """Write down a new trial, and return its name; where it does not fit in memory it is ended at once, and None
        returned."""
        trial = self._insert_trial(TrialRecord(family=name, config=config))
        if refusal := self.families[name].memory.refusal(config):
            self.end(trial, refusal)
        return None if refusal else trial

    @property
    def _next_name(self) -> str:
        return f"t{len(self.trials) + 1:03d}"

    def _insert_trial(self, record: TrialRecord) -> str:
        """Write down a new trial, and return its name."""
        trial, config = self._next_name, json.dumps(record.config)
        row = {"trial": trial, "family": record.family, "config": config, "state": "paused"}
        self.accounting.journal.insert("trials", {**row, "created": self.accounting.clock()})
        self.trials[trial] = record
        return trial

    def _open_lease(
        self, trial: str, rung: int | None, price: float, action: str, reason: str, goal: int | None = None
    ) -> Assignment | None:
        """Reserve what a segment needs and write it down, before it begins. rung None: the last segment, which ends at
        a goal in steps, or goes as far as its lease lasts. None: by now, nothing is left."""
        record, again, wall = self.trials[trial], action in (GO_ON, CONFIRM), self.wall_left()
        family = self.families[record.family]
        goal = goal or (record.goal if again and record.goal is not None else family.goal_steps(record, rung))
        fills = rung is None and (goal is None or record.confirms is not None)
        even_share = self.accounting.affordable / max(1, self.slots.count_free)
        wanted = family.last_segment(record, price) if fills else family.seconds_to_reserve(record, price, even_share)
        if not self.accounting.idle_slots:
            wanted = with_start_up(wanted, family.cost_model.start_up, even_share)
        micro_batches = record.micro_batches or family.memory.micro_batches(record.config) or 1
        lease = self.accounting.open_lease(trial, rung, goal, price, wanted, wall, micro_batches)
        if lease is None:
            return None
        run = self.state.open_lease(lease)
        run.there, run.silent = self.slots.there(), family.first_lease > 0 and not family.gap
        cut = "cap" if family.whole and lease["reserved"] < wanted * self.accounting.ledger.share else None
        run.cut_by = "deadline" if wall <= wanted else cut
        self._settle(trial, "running", None)
        self._decide(trial, action, reason, rung)
        return run.assignment

    # What a report changes

    def on_report(self, trial: str, report: Report) -> ProcessFate:
        """Charge a trial's report and write it down. Returns what its process does next."""
        self._wake()
        run = self.running[trial]
        changes = report.ended is not None or report.micro_batches != run.micro_batches
        with self.transaction(changes=changes):
            self.accounting.charge(run, report.seconds)
            report = self.accounting.report(run, report)
            family = self.families[run.assignment.family]
            self.trials[trial].micro_batches = family.learn_memory(self.accounting, run, report)
            ends = report.ran_out or run.gone is not None
            if report.ended:
                self._close(run, "start" if run.fresh_slot else "idle", hand_back=ends)
                self._end_segment(run, report)
        for listener in self._listeners:
            listener.on_report(self, trial, report)
        return "goes on" if not report.ended else "ends" if ends else "waits"

    def on_out_of_memory(self, trial: str) -> ProcessFate:
        """End a trial that ran out of memory where no smaller part would have helped, and its process."""
        self._wake()
        run = self.running[trial]
        family = self.families[run.assignment.family]
        with self.transaction():
            self.trials[trial].micro_batches = family.learn_never_fits(self.accounting, run)
            self._close(run, "lost", hand_back=True)
            self.end(trial, "memory: ran out of it, however small its batches were cut")
        return "ends"

    def _close(self, run: RunningLease, rest: str, *, hand_back: bool = False) -> None:
        self.state.close_lease(run.assignment.trial, self.accounting.close_lease(run, rest))
        if hand_back:
            self.accounting.hand_back(run.assignment.slot, run.gone)

    def _end_segment(self, run: RunningLease, report: Report) -> None:
        """Update a trial by the last report of its lease. No lease that was cut ends one for want of time: it goes on
        under a later deadline, or a larger cap."""
        trial, reason = run.assignment.trial, self.state.end_lease(run, report)
        if reason is not None and not (run.cut_by and reason.startswith(("price", "error"))):
            self.end(trial, reason)
        elif trial in self.cut_short:
            self._settle(trial, "paused", run.cut_by if reason else report.ended)
        elif report.ended in ENDS:
            at_end = "decayed" if report.numbers is None else "last lease"
            reason = {"turned": "past its best", "returned": "at its end"}.get(report.ended or "", at_end)
            self._settle(trial, "finished", reason)
        else:
            self._settle(trial, "paused", f"rung {report.rung}")

    def on_error(self, trial: str, reason: str) -> None:
        """End a running trial that raised an error, which it would raise again, and its process.

        Where a machine is gone the error may be due to that, and the trial is treated as one whose process died with
        it.
        """
        self._wake()
        if self.has_lost_machine(trial):
            self.on_death(trial, reason)
            return
        with self.transaction():
            self._close(self.running[trial], "lost", hand_back=True)
            self.end(trial, reason)

    def on_death(self, trial: str, reason: str) -> None:
        """Close the lease of a running trial whose process ended by itself, and its slot: what it did not report is
        charged as lost. The trial goes on once.

        It is not to blame, and goes on each time, where slots are missing that were there when its lease was opened, as
        a machine is gone, and where its process ended itself because it heard nothing of its driver, on this lease or
        before it began.
        """
        self._wake()
        run, record = self.running[trial], self.trials[trial]
        last = self.accounting.last_sign(run)
        ended, before = last and last.ended, last is None and not run.fresh_slot
        lost, slept = self.has_lost_machine(trial), ended == IDLE or before
        blameless = lost or slept
        reason = MACHINE_GONE if lost else DRIVER_SLEPT if slept else f"error: {HUNG}" if ended == WORKING else reason
        with self.transaction():
            if run.gone is None:
                now = self._untold_until(run) if before else self.accounting.clock()
                self.accounting.note_gone(run, last.at if last and ended else now)
            self._close(run, "lost", hand_back=True)
            if not blameless:
                record.deaths += 1
                then = "again" if record.deaths > DEATHS_ALLOWED else "once, so it goes on from where it last saved"
                self._decide(trial, "died", then, run.assignment.rung)
            if record.deaths > DEATHS_ALLOWED:
                self.end(trial, reason)
            else:
                self._settle(trial, "paused", reason)
                self._decide(trial, "pause", reason)

    def close_killed(self, trial: str, charged: float) -> None:
        """Close the lease of a trial whose driver was killed: the lease was found closed, with so many device-seconds
        charged."""
        with self.transaction():
            self.state.close_lease(trial, charged)
            self._decide(trial, "pause", "killed")

    def retry(self, trial: str, reason: str) -> None:
        """Let a trial that failed wait where it was."""
        with self.transaction():
            self.state.put_back(trial)
            self._settle(trial, "paused", reason)
            self._decide(trial, RETRY, f"failed before: {reason.partition(': ')[2]}")

    def end(self, trial: str, reason: str) -> None:
        """End a trial for good. reason: diverged, price, memory or error; after the word may come a colon and more on
        it."""
        policy = self.families[self.trials[trial].family].policy
        went_on = not policy.is_hopeless
        self.state.stopped(trial, reason)
        self._settle(trial, "failed" if reason.startswith("error") else "stopped", reason)
        self._decide(trial, "stop", reason)
        if went_on and policy.is_hopeless:
            self._decide(trial, GIVE_UP, f"{HOPELESS}: no other of {self.trials[trial].family} is started")

    def _settle(self, trial: str, state: str, reason: str | None) -> None:
        self.accounting.journal.update("trials", trial, {"state": state, "reason": reason})

    def _decide(self, trial: str | None, action: str, reason: str, rung: int | None = None) -> None:
        journal = self.accounting.journal
        (last,) = journal.rows("SELECT IFNULL(MAX(report), 0) AS report FROM reports")
        row = {"at": self.accounting.clock(), "trial": trial, "action": action, "rung": rung, "reason": reason}
        journal.insert("decisions", row | {"report": last["report"]})
        for listener in self._listeners:
            listener.on_decision(self, trial, action, reason)
