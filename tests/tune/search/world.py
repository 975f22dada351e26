"""A world without processes: the simulator with trials that are noisy, die, raise, diverge or run out of memory, on a
clock that moves from one report to the next.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from model.training.checkpoint import model_resume_checkpoint
from tune.reports import ENDS, Ended, Evaluation, Report
from tune.search.confirm import HalvingWithConfirmation
from tune.search.engine import Engine, Listener
from tune.search.family import CostModel, Family
from tune.search.forecast import NO_PROGRESS, Progress
from tune.search.ladder import Frame
from tune.search.listed import ListEntry, listed_family
from tune.search.memory_model import ESTIMATE_FACTOR, MemoryModel
from tune.search.resume import agreed_terms, close_what_a_kill_left_open, last_moment, restore, spent, spent_beside
from tune.search.simulator import Clock, Costs, PowerLaw, Simulation
from tune.store.accounting import Accounting, Assignment, Ledger
from tune.store.heartbeat import HEARTBEAT_FOLDER, write_heartbeat
from tune.store.journal import JOURNAL_FILE, Journal

STEP_SECONDS = 0.05
WARM_UP_STEPS = 100
OVERHEAD_SECONDS = 0.8
START_UP_SECONDS = 5.0
NOTICE_SECONDS = 1.5
"""Of training that has diverged, at most, before a trial notices."""
RUNS_OUT_SECONDS = 1.0
"""What a first step takes that runs out of memory in parts of every size."""
LIMIT = 1e9
MFU, PEAK_FLOPS = 0.375, 8.0
MOST_MICRO_BATCHES = 16
SUBSET, WHOLE_NATS = 4096, 0.4
"""Target tokens of the validation subset, and by how much the loss of all of the split is above that of the subset."""
SHARES = {"translation": 0.5, "nanogpt": 0.5}
STOPPED = Report(steps=0, tokens=0, training_seconds=0.0, parameters=1000, seconds={"start": 2.0}, ended="stopped")
"""What a trial reports that was told to stop before its first step."""


def add_trial(journal: Journal, trial: str = "t001", *, state: str = "paused", **columns: Any) -> None:
    """One without leases and reports."""
    row = {"trial": trial, "family": "nanogpt", "config": "{}", "state": state, "created": 0.0}
    journal.insert("trials", row | columns)


class Ticking(Clock):
    """No two readings are the same, as on a real clock."""

    def __call__(self) -> float:
        self.now += 1e-9
        return self.now


class Numbered:
    """Suggests configurations by number, and hears how they did."""

    def __init__(self, most: int = 10_000) -> None:
        self.given = 0
        self.most = most
        self.failed: dict[str, int] = {}
        """Trials that failed, and the rung that they were on their way to."""

    @property
    def has_more(self) -> bool:
        return self.given < self.most

    def suggest(self, trial: str) -> dict[str, Any]:
        self.given += 1
        return {"number": self.given}

    def note_tried(self, trial: str, config: dict[str, Any]) -> None:
        self.given += 1

    def tell(self, trial: str, rung: int, loss: float | None, progress: Progress = NO_PROGRESS) -> None:
        self.failed |= {trial: rung} if loss is None else {}


def estimated_bytes(config: Mapping[str, Any], micro_batches: int) -> float:
    """Estimated bytes of a configuration: from 3 MB to 1 GB and more, however small its batches are cut."""
    return 1e6 * (1 + config["number"] * 389 % 1000) * (1 + 2 / micro_batches)


FIRST_GUESS = 200e6


def needed(config: Mapping[str, Any], micro_batches: int) -> float:
    """And what it really needs: more than the first guess."""
    return 2.5 * FIRST_GUESS + ESTIMATE_FACTOR * estimated_bytes(config, micro_batches)


def known_memory(limit: float) -> MemoryModel:
    """What is known of it before anything ran."""
    return MemoryModel(
        limit=limit, overhead=FIRST_GUESS, estimate=estimated_bytes, most=lambda config: MOST_MICRO_BATCHES
    )


class Played(Simulation):
    """A simulation that a test looks into."""

    @property
    def families(self) -> dict[str, Family]:
        """Of its engine."""
        return self.engine.families

    @property
    def spent(self) -> float:
        """Device-seconds."""
        return self.engine.accounting.ledger.spent

    def rows(self, query: str, *values: Any) -> list[Any]:
        """Of its journal."""
        return self.engine.accounting.journal.rows(query, *values)

    def total(self, query: str) -> float:
        """The one number of a query; 0: it is NULL."""
        return float(self.rows(query)[0][0] or 0.0)

    def taken(self) -> Assignment:
        """What a free slot is to do next, where there is something."""
        assignment = self.engine.next_assignment()
        assert assignment is not None
        return assignment


OPEN = WeakValueDictionary[Path, Journal]()
"""Of each folder of a study the journal that a search there has, or had."""


def opened(folder: Path) -> tuple[Journal, bool]:
    """The journal of a study, and whether it was there: the search that has it is killed, and its slots are closed."""
    if folder in OPEN:
        OPEN[folder].close()
    there = (folder / JOURNAL_FILE).exists()
    journal = OPEN[folder] = Journal(folder, new=not there)
    journal.rows("PRAGMA synchronous = OFF")  # no test pulls the plug: most of its time would go there
    if there:
        close_what_a_kill_left_open(journal)
    return journal, there


class World(Played):
    """One run of a study in `folder`, to its end or until it is killed: another World in the same folder kills it."""

    def __init__(
        self, folder: Path, *, cap: float, slots: int, shares: dict[str, float] | None = None, seed: int = 0,
        suggestions: Callable[[], Numbered] = Numbered, listen: Callable[[Journal], list[Listener]] = lambda _: [],
        memory_limit: float = math.inf, trials_each: float = 1, deadline: float | None = None, processor: str = "one",
        confirm: int = 0, listed: Sequence[ListEntry] = (),
    ) -> None:  # fmt: skip
        self.journal, resumed = opened(folder)
        clock, self.chance = Ticking(), random.Random(seed)
        clock.now = last_moment(self.journal)
        wall = math.inf if deadline is None else deadline
        ledger = Ledger(cap=cap, clock=clock, spent_before=spent(self.journal), share=1 / trials_each)
        self.accounting = Accounting(self.journal, ledger, clock)
        engine = Engine(
            accounting=self.accounting, slots=slots, listeners=listen(self.journal),
            wall_left=lambda: wall - self.now,
        )  # fmt: skip
        costs = Costs(start_up=START_UP_SECONDS, overhead=OVERHEAD_SECONDS)
        super().__init__(engine, clock, costs, lambda trial, family, config: PowerLaw(step_seconds=STEP_SECONDS))
        terms = agreed_terms(self.journal)
        by_now = cap - spent_beside(self.journal)
        for name, share in (shares or SHARES).items():
            _, ladder = terms[0].families.get(name, (0.0, None)) if terms else (0.0, None)
            frame = Frame(slots=slots, shortest=4, overhead=1.5, start_up=6, part=share, seeds=confirm)
            first = share * trials_each * (terms[0].seconds if terms else cap)
            if listed:
                memory = known_memory(memory_limit)
                self.families[name] = listed_family(
                    listed, ladder, share * trials_each * by_now, memory, trials=engine.trials, price_to=engine.price_to
                )
                continue
            self.families[name] = Family(
                seconds=share * trials_each * by_now, cost_model=CostModel(), suggestions=suggestions(),
                policy=HalvingWithConfirmation(frame, ladder or frame.fit(first, deadline=wall), engine.price_of(name)),
                memory=known_memory(memory_limit), warm_up_steps=WARM_UP_STEPS,
            )  # fmt: skip
        now = deadline, processor
        self.told = restore(engine, self.newest, *now) if resumed else engine.apply_terms(*now)
        self.journal.write_facts(cap_seconds=cap)
        self.started: set[int] = set()
        self.diverging: dict[int, float] = {}
        self.diverged_at: dict[str, float] = {}
        self.dying: dict[str, int] = {}
        self.turning: dict[int, float] = {}
        self.raising: Callable[[Assignment], str | None] = lambda assignment: None

    @property
    def now(self) -> float:
        """The study's clock."""
        return self.clock.now

    @now.setter
    def now(self, now: float) -> None:
        self.clock.now = now

    def newest(self, folder: Path, *, undecayed: bool) -> tuple[str, int] | None:
        """Where a trial goes on: at a checkpoint, else, as few are saved here, at the last one that it told of."""
        query = """SELECT checkpoint, steps - IFNULL(lost, 0) AS steps FROM reports
            WHERE trial = ? AND checkpoint IS NOT NULL ORDER BY report DESC LIMIT 1"""
        told = self.journal.rows(query, folder.name)
        there = [(str(self.journal.folder / row["checkpoint"]), row["steps"]) for row in told]
        return model_resume_checkpoint(folder, undecayed=undecayed) or next(iter(there), None)

    def live(self, assignment: Assignment, *, ended: str | None = None) -> None:
        """The process of a lease gives a sign of life, or its last one."""
        (self.journal.folder / HEARTBEAT_FOLDER).mkdir(exist_ok=True)
        write_heartbeat(self.journal.folder, assignment.trial, assignment.lease, self.now, ended)

    def report_after(self, passed: float, /, **report: Any) -> Assignment:
        """The next lease, of which its trial reports this after so many seconds, else what STOPPED says."""
        assignment = self.taken()
        self.now += passed
        self.engine.on_report(assignment.trial, replace(STOPPED, **report))
        return assignment

    def step_seconds(self, assignment: Assignment) -> float:
        """Of the steps of a trial."""
        return STEP_SECONDS

    def goal(self, assignment: Assignment) -> int:
        """Steps of the trial's life that the lease is for."""
        if assignment.steps is not None:
            return assignment.steps
        before, step = self.engine.trials[assignment.trial].steps, self.step_seconds(assignment)
        seconds = assignment.training_seconds
        return before + max(1, int(assignment.seconds / step)) if seconds is None else int(seconds / step)

    def length(self, assignment: Assignment) -> float:
        """Device-seconds that a process would use of a lease."""
        start = 0.0 if assignment.slot in self.started else START_UP_SECONDS
        if assignment.rung is None and assignment.steps is None:
            training = assignment.seconds * self.chance.uniform(0.99, 1)
        else:
            self.started.add(assignment.slot)
            start += OVERHEAD_SECONDS
            training = self.steps_to_go(assignment) * self.step_seconds(assignment) * self.chance.uniform(1, 1.2)
        if needed(assignment.config, MOST_MICRO_BATCHES) > self.families[assignment.family].memory.limit:
            return min(assignment.seconds, start + RUNS_OUT_SECONDS)
        if self.raising(assignment):
            return min(assignment.seconds, start)
        sound = self.sound_seconds(assignment)
        if sound < training:
            self.diverged_at[assignment.trial] = assignment.opened + start + sound
            training = min(training, sound + self.chance.uniform(0, NOTICE_SECONDS))
        return min(assignment.seconds, start + training)

    def steps_to_go(self, assignment: Assignment) -> int:
        return self.goal(assignment) - self.engine.trials[assignment.trial].steps

    def sound_seconds(self, assignment: Assignment) -> float:
        """Training on this lease before the trial diverges."""
        done = self.engine.trials[assignment.trial].steps * self.step_seconds(assignment)
        return max(0.0, self.diverging.get(assignment.config["number"], math.inf) - done)

    def end(self, assignment: Assignment, ended_at: float | None = None) -> None:
        """What the process of a lease says, or does not say any more, at its end: that is now, or was before."""
        if self.dying.get(assignment.trial, 0) > 0:
            self.dying[assignment.trial] -= 1
            self.live(assignment)
            self.engine.on_death(assignment.trial, "error: KilledError: it was")
            return
        if reason := self.raising(assignment):
            self.engine.on_error(assignment.trial, reason)
            return
        memory, micro_batches = self.families[assignment.family].memory, assignment.micro_batches
        while needed(assignment.config, micro_batches) > memory.limit and micro_batches < MOST_MICRO_BATCHES:
            micro_batches *= 2
        if needed(assignment.config, micro_batches) > memory.limit:
            self.engine.on_out_of_memory(assignment.trial)
            return
        step = self.step_seconds(assignment)
        used, steps = (ended_at or self.now) - assignment.opened, self.goal(assignment)
        short = (assignment.rung is not None or assignment.steps is not None) and used >= assignment.seconds
        if short:
            steps = self.engine.trials[assignment.trial].steps + max(1, int(used / step / 2))
        ended: Ended = "lease" if short else "final" if assignment.rung is None else "rung"
        if not short and steps * step > self.turning.get(assignment.config["number"], math.inf):
            ended = "turned"
        if assignment.trial in self.diverged_at:
            ended = "diverged"
        loss = 5 / math.log(steps + 3) + 0.01 * assignment.config["number"]
        measured, number = "precision" in assignment.config, assignment.config["number"]
        self.engine.on_report(
            assignment.trial,
            Report(
                steps=steps, tokens=steps, training_seconds=steps * step, train_loss=1.0, learning_rate=1.0,
                gradient_norm=1.0, tokens_per_second=1.0, step_seconds=step, mfu=MFU if measured else None,
                peak_flops=PEAK_FLOPS if measured else None,
                parameters=1000 * assignment.config.get("d_model", 1 + number % 7),
                memory_bytes=1, limited_bytes=round(needed(assignment.config, micro_batches)),
                micro_batches=micro_batches, ran_out=micro_batches > assignment.micro_batches,
                seconds={"steps": used * 0.9}, valid=self.evaluation(loss), valid_subset=SUBSET,
                whole=self.evaluation(loss + WHOLE_NATS) if ended in ENDS else None, ended=ended,
                checkpoint=str(self.journal.folder / "checkpoints" / assignment.trial / f"step-{steps:06d}"),
            ),
        )  # fmt: skip

    def evaluation(self, loss: float) -> Evaluation:
        """One with this loss."""
        return Evaluation(loss=loss, bits_per_character=1.0, nats_per_word=1.0, accuracy=1.0)
