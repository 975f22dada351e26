"""The planner: what a free slot does next, and what becomes of a report.

It asks each family's contest what is worth doing, and writes into the books what was decided before it happens. It
knows no Ray: the scheduler tells Ray, and tests give it a fake clock.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from tune.books import Books
from tune.family import Family
from tune.records import Assignment, Running, TrialRecord
from tune.rungs import Finish, HandBack, Left, Promote, Start, Wait

LEASE_MARGIN, LEASE_SLACK_SECONDS = 2.0, 3.0
"""A lease is this many times its price and so much more, where the cap allows: neither a noisy neighbour nor the first,
slow steps of a new shape may cut a stretch short. What it does not use is released."""
START_UP_MARGIN = 4.0
"""The same for the start-up of a slot, which a busy machine can stretch by much."""
DEATHS_ALLOWED = 1
"""A trial whose process died more often than this is recorded as failed."""
GRACE_SECONDS = 5.0
"""How long a trial may outstay its lease where nobody else needs the device-seconds."""
LEAST_LEASE_SECONDS = 1.0
"""Nothing useful fits in less."""


class Listener(Protocol):
    """What wants to know of the search as it goes: the screen, TensorBoard."""

    def decided(self, planner: "Planner", trial: str | None, action: str, reason: str) -> None:
        """A decision, with its reason."""

    def reported(self, planner: "Planner", trial: str, row: Mapping[str, Any]) -> None:
        """A row of the journal's table `reports` was written."""


class Planner:
    """The search as far as it is not Ray's.

    slots: how many trials may run at once; wall_left: seconds to the deadline, None where there is none;
    equal_tokens: rungs are equal in tokens, not in device-seconds; cut_short: trials whose lease ended before its goal.
    """

    def __init__(
        self,
        *,
        books: Books,
        families: dict[str, Family],
        slots: int,
        wall_left: Callable[[], float | None] = lambda: None,
        listeners: Sequence[Listener] = (),
        equal_tokens: bool = False,
    ) -> None:
        self.books, self.families, self.slots = books, families, slots
        self._wall_left, self._listeners, self._equal_tokens = wall_left, listeners, equal_tokens
        self.trials: dict[str, TrialRecord] = {}
        self.running: dict[str, Running] = {}
        self.stopping: str | None = None
        self.cut_short: dict[str, int | None] = {}
        self._handed_back = 0

    @property
    def free_slots(self) -> int:
        """Slots that can take work: those held and idle, and those not opened yet."""
        return self.slots - self._handed_back - len(self.running)

    @property
    def done(self) -> bool:
        """Every slot was handed back."""
        return self._handed_back == self.slots

    def overdue(self) -> list[str]:
        """Running trials that outstay their lease; while the cap has room, only those that do so beyond a grace."""
        late = self.books.clock() - min(GRACE_SECONDS, max(0.0, self.books.ledger.left))
        return [name for name, run in self.running.items() if late > run.assignment.opened + run.assignment.seconds]

    def price_of(self, name: str) -> Callable[[Any, int], float]:
        """The prices of a family as its contest asks for them: of a trial (None: a new one) and a rung."""

        def price(trial: Any, rung: int) -> float:
            family, record = self.families[name], self.trials.get(trial)
            done = record.steps * (record.step_seconds or 0.0) if record else 0.0
            return family.prices.stretch(trial, max(0.0, family.contest.rung_seconds(rung) - done))

        return price

    # What a free slot does next

    def next(self) -> Assignment | None:
        """Something for a free slot to do; None where none is free or must wait. Slots of no more use are given up."""
        while self.free_slots > 0:
            wall = self._wall_left()
            if wall is not None and wall < LEAST_LEASE_SECONDS:
                self.stopping = self.stopping or "deadline"
            if self.stopping:
                self._hand_back(self.stopping)
            elif assignment := self._go_on_with_cut_short():
                return assignment
            else:
                answer = self._ask_families()
                if isinstance(answer, HandBack):
                    self._hand_back(answer.reason)
                elif not isinstance(answer, str):
                    return answer if isinstance(answer, Assignment) else None
        return None

    def _ask_families(self) -> Assignment | HandBack | Wait | str:
        """The first move that a family makes, put into practice; "again" where it came to nothing."""
        answer: HandBack | Wait = HandBack("there is no family")
        for name in sorted(self.families, key=self._share_used):
            move = self.families[name].contest.next(self._left(name))
            if not isinstance(move, HandBack | Wait):
                return self._assign(name, move) or "again"
            self.families[name].idle = not self._running(name)
            answer = answer if isinstance(answer, Wait) else move
        return answer

    def _running(self, name: str) -> list[Running]:
        return [run for run in self.running.values() if run.assignment.family == name]

    def _used(self, name: str) -> float:
        """Device-seconds a family was charged, and those its leases may still use."""
        return self.families[name].charged + sum(run.assignment.seconds for run in self._running(name))

    def _share_used(self, name: str) -> float:
        return self._used(name) / self.families[name].seconds

    def _left(self, name: str) -> Left:
        """What a family may still use: its own share, and what families with nothing more to do left over."""
        family = self.families[name]
        others = [other for other in self.families.values() if other.idle and other is not family]
        left_over = sum(max(0.0, other.seconds - other.charged) for other in others)
        own = family.seconds - self._used(name)
        start_up = 0.0 if self.books.idle_slots else family.prices.start_up
        return Left(
            seconds=min(own + left_over, self.books.affordable) - start_up,
            slots=self.free_slots,
            running=len(self._running(name)),
            wall=self._wall_left(),
        )

    def _hand_back(self, reason: str) -> None:
        """Give up a free slot for good: an idle one, else one that was never opened."""
        self._handed_back += 1
        if self.books.idle_slots:
            with self.books.journal.transaction():
                self.books.hand_back()
                self._decide(None, "hand back", reason)

    def _go_on_with_cut_short(self) -> Assignment | None:
        """Another lease for a trial whose last one ended before its goal; to its contest it is still on its way."""
        for trial, rung in list(self.cut_short.items()):
            del self.cut_short[trial]
            name = self.trials[trial].family
            contest, left = self.families[name].contest, self._left(name)
            price = left.seconds if rung is None else contest.price(trial, rung)
            if left.seconds >= LEAST_LEASE_SECONDS and price <= left.seconds:
                return self._lease(trial, rung, price, "go on", "its lease ended early")
            contest.interrupted(trial)
        return None

    def _assign(self, name: str, move: Start | Promote | Finish) -> Assignment | None:
        """Put a move into practice; None where there is no configuration left to start."""
        price = self.price_of(name)
        if isinstance(move, Finish):
            return self._lease(str(move.trial), None, move.seconds, "finish", move.reason)
        if isinstance(move, Promote):
            return self._lease(str(move.trial), move.rung, price(move.trial, move.rung), "promote", move.reason)
        trial = self._new_trial(name)
        return self._lease(trial, 0, price(None, 0), "start", move.reason) if trial else None

    def _new_trial(self, name: str) -> str | None:
        family = self.families[name]
        trial = f"t{len(self.trials) + 1:03d}"
        config = family.suggestions.suggest(trial)
        if config is None:
            family.contest.configs = sum(record.family == name for record in self.trials.values())
            return None
        created = self.books.clock()
        row = {"trial": trial, "family": name, "config": json.dumps(config), "state": "paused", "created": created}
        self.books.journal.insert("trials", row)
        self.trials[trial] = TrialRecord(family=name, config=config)
        family.contest.started(trial)
        return trial

    def _lease(self, trial: str, rung: int | None, price: float, action: str, reason: str) -> Assignment:
        """Reserve what a stretch needs and write it down, before it happens. rung None: the last stretch."""
        record = self.trials[trial]
        family = self.families[record.family]
        fresh = not self.books.idle_slots
        wanted = price if rung is None else price * LEASE_MARGIN + LEASE_SLACK_SECONDS
        wanted += START_UP_MARGIN * family.prices.start_up if fresh else 0.0
        wall = self._wall_left()
        with self.books.journal.transaction():
            lease, slot, opened, seconds = self.books.open_lease(
                trial, rung, price, wanted, math.inf if wall is None else wall
            )
            self._settle(trial, "running", None)
            self._decide(trial, action, reason, rung)
        steps, training_seconds = self._target(family, record, rung)
        assignment = Assignment(
            trial=trial,
            family=record.family,
            config=record.config,
            slot=slot,
            lease=lease,
            rung=rung,
            opened=opened,
            seconds=seconds,
            steps=steps,
            training_seconds=training_seconds,
            checkpoint=record.checkpoint,
        )
        self.running[trial] = Running(assignment=assignment, fresh_slot=fresh, steps_before=record.steps)
        return assignment

    def _target(self, family: Family, record: TrialRecord, rung: int | None) -> tuple[int | None, float | None]:
        """Steps of a trial's life at a rung where a step time is known, else training seconds; neither for the last."""
        if rung is None:
            return None, None
        seconds = family.contest.rung_seconds(rung)
        step_seconds = family.step_seconds if self._equal_tokens else record.step_seconds
        return (None, seconds) if step_seconds is None else (max(record.steps + 1, round(seconds / step_seconds)), None)

    # What becomes of a report

    def report(self, trial: str, progress: Mapping[str, Any]) -> bool:
        """Charge and write down a trial's progress (the fields of model.training.Progress); True: its lease is over."""
        run = self.running[trial]
        with self.books.journal.transaction():
            self.books.charge(run, progress["seconds"])
            row = self.books.report(run, progress)
            if progress["ended"]:
                self._close(run, "start" if run.fresh_slot else "idle")
                self._end_stretch(run, progress)
        for listener in self._listeners:
            listener.reported(self, trial, row)
        return bool(progress["ended"])

    def _close(self, run: Running, rest: str) -> None:
        del self.running[run.assignment.trial]
        self.families[run.assignment.family].charged += self.books.close_lease(run, rest)

    def _end_stretch(self, run: Running, progress: Mapping[str, Any]) -> None:
        """Tell the contest, the prices and the suggestions how a stretch ended."""
        assignment, ended = run.assignment, progress["ended"]
        trial, family, record = assignment.trial, self.families[assignment.family], self.trials[assignment.trial]
        record.steps = progress["steps"]
        record.checkpoint = progress["checkpoint"] or record.checkpoint
        record.step_seconds = record.step_seconds or progress["step_seconds"]
        family.step_seconds = family.step_seconds or progress["step_seconds"]
        if progress["step_seconds"]:
            family.prices.learn(run, slowdown=progress["step_seconds"] / (record.step_seconds or 1.0))
        loss = progress["valid"] and progress["valid"]["loss"]
        if ended == "rung" and loss is not None:
            self._settle(trial, "paused", f"rung {assignment.rung}")
            family.contest.reported(trial, assignment.rung or 0, loss)
            family.suggestions.tell(trial, assignment.rung or 0, loss)
        elif ended == "final" and loss is not None:
            self._settle(trial, "finished", "decayed")
            family.contest.finished(trial, loss)
        elif ended == "diverged" or record.steps <= run.steps_before:
            self.end(trial, "diverged" if ended == "diverged" else "price")
        else:
            self._settle(trial, "paused", ended)
            self.cut_short[trial] = assignment.rung

    def died(self, trial: str, reason: str) -> None:
        """The process of a running trial is gone, and its slot with it: what it did not report is lost, and charged."""
        run, record = self.running[trial], self.trials[trial]
        with self.books.journal.transaction():
            self._close(run, "lost")
            self.books.hand_back(run.assignment.slot)
            record.deaths += 1
            if record.deaths > DEATHS_ALLOWED:
                self.end(trial, reason)
            else:
                self._settle(trial, "paused", reason)
                self.cut_short[trial] = run.assignment.rung

    def end(self, trial: str, reason: str) -> None:
        """A trial is over for good: diverged, price, memory, error."""
        family = self.families[self.trials[trial].family]
        self._settle(trial, "stopped" if reason in ("diverged", "price") else "failed", reason)
        self._decide(trial, "stop", reason)
        family.contest.ended(trial, reason)
        family.suggestions.tell(trial, 0, None)

    def _settle(self, trial: str, state: str, reason: str | None) -> None:
        self.books.journal.update("trials", trial, {"state": state, "reason": reason})

    def _decide(self, trial: str | None, action: str, reason: str, rung: int | None = None) -> None:
        row = {"at": self.books.clock(), "trial": trial, "action": action, "rung": rung, "reason": reason}
        self.books.journal.insert("decisions", row)
        for listener in self._listeners:
            listener.decided(self, trial, action, reason)
