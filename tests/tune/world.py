"""A world without processes: trials that train in no time, on a clock that moves from one report to the next."""

import heapq
import math
import random
from pathlib import Path
from typing import Any

from tune.books import Books
from tune.family import Family
from tune.journal import Journal
from tune.ledger import Ledger
from tune.planner import Planner
from tune.prices import Prices
from tune.records import Assignment
from tune.restore import close_what_a_kill_left_open, last_moment, restore, spent
from tune.rungs import Contest

STEP_SECONDS = 0.05
OVERHEAD_SECONDS = 0.8
START_UP_SECONDS = 5.0
SHARES = {"translation": 0.5, "nanogpt": 0.5}


class Numbered:
    """Suggests configurations by number, and hears how they did."""

    def __init__(self, most: int = 10_000) -> None:
        self.given = 0
        self.most = most

    def suggest(self, trial: str) -> dict[str, Any] | None:
        self.given += 1
        return {"number": self.given} if self.given <= self.most else None

    def tried(self, trial: str, config: dict[str, Any]) -> None:
        self.given += 1

    def tell(self, trial: str, rung: int, loss: float | None) -> None:
        pass


class World:
    """One run of a study in `folder`, until it is over or killed; another World in the same folder goes on with it."""

    def __init__(
        self, folder: Path, *, cap: float, slots: int, shares: dict[str, float] | None = None, seed: int = 0
    ) -> None:
        resumed = (folder / "journal.db").exists()
        self.journal = Journal(folder, new=not resumed)
        if resumed:
            close_what_a_kill_left_open(self.journal)
        self.now = last_moment(self.journal)
        self.chance = random.Random(seed)
        self.families: dict[str, Family] = {}
        ledger = Ledger(cap=cap, clock=lambda: self.now, spent_before=spent(self.journal))
        self.books = Books(self.journal, ledger, lambda: self.now)
        self.planner = Planner(books=self.books, families=self.families, slots=slots)
        for name, share in (shares or SHARES).items():
            price = self.planner.price_of(name)
            contest = Contest(seconds=share * cap, slots=slots, price=price, shortest=4, overhead=1.5, start_up=6)
            self.families[name] = Family(seconds=share * cap, contest=contest, prices=Prices(), suggestions=Numbered())
        if resumed:
            restore(self.planner, self.journal)
        self.journal.note(cap_seconds=cap)
        self.assignments: list[Assignment] = []
        self.started: set[int] = set()
        self.diverging: set[int] = set()
        self.dying: dict[str, int] = {}

    def run(self, reports: int = 100_000) -> None:
        """Until every slot was handed back, or so many leases ended."""
        events: list[tuple[float, int, Assignment]] = []
        for _ in range(reports):
            while (assignment := self.planner.next()) is not None:
                self.assignments.append(assignment)
                heapq.heappush(events, (self.now + self.length(assignment), len(self.assignments), assignment))
            if self.planner.done:
                return
            self.now, _, assignment = heapq.heappop(events)
            self.end(assignment)
        assert reports < 100_000, "the search does not end"

    def goal(self, assignment: Assignment) -> int:
        """Steps of the trial's life that the lease is for."""
        if assignment.steps is not None:
            return assignment.steps
        before = self.planner.trials[assignment.trial].steps
        seconds = assignment.training_seconds
        return (
            before + max(1, int(assignment.seconds / STEP_SECONDS)) if seconds is None else int(seconds / STEP_SECONDS)
        )

    def length(self, assignment: Assignment) -> float:
        """Device-seconds that a process would use of a lease."""
        if assignment.rung is None:
            return assignment.seconds * self.chance.uniform(0.99, 1)
        start = 0.0 if assignment.slot in self.started else START_UP_SECONDS
        self.started.add(assignment.slot)
        steps = self.goal(assignment) - self.planner.trials[assignment.trial].steps
        return min(assignment.seconds, start + OVERHEAD_SECONDS + steps * STEP_SECONDS * self.chance.uniform(1, 1.2))

    def end(self, assignment: Assignment) -> None:
        """What the process of a lease says, or does not say any more, at its end."""
        if self.dying.get(assignment.trial, 0) > 0:
            self.dying[assignment.trial] -= 1
            self.planner.died(assignment.trial, "error")
            return
        used, steps = self.now - assignment.opened, self.goal(assignment)
        short = assignment.rung is not None and used >= assignment.seconds
        if short:
            steps = self.planner.trials[assignment.trial].steps + max(1, int(used / STEP_SECONDS / 2))
        ended = "lease" if short else "final" if assignment.rung is None else "rung"
        if assignment.config["number"] in self.diverging:
            ended = "diverged"
        loss = 5 / math.log(steps + 3) + 0.01 * assignment.config["number"]
        valid = {"loss": loss, "perplexity": math.exp(loss), "bits_per_character": 1, "nats_per_word": 1, "accuracy": 1}
        self.planner.report(
            assignment.trial,
            {
                "steps": steps, "tokens": steps, "training_seconds": steps * STEP_SECONDS, "train_loss": 1.0,
                "learning_rate": 1.0, "gradient_norm": 1.0, "tokens_per_second": 1.0, "step_seconds": STEP_SECONDS,
                "memory_bytes": 1, "checkpoint": str(self.journal.folder / assignment.trial), "parameters": 1000,
                "seconds": {"steps": used * 0.9}, "valid": valid, "test": None, "ended": ended,
            },
        )  # fmt: skip

    def total(self, query: str) -> float:
        """The one number of a query."""
        return float(self.journal.rows(query)[0][0])
