"""Searches of one family in virtual time: its trials follow power laws, and some diverge, or a law of all of them that
is known; and its bare policy."""

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.tune.search.world import Numbered, Played
from tune.search.confirm import HalvingWithConfirmation
from tune.search.engine import Engine
from tune.search.family import CostModel, Family
from tune.search.forecast import NO_FAVOUR, Favour
from tune.search.ladder import Frame, Ladder, Rules
from tune.search.other_caps import CapForecast, StudyConditions, predict_other_caps
from tune.search.policy import BudgetLeft
from tune.search.resume import agreed_terms, close_what_a_kill_left_open, last_moment, restore, spent
from tune.search.scaling_law import ScalingLaw
from tune.search.simulator import Clock, Costs, PowerLaw
from tune.search.successive_halving import SuccessiveHalving
from tune.store.accounting import Accounting, Ledger
from tune.store.journal import Journal

STEP, OVERHEAD, START_UP = 0.05, 1.25, 6.0
TRUE = ScalingLaw(floor=1.2, of_size=0.2, size_power=0.5, of_tokens=0.5, token_power=0.4, size_unit=2e5, token_unit=2e3)
LEVEL, SLOPE, ERROR = 0.015, 0.008, 0.003
"""Standard deviations of a trial's, in logs of the loss."""
FALL, FALLS = 0.05, 0.005
"""Of the log of a loss by a decay, and its standard deviation between trials."""
DECAY_SHARE = 0.4


def framed(**about: Any) -> Frame:
    """A family that has all slots."""
    return Frame(**{"slots": 1, "shortest": 5.0} | about, overhead=OVERHEAD, start_up=START_UP)


def bare(*, seconds: float = 600.0, more: bool = True, first: float | None = None, **frame: Any) -> SuccessiveHalving:
    """A policy by itself, its prices those of its ladder. more: it may start trials; first: as of Frame.fit."""

    def price(trial: str | None, rung: int) -> float:
        at = policy.trials[trial].rung if trial else -1
        return OVERHEAD + policy.rung_seconds(rung) - (policy.rung_seconds(at) if at >= 0 else 0.0)

    shape = framed(**frame)
    policy = SuccessiveHalving(shape, shape.fit(seconds, first=first), price)
    policy.has_more = more
    return policy


def reach(policy: SuccessiveHalving, trial: str, *losses: float, telling: bool = True) -> None:
    """A trial climbs on, one rung a loss."""
    before = policy.trials[trial].rung if trial in policy.trials else -1
    for rung, loss in enumerate(losses, before + 1):
        policy.on_promoted(trial, rung, policy.ladder.cost(rung))
        policy.on_reported(trial, rung, loss, telling=telling)


def left(seconds: float = 500.0, running: int = 0, **more: Any) -> BudgetLeft:
    """What one free slot finds."""
    return BudgetLeft(seconds=seconds, running=running, **{"slots": 1} | more)


class Alone(Played):
    """The search of one family under a cap in device-seconds, until it is over: `run`. life: seconds of training;
    journal: of one that it is to go on with; turning: after which training its trials turn, in seconds, the first and
    the last of them; shortest: as of Frame."""

    def __init__(
        self, *, seed: int = 0, seconds: float = 600.0, slots: int = 1, life: float = math.inf, diverging: float = 0.0,
        deadline: float = math.inf, configs: int = 10_000, costs: Costs | None = None, step: float = STEP,
        rules: Rules = Rules(), seeds: int = 0, rungs: str = "seconds",  # noqa: B008 - it is frozen
        journal: Journal | None = None, turning: tuple[float, float] = (math.inf, math.inf),
        favour: Callable[[str], Favour] = lambda trial: NO_FAVOUR, within: float = math.inf, shortest: float = 5.0,
    ) -> None:  # fmt: skip
        self.turning = turning
        clock, self.seed, self.diverging, self.seconds, self.step = Clock(), seed, diverging, seconds, step
        self.most, before = life / step, journal or Journal(None, new=True)
        clock.now = last_moment(before)
        ledger = Ledger(cap=seconds, clock=clock, spent_before=spent(before))
        self.accounting = Accounting(before, ledger, clock)
        self.frame = framed(slots=slots, life=life, rules=rules, seeds=seeds, shortest=shortest)
        engine = Engine(accounting=self.accounting, slots=slots, wall_left=lambda: deadline - clock.now, within=within)
        first = [terms.families["alone"][1] for terms in agreed_terms(before)[:1]]
        self.ladder: Ladder = (first and first[0]) or self.frame.fit(seconds, within, deadline)
        self.policy = HalvingWithConfirmation(self.frame, self.ladder, engine.price_of("alone"), favour)
        engine.families["alone"] = Family(
            seconds=seconds,
            policy=self.policy,
            cost_model=CostModel(),
            suggestions=Numbered(configs),
            life_steps=self.most,
            equal_tokens=rungs == "tokens",
        )
        super().__init__(engine, clock, costs or Costs(start_up=START_UP, overhead=OVERHEAD), self.course)

    def course(self, trial: str, family: str, config: Mapping[str, Any]) -> PowerLaw:
        """How a trial trains."""
        rng = random.Random(f"{self.seed} {trial}")
        sound = (
            rng.randint(1, round(0.03 * self.seconds / self.step) + 1) if rng.random() < self.diverging else math.inf
        )
        return PowerLaw(
            step_seconds=self.step, floor=rng.uniform(1, 2), nats=rng.uniform(1, 3), power=rng.uniform(0.2, 0.6),
            max_steps=self.most, diverges=sound, parameters=round(10 ** rng.uniform(4, 7)),
            turning_steps=(self.turning[0] if math.isinf(self.turning[1]) else rng.uniform(*self.turning)) / self.step,
        )  # fmt: skip

    def on_decision(self, *actions: str) -> list[Any]:
        """The decisions of these kinds, in their order; all of them where none is named."""
        return [row for row in self.rows("SELECT * FROM decisions") if not actions or row["action"] in actions]

    def predicted(
        self, *, over: bool = True, cap: float | None = None, seeds: int = 0, decay_share: float = DECAY_SHARE
    ) -> CapForecast:
        """What is to be expected of its cap, or of another. seeds: as of StudyConditions."""
        conditions = StudyConditions(
            cap=cap or self.seconds, families={"alone": 1.0}, slots=1, share=1.0, deadline=None, patient=True,
            over=over, seeds=seeds,
        )  # fmt: skip
        return predict_other_caps(self.accounting.journal, {"alone": self.policy}, conditions, decay_share=decay_share)[
            "alone"
        ]


@dataclass(frozen=True, kw_only=True)
class Lawful(PowerLaw):
    """A training by the law, off it by a level, a slope and errors of its own; a step is a token."""

    seed: str
    level: float
    slope: float
    fall: float

    def loss(self, steps: float) -> float:
        """At a constant rate."""
        error = random.Random(f"{self.seed} {steps}").gauss(0, ERROR)
        off = self.level + self.slope * math.log(steps / TRUE.token_unit) + error
        return TRUE.loss(self.parameters, steps) * math.exp(off)

    def final(self, steps: float) -> float:
        """After a decay."""
        return self.loss(steps) * math.exp(-self.fall)


class Search(Alone):
    """One of these, or, of a journal, going on with it."""

    def __init__(self, *, sizes: bool = True, **about: Any) -> None:
        self.sizes = sizes
        going_on: Journal | None = about.get("journal")
        if going_on:
            close_what_a_kill_left_open(going_on)
        super().__init__(**about)
        now = about.get("deadline"), "one", 3600 * self.frame.rules.least_gain or None
        self.notes = restore(self.engine, self.newest, *now) if going_on else self.engine.apply_terms(*now)

    def course(self, trial: str, family: str, config: Mapping[str, Any]) -> Any:
        """How a trial trains."""
        chance = random.Random(f"{self.seed} {trial}")
        size = 10 ** chance.uniform(4.5, 6.5)
        size = round(size) if self.sizes else 100_000
        return Lawful(
            seed=f"{self.seed} {trial}", parameters=size, step_seconds=0.02 + 0.05 * size / 1e6,
            level=chance.gauss(0, LEVEL), slope=chance.gauss(0, SLOPE), fall=chance.gauss(FALL, FALLS),
        )  # fmt: skip

    def newest(self, folder: Path, *, undecayed: bool) -> tuple[str, int] | None:
        """Where a trial goes on: at its last report, or before the decay that it had."""
        query = "SELECT steps, final FROM reports WHERE trial = ? ORDER BY report DESC LIMIT 1"
        for row in self.accounting.journal.rows(query, folder.name):
            return "kept", math.ceil((1 - DECAY_SHARE) * row["steps"]) if undecayed and row["final"] else row["steps"]
        return None

    @property
    def best(self) -> float:
        """The lowest loss after a decay."""
        (row,) = self.rows("SELECT MIN(valid_loss) AS loss FROM reports WHERE final")
        return float(row["loss"])
