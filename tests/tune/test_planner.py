"""The planner's laws, in virtual time: nothing is lost, nothing overspent, and every charge is in the journal."""

import heapq
import math
import random
from pathlib import Path
from typing import Any

import pytest

from tune.books import Books
from tune.family import Family
from tune.journal import Journal
from tune.ledger import Ledger
from tune.planner import Planner
from tune.prices import Prices
from tune.records import Assignment
from tune.rungs import Contest

STEP_SECONDS = 0.05
OVERHEAD_SECONDS = 0.8
START_UP_SECONDS = 5.0


class Numbered:
    """Suggests configurations by number, the worst first, and hears how they did."""

    def __init__(self, most: int = 10_000) -> None:
        self.given = 0
        self.most = most

    def suggest(self, trial: str) -> dict[str, Any] | None:
        self.given += 1
        return {"number": self.given} if self.given <= self.most else None

    def tell(self, trial: str, rung: int, loss: float | None) -> None:
        pass


class World:
    """Trials that train in no time: each lease ends as a scripted process would end it."""

    def __init__(self, folder: Path, *, cap: float, slots: int, shares: dict[str, float], seed: int = 0) -> None:
        self.now = 0.0
        self.chance = random.Random(seed)
        self.journal = Journal(folder, new=True)
        self.families: dict[str, Family] = {}
        self.books = Books(self.journal, Ledger(cap=cap, clock=lambda: self.now), lambda: self.now)
        self.planner = Planner(books=self.books, families=self.families, slots=slots)
        for name, share in shares.items():
            contest = Contest(
                seconds=share * cap,
                slots=slots,
                price=self.planner.price_of(name),
                shortest=4,
                overhead=1.5,
                start_up=6,
            )
            self.families[name] = Family(seconds=share * cap, contest=contest, prices=Prices(), suggestions=Numbered())
        self.assignments: list[Assignment] = []
        self.started: set[int] = set()
        self.diverging: set[int] = set()
        self.dying: dict[str, int] = {}

    def run(self) -> None:
        """Until every slot was handed back."""
        events: list[tuple[float, int, Assignment]] = []
        for _ in range(100_000):
            while (assignment := self.planner.next()) is not None:
                self.assignments.append(assignment)
                heapq.heappush(events, (self.now + self.length(assignment), len(self.assignments), assignment))
            if self.planner.done:
                return
            self.now, _, assignment = heapq.heappop(events)
            self.end(assignment)
        raise AssertionError("the search does not end")

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
        return float(self.journal.rows(query)[0][0])


SHARES = {"translation": 0.5, "nanogpt": 0.5}


@pytest.fixture(
    params=[(60, 1), (60, 2), (240, 2), (1200, 2), (1200, 4), (28800, 8)], ids=lambda case: f"{case[0]}s-{case[1]}"
)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    cap, slots = request.param
    return World(tmp_path, cap=cap, slots=slots, shares=SHARES, seed=cap + slots)


def test_the_cap_holds_and_is_used(world: World) -> None:
    world.run()
    ledger = world.books.ledger
    assert ledger.spent <= ledger.cap
    assert ledger.spent >= (0.97 if ledger.cap >= 120 else 0.85) * ledger.cap


def test_every_device_second_is_charged_once(world: World) -> None:
    world.run()
    held = world.total("SELECT SUM(closed - opened) FROM slots")
    assert held == pytest.approx(world.books.ledger.spent)
    assert world.total("SELECT SUM(seconds) FROM charges") == pytest.approx(held)
    assert world.total("SELECT SUM(charged) FROM leases") == pytest.approx(
        world.total("SELECT SUM(seconds) FROM charges WHERE lease IS NOT NULL")
    )
    assert world.total("SELECT COUNT(*) FROM leases WHERE charged > reserved + 1e-6") == 0


def test_each_family_has_one_winner_with_its_decay(world: World) -> None:
    world.run()
    finals = world.journal.rows(
        "SELECT family, COUNT(*) AS n FROM reports JOIN trials USING (trial) WHERE final GROUP BY family"
    )
    assert {row["family"]: row["n"] for row in finals} == {"translation": 1, "nanogpt": 1}


def test_a_family_keeps_to_its_share(tmp_path: Path) -> None:
    world = World(tmp_path, cap=1200, slots=2, shares={"translation": 0.7, "nanogpt": 0.3})
    world.run()
    assert world.families["translation"].charged == pytest.approx(840, rel=0.03)


def test_what_a_family_leaves_over_goes_to_the_other(tmp_path: Path) -> None:
    world = World(tmp_path, cap=1200, slots=2, shares=SHARES)
    world.families["nanogpt"].suggestions = Numbered(most=0)
    world.run()
    assert world.families["translation"].charged >= 0.97 * 1200


def test_a_diverged_trial_gets_nothing_more(tmp_path: Path) -> None:
    world = World(tmp_path, cap=1200, slots=2, shares=SHARES)
    world.diverging = {1, 3, 4}
    world.run()
    leases = [a.trial for a in world.assignments if a.config["number"] in world.diverging]
    assert leases and len(leases) == len(set(leases))
    states = world.journal.rows("SELECT state, reason FROM trials WHERE trial IN ('t001', 't002')")
    assert {(row["state"], row["reason"]) for row in states} == {("stopped", "diverged")}


def test_a_trial_whose_process_died_goes_on_and_pays_for_what_was_lost(tmp_path: Path) -> None:
    world = World(tmp_path, cap=1200, slots=2, shares=SHARES)
    world.dying = {"t001": 1}
    world.run()
    first, second, *_ = [a for a in world.assignments if a.trial == "t001"]
    assert (first.rung, second.rung) == (0, 0)
    assert world.total("SELECT SUM(seconds) FROM charges WHERE what = 'lost' AND trial = 't001'") > 0
    assert world.total("SELECT COUNT(*) FROM reports WHERE trial = 't001'") > 0


def test_a_trial_whose_process_dies_twice_has_failed(tmp_path: Path) -> None:
    world = World(tmp_path, cap=1200, slots=2, shares=SHARES)
    world.dying = {"t001": 9}
    world.run()
    assert [row["state"] for row in world.journal.rows("SELECT state FROM trials WHERE trial = 't001'")] == ["failed"]
    assert len([a for a in world.assignments if a.trial == "t001"]) == 2


def test_a_deadline_ends_the_search_in_time(tmp_path: Path) -> None:
    world = World(tmp_path, cap=1200, slots=2, shares=SHARES)
    world.planner._wall_left = lambda: 200 - world.now
    world.run()
    assert world.now <= 200


def test_a_search_told_to_stop_starts_nothing_more(tmp_path: Path) -> None:
    world = World(tmp_path, cap=1200, slots=2, shares=SHARES)
    assert world.planner.next() is not None
    world.planner.stopping = "SIGTERM"
    assert world.planner.next() is None
    assert len(world.planner.running) == 1
